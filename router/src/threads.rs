//! Threads of the process, each with a runtime of its own, so that none can deafen another.

use std::io;
use std::time::Duration;

use anyhow::{Context, anyhow};
use bulkhead_process::Shutdown;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::task::LocalSet;

/// How long what is on its way to the disk may take at the end.
const DISK: Duration = Duration::from_secs(1);

/// A thread that was started.
pub(crate) struct Thread {
    name: String,
    ended: oneshot::Receiver<anyhow::Result<()>>,
}

impl Thread {
    /// Waits for its end.
    ///
    /// # Errors
    /// What the work failed with, or that it panicked.
    pub(crate) async fn ended(self) -> anyhow::Result<()> {
        let Self { name, ended } = self;
        match ended.await {
            Ok(ended) => ended.with_context(|| format!("thread {name} failed")),
            Err(_) => Err(anyhow!("thread {name} panicked")),
        }
    }
}

/// Runs the work on a thread of that name until it is done or `stop` fires.
///
/// # Errors
/// When the system gives no thread or no runtime.
pub(crate) fn spawn<F, Fut>(name: &str, stop: Shutdown, work: F) -> io::Result<Thread>
where
    F: FnOnce() -> Fut + Send + 'static,
    Fut: Future<Output = anyhow::Result<()>>,
{
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (done, ended) = oneshot::channel();
    std::thread::Builder::new().name(name.to_owned()).spawn(move || {
        let local = LocalSet::new();
        let ended = local.block_on(&runtime, async {
            tokio::select! {
                ended = work() => ended,
                () = stop.requested() => Ok(()),
            }
        });
        drop(local);
        runtime.shutdown_timeout(DISK);
        // Where the work panicked, this is dropped unsent, which the other side takes for an error.
        let _ = done.send(ended);
    })?;
    Ok(Thread { name: name.to_owned(), ended })
}
