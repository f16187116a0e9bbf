//! The wish to stop, told to every part of a process. How long each part takes to stop is its own affair.

use std::io;
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Cloneable: every clone sees the trigger of any other, also one that came before the clone was made.
#[derive(Clone, Debug)]
pub struct Shutdown {
    state: Arc<watch::Sender<bool>>,
}

impl Default for Shutdown {
    fn default() -> Self {
        Self::new()
    }
}

impl Shutdown {
    /// One that only [`Shutdown::trigger`] fires.
    pub fn new() -> Self {
        Self { state: Arc::new(watch::Sender::new(false)) }
    }

    /// One that SIGTERM and SIGINT fire too. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
    pub fn on_signals() -> io::Result<Self> {
        let shutdown = Self::new();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let fire = shutdown.clone();
        tokio::spawn(async move {
            let name = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
            };
            tracing::info!(signal = name, "asked to stop");
            fire.trigger();
        });
        Ok(shutdown)
    }

    pub fn trigger(&self) {
        self.state.send_replace(true);
    }

    pub fn is_requested(&self) -> bool {
        *self.state.borrow()
    }

    /// Completes once the stop is wanted. The future borrows nothing.
    pub fn requested(&self) -> impl Future<Output = ()> + Send + use<> {
        let state = Arc::clone(&self.state);
        async move {
            let mut receiver = state.subscribe();
            // The sender lives in this future, so that the channel cannot close meanwhile.
            let _ = receiver.wait_for(|requested| *requested).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_clone_sees_the_trigger_early_or_late() {
        let shutdown = Shutdown::new();
        let waiting = tokio::spawn(shutdown.requested());
        assert!(!shutdown.is_requested());
        shutdown.clone().trigger();
        waiting.await.expect("completes");
        shutdown.requested().await;
        assert!(shutdown.is_requested());
    }
}
