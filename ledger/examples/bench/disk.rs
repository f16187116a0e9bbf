//! The disk alone, and the disk beneath a ledger with a clock on every sync.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use bulkhead_ledger::disk::{Append, Disk, Folder, Space};
use bulkhead_process::Monotonic;

/// Enough for a p99, and a few seconds on a slow disk.
const WRITES: usize = 1_000;
const BLOCK: [u8; 4_096] = [b'b'; 4_096];

/// Appends blocks of 4 KiB to a file, each with an fdatasync of its own, and gives the microseconds of each.
pub(crate) fn write_and_sync(path: &Path) -> io::Result<Vec<u64>> {
    let mut file = OpenOptions::new().append(true).create_new(true).open(path)?;
    let clock = Monotonic::start();
    let mut micros = Vec::with_capacity(WRITES);
    for _ in 0..WRITES {
        let before = clock.micros();
        file.write_all(&BLOCK)?;
        file.sync_data()?;
        micros.push(clock.micros() - before);
    }
    std::fs::remove_file(path)?;
    Ok(micros)
}

/// Microseconds of every sync.
pub(crate) type Syncs = Arc<Mutex<Vec<u64>>>;

/// A folder with a clock.
pub(crate) struct Timed {
    pub(crate) folder: Folder,
    pub(crate) clock: Monotonic,
    pub(crate) syncs: Syncs,
}

impl Disk for Timed {
    fn list(&self) -> io::Result<Vec<String>> {
        self.folder.list()
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.folder.read(name)
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Append>> {
        let file = self.folder.create(name)?;
        Ok(Box::new(TimedFile { file, clock: self.clock, syncs: Arc::clone(&self.syncs) }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.folder.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.folder.remove(name)
    }

    fn sync_folder(&self) -> io::Result<()> {
        self.folder.sync_folder()
    }

    fn space(&self) -> io::Result<Space> {
        self.folder.space()
    }
}

struct TimedFile {
    file: Box<dyn Append>,
    clock: Monotonic,
    syncs: Syncs,
}

impl Append for TimedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        let before = self.clock.micros();
        let synced = self.file.sync();
        let micros = self.clock.micros() - before;
        self.syncs.lock().unwrap_or_else(PoisonError::into_inner).push(micros);
        synced
    }
}
