//! A disk in memory that knows what was synced, loses power after any byte, and fails when it is told to.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::disk::{Append, Disk, Space};

#[derive(Clone, Default)]
pub(super) struct FaultDisk(Arc<Mutex<State>>);

#[derive(Clone, Default)]
struct State {
    files: BTreeMap<String, Contents>,
    /// After so many bytes and other operations nothing works any more.
    power: Option<usize>,
    /// The next write takes so many bytes and then fails, as on a full disk.
    write_fails_after: Option<usize>,
    /// So many syncs fail.
    failing_syncs: usize,
    /// At most so many bytes in one write.
    shortest: Option<usize>,
    free: Option<u64>,
    unreadable: Option<String>,
}

#[derive(Clone, Default)]
struct Contents {
    bytes: Vec<u8>,
    synced: usize,
    named: bool,
}

/// What of the unsynced bytes reached the disk before the power went.
#[derive(Clone, Copy, Debug)]
pub(super) enum Unsynced {
    All,
    Half,
    None,
}

impl FaultDisk {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no test panics with it")
    }

    /// Power for so many more bytes and operations.
    pub(super) fn power_for(&self, units: usize) {
        self.state().power = Some(units);
    }

    pub(super) fn write_fails_after(&self, bytes: usize) {
        self.state().write_fails_after = Some(bytes);
    }

    pub(super) fn fail_syncs(&self, count: usize) {
        self.state().failing_syncs = count;
    }

    pub(super) fn write_at_most(&self, bytes: usize) {
        self.state().shortest = Some(bytes);
    }

    pub(super) fn set_free(&self, bytes: u64) {
        self.state().free = Some(bytes);
    }

    pub(super) fn make_unreadable(&self, name: &str) {
        self.state().unreadable = Some(name.to_owned());
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.state().files.keys().cloned().collect()
    }

    pub(super) fn bytes(&self, name: &str) -> Vec<u8> {
        self.state().files[name].bytes.clone()
    }

    pub(super) fn total(&self) -> usize {
        self.state().files.values().map(|file| file.bytes.len()).sum()
    }

    /// A disk with these contents and without faults, on which the file is changed.
    pub(super) fn with(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> Self {
        let copy = self.after(Unsynced::All);
        {
            let mut state = copy.state();
            let file = state.files.get_mut(name).expect("is there");
            change(&mut file.bytes);
            file.synced = file.bytes.len();
        }
        copy
    }

    pub(super) fn without(&self, name: &str) -> Self {
        let copy = self.after(Unsynced::All);
        copy.state().files.remove(name).expect("is there");
        copy
    }

    /// What a machine finds that starts again. A process that was killed leaves all that it wrote; without power the
    /// names are lost too that no sync of the folder kept.
    pub(super) fn after(&self, unsynced: Unsynced) -> Self {
        let mut files = self.state().files.clone();
        files.retain(|_, file| {
            let extra = file.bytes.len() - file.synced;
            let kept = match unsynced {
                Unsynced::All => extra,
                Unsynced::Half => extra / 2,
                Unsynced::None => 0,
            };
            file.bytes.truncate(file.synced + kept);
            file.synced = file.bytes.len();
            let stays = file.named || !matches!(unsynced, Unsynced::None);
            file.named = true;
            stays
        });
        Self(Arc::new(Mutex::new(State { files, ..State::default() })))
    }
}

fn dead() -> io::Error {
    io::Error::other("the power is gone")
}

impl State {
    /// As much of `wanted` as there is power for.
    fn draw(&mut self, wanted: usize) -> usize {
        let Some(power) = &mut self.power else { return wanted };
        let drawn = wanted.min(*power);
        *power -= drawn;
        drawn
    }

    fn operate(&mut self) -> io::Result<()> {
        if self.draw(1) == 1 { Ok(()) } else { Err(dead()) }
    }
}

impl Disk for FaultDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.names())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        let state = self.state();
        if state.unreadable.as_deref() == Some(name) {
            return Err(io::Error::from_raw_os_error(5));
        }
        state.files.get(name).map(|file| file.bytes.clone()).ok_or(io::ErrorKind::NotFound.into())
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Append>> {
        let mut state = self.state();
        state.operate()?;
        if state.files.contains_key(name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        state.files.insert(name.to_owned(), Contents::default());
        Ok(Box::new(Open { disk: self.clone(), name: name.to_owned() }))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = self.state();
        state.operate()?;
        let file = state.files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        state.files.insert(to.to_owned(), file);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut state = self.state();
        state.operate()?;
        state.files.remove(name).map(drop).ok_or(io::ErrorKind::NotFound.into())
    }

    fn sync_folder(&self) -> io::Result<()> {
        let mut state = self.state();
        state.operate()?;
        state.files.values_mut().for_each(|file| file.named = true);
        Ok(())
    }

    fn space(&self) -> io::Result<Space> {
        Ok(Space { free: self.state().free.unwrap_or(1 << 40), total: 1 << 40 })
    }
}

struct Open {
    disk: FaultDisk,
    name: String,
}

impl Append for Open {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.disk.state();
        let mut wanted = bytes.len().min(state.shortest.unwrap_or(usize::MAX));
        if let Some(left) = &mut state.write_fails_after {
            if *left == 0 {
                state.write_fails_after = None;
                return Err(io::ErrorKind::StorageFull.into());
            }
            wanted = wanted.min(*left);
            *left -= wanted;
        }
        let written = state.draw(wanted);
        state.files.get_mut(&self.name).expect("is there").bytes.extend(&bytes[..written]);
        if written == 0 { Err(dead()) } else { Ok(written) }
    }

    fn sync(&mut self) -> io::Result<()> {
        let mut state = self.disk.state();
        state.operate()?;
        if state.failing_syncs > 0 {
            state.failing_syncs -= 1;
            return Err(io::Error::from_raw_os_error(5));
        }
        let file = state.files.get_mut(&self.name).expect("is there");
        file.synced = file.bytes.len();
        Ok(())
    }
}
