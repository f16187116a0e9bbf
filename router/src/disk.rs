//! The table file beside a running router: read once, at the start, and written after changes, each on a thread that may wait
//! for the disk. Nobody waits for that thread: a disk that hangs costs the file, and nothing else.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt;
use prometheus::IntCounter;
use tokio::task::{JoinError, JoinHandle, spawn_blocking};

use crate::objects::Objects;
use crate::table_file::{self, Unusable};

/// Least time between two writes, in milliseconds.
const WRITE_EVERY_MS: u64 = 1_000;
/// And after one that failed: a disk that is full is not free the next moment.
const RETRY_EVERY_MS: u64 = 5_000;

pub(crate) struct Disk {
    path: PathBuf,
    router: String,
    failures: IntCounter,
    reading: Option<JoinHandle<Result<Objects, Unusable>>>,
    /// What is served is newer than what is on disk or on its way there.
    unwritten: bool,
    writing: Option<JoinHandle<io::Result<()>>>,
    next_ms: u64,
}

impl Disk {
    /// Begins to read the last table.
    pub(crate) fn new(path: PathBuf, router: String, failures: IntCounter) -> Self {
        let (at, of) = (path.clone(), router.clone());
        Self {
            path,
            router,
            failures,
            reading: Some(spawn_blocking(move || table_file::read(&at, &of))),
            unwritten: false,
            writing: None,
            next_ms: 0,
        }
    }

    /// The last table, once, as soon as it is read.
    pub(crate) fn last(&mut self) -> Option<Objects> {
        match ended(&mut self.reading)? {
            Ok(objects) => Some(objects),
            Err(Unusable::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => None,
            Err(unusable) => {
                tracing::warn!(%unusable, "no table to start from");
                None
            }
        }
    }

    /// What is served has changed.
    pub(crate) fn changed(&mut self) {
        self.unwritten = true;
    }

    /// Begins to write what is served, if it is time and the write before has ended.
    pub(crate) fn write(&mut self, served: &Arc<Objects>, now_ms: u64) {
        if let Some(Err(error)) = ended(&mut self.writing) {
            self.failures.inc();
            self.unwritten = true;
            self.next_ms = now_ms + RETRY_EVERY_MS;
            tracing::error!(%error, "the table file cannot be written; a start without the API server would find the one before");
        }
        if !self.unwritten || self.writing.is_some() || now_ms < self.next_ms {
            return;
        }
        self.unwritten = false;
        self.next_ms = now_ms + WRITE_EVERY_MS;
        let (path, router, objects) = (self.path.clone(), self.router.clone(), Arc::clone(served));
        self.writing = Some(spawn_blocking(move || {
            let bytes = table_file::encode(&router, &objects)?;
            // Whoever changes objects that are held here changes a copy; the disk may hold the bytes for long.
            drop(objects);
            table_file::write(&path, &bytes)
        }));
    }
}

/// What the task came to, once it has ended.
fn ended<T, E: From<JoinError>>(task: &mut Option<JoinHandle<Result<T, E>>>) -> Option<Result<T, E>> {
    let joined = task.as_mut()?.now_or_never()?;
    *task = None;
    Some(joined.unwrap_or_else(|broken| Err(broken.into())))
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::{Cell, CellSpec};

    use super::*;

    /// Begins the write that is due, and waits for its end.
    async fn write(disk: &mut Disk, cell: &str, now_ms: u64) {
        let mut objects = Objects::default();
        objects.cells.replace(vec![Cell::new(cell, CellSpec::default())]);
        disk.write(&Arc::new(objects), now_ms);
        while disk.writing.as_ref().is_some_and(|task| !task.is_finished()) {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn what_the_disk_did_not_take_is_written_when_it_does() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let volume = folder.path().join("volume");
        let path = volume.join("table.json");
        let failures = IntCounter::new("failures", "failures").expect("a name");
        let mut disk = Disk::new(path.clone(), "main".to_owned(), failures.clone());
        disk.changed();
        write(&mut disk, "a", 0).await;
        std::fs::create_dir(&volume).expect("a folder can be made");
        write(&mut disk, "a", WRITE_EVERY_MS).await;
        assert_eq!((path.exists(), failures.get()), (false, 1), "not yet");
        write(&mut disk, "b", WRITE_EVERY_MS + RETRY_EVERY_MS).await;
        let written = table_file::read(&path, "main").expect("is there");
        assert_eq!(written.cells.items()[0].name(), "b");
        // Once is enough.
        std::fs::remove_file(&path).expect("is there");
        write(&mut disk, "b", 60_000).await;
        assert_eq!((path.exists(), failures.get()), (false, 1));
    }
}
