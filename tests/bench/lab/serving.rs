//! A thread that serves listeners until nobody wants it any more. What it does with connections is its caller's.

use std::future::Future;
use std::net::TcpListener as Listener;
use std::thread::JoinHandle;

use anyhow::Result;
use bulkhead_process::Shutdown;
use tokio::net::{TcpListener, TcpStream};

/// Serves until it is dropped.
pub(crate) struct Serving {
    stop: Shutdown,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Has every connection of each listener served, together with what belongs to the listener.
    ///
    /// # Errors
    /// When there are no threads left.
    pub(crate) fn start<T, F>(
        name: &str,
        places: Vec<(Listener, T)>,
        serve: fn(TcpStream, T) -> F,
    ) -> Result<Self>
    where
        T: Clone + Send + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let stop = Shutdown::new();
        let stopped = stop.requested();
        for (listener, with) in places {
            // Listeners belong to the runtime in which they are made.
            let _inside = runtime.enter();
            let listener = TcpListener::from_std(listener)?;
            runtime.spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(serve(stream, with.clone()));
                }
            });
        }
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || runtime.block_on(stopped))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.trigger();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
