//! A thread of its own for what judges and tells: probes, watch, verdict, health stream. Busy traffic cannot deafen
//! it, and it notices when traffic no longer runs.

use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::Context;
use bulkhead_process::{Shutdown, admin};
use tokio::task::JoinSet;

use crate::cell::Cell;
use crate::config::Discovery;
use crate::{discovery, health, speaker};

/// What the thread serves.
pub(crate) struct Control {
    pub(crate) cell: Arc<Cell>,
    pub(crate) discovery: Discovery,
    pub(crate) health: std::net::TcpListener,
    pub(crate) admin: Option<(std::net::TcpListener, admin::Admin)>,
}

/// Stops the thread when dropped.
pub(crate) struct Running {
    stop: Shutdown,
    thread: Option<JoinHandle<()>>,
}

impl Control {
    /// # Errors
    /// When no thread or no event loop can be had.
    pub(crate) fn start(self) -> anyhow::Result<Running> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let stop = Shutdown::new();
        let requested = stop.requested();
        let body = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = requested => {}
                    () = self.run() => {}
                }
            });
        };
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(body);
        Ok(Running { stop, thread: Some(thread.context("cannot start the control thread")?) })
    }

    async fn run(self) {
        let Self { cell, discovery, health, admin } = self;
        let mut tasks = JoinSet::new();
        tasks.spawn(discovery::run(Arc::clone(&cell), discovery));
        tasks.spawn(speaker::run(Arc::clone(&cell)));
        tasks.spawn(async move {
            match tokio::net::TcpListener::from_std(health) {
                Ok(listener) => health::serve(listener, cell).await,
                Err(error) => tracing::error!(%error, "cannot serve the health stream"),
            }
        });
        if let Some((listener, admin)) = admin {
            tasks.spawn(async move {
                let served = match tokio::net::TcpListener::from_std(listener) {
                    // It ends with the thread, so that the kubelet finds it until then.
                    Ok(listener) => admin::serve(listener, admin, Shutdown::new()).await,
                    Err(error) => Err(error),
                };
                if let Err(error) = served {
                    tracing::error!(%error, "the admin server ended");
                }
            });
        }
        while let Some(ended) = tasks.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "a part of the control thread broke");
            }
        }
    }
}

impl Running {
    /// Ends the thread, and with it every health stream.
    pub(crate) async fn stop(mut self) {
        self.stop.trigger();
        if let Some(thread) = self.thread.take() {
            let joined = tokio::task::spawn_blocking(move || thread.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!("the control thread broke");
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.trigger();
    }
}
