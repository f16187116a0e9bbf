//! What the ledger asks of a disk, and the folder that is the real one. The trait is narrow so that tests can let every
//! write and sync fail, and cut the power after every byte.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use nix::sys::statvfs::statvfs;

/// A folder of segments. Names are plain file names in it.
pub trait Disk: Send {
    /// Names of all files.
    ///
    /// # Errors
    /// As the operating system says.
    fn list(&self) -> io::Result<Vec<String>>;
    /// The whole file.
    ///
    /// # Errors
    /// As the operating system says; `NotFound` where there is no such file.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// Makes a file that is not there yet.
    ///
    /// # Errors
    /// As the operating system says; `AlreadyExists` where there is such a file.
    fn create(&self, name: &str) -> io::Result<Box<dyn Append>>;
    /// # Errors
    /// As the operating system says.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// # Errors
    /// As the operating system says.
    fn remove(&self, name: &str) -> io::Result<()>;
    /// Waits until the names in the folder are on the disk: a file that was synced can still be lost without its name.
    ///
    /// # Errors
    /// As the operating system says.
    fn sync_folder(&self) -> io::Result<()>;
    /// # Errors
    /// As the operating system says.
    fn space(&self) -> io::Result<Space>;
}

/// A file that is only ever written at its end.
pub trait Append: Send {
    /// Writes some of the bytes and says how many.
    ///
    /// # Errors
    /// As the operating system says.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;
    /// Waits until all that was written is on the disk.
    ///
    /// # Errors
    /// As the operating system says. It must not be called again afterwards: the kernel forgets what it could not write,
    /// and says yes the second time.
    fn sync(&mut self) -> io::Result<()>;
}

/// Bytes of the file system that a process without privileges may still write, and of all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub free: u64,
    pub total: u64,
}

/// Writes all of the bytes, however many a single write takes.
pub(crate) fn write_all(file: &mut dyn Append, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Who holds a folder says so in this file, and holds a lock on it.
const LOCK: &str = "LOCK";

/// A folder on the file system.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// Held, never read again: the lock goes with it.
    _lock: Option<File>,
}

/// Why a folder cannot be a ledger's.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error(
        "{path} cannot be made or opened: {source}; give the ledger a folder that this process may write to"
    )]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "{path} belongs to another process ({holder}), and two must never share a ledger: stop that one, or give this \
         one a folder of its own"
    )]
    Held { path: PathBuf, holder: String },
}

impl Folder {
    /// Makes the folder if it is not there, and locks it for as long as this lives.
    ///
    /// # Errors
    /// When it cannot be made, or another process holds it.
    pub fn lock(path: &Path, now_unix_ms: u64) -> Result<Self, FolderError> {
        let io = |source| FolderError::Io { path: path.to_owned(), source };
        make(path).map_err(io)?;
        // Not truncated at once: it may be another's, and says whose.
        let open =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path.join(LOCK));
        let mut file = open.map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let named = file.read_to_string(&mut holder).is_ok() && !holder.is_empty();
                let holder = if named { holder.trim_end().to_owned() } else { "not known".to_owned() };
                return Err(FolderError::Held { path: path.to_owned(), holder });
            }
            Err(fs::TryLockError::Error(source)) => return Err(io(source)),
        }
        // For the message above alone: a disk that is full must not keep the ledger from being read.
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| {
            let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
            writeln!(file, "pid {} on {}, since {now_unix_ms} ms", std::process::id(), host.trim_end())
        });
        Ok(Self { path: path.to_owned(), _lock: Some(file) })
    }

    /// The folder to read from alone, whoever holds it.
    pub fn to_read(path: &Path) -> Self {
        Self { path: path.to_owned(), _lock: None }
    }
}

/// Makes the folder with those above it, and waits until their names are on the disk: without them all in it is lost.
fn make(path: &Path) -> io::Result<()> {
    let new: Vec<_> =
        path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).collect();
    fs::create_dir_all(path)?;
    new.iter().try_for_each(|path| {
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        File::open(above.unwrap_or(Path::new(".")))?.sync_all()
    })
}

impl Disk for Folder {
    fn list(&self) -> io::Result<Vec<String>> {
        fs::read_dir(&self.path)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path.join(name))
    }

    fn create(&self, name: &str) -> io::Result<Box<dyn Append>> {
        let file = OpenOptions::new().append(true).create_new(true).open(self.path.join(name))?;
        Ok(Box::new(file))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.path.join(from), self.path.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.path)?.sync_all()
    }

    fn space(&self) -> io::Result<Space> {
        let stat = statvfs(&self.path)?;
        let size = stat.fragment_size();
        Ok(Space { free: stat.blocks_available() * size, total: stat.blocks() * size })
    }
}

impl Append for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(self, bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        self.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_process_is_refused_and_told_who_holds_the_folder() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let first = Folder::lock(folder.path(), 7).expect("nobody holds it");
        let refused = Folder::lock(folder.path(), 8).expect_err("it is held").to_string();
        assert!(refused.contains(&format!("pid {}", std::process::id())), "{refused}");
        drop(first);
        Folder::lock(folder.path(), 9).expect("nobody holds it any longer");
    }

    #[test]
    fn a_folder_is_made_with_those_above_it() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let deep = folder.path().join("a/b");
        drop(Folder::lock(&deep, 7).expect("is made"));
        drop(Folder::lock(&deep, 8).expect("is there"));
        assert!(deep.is_dir());
    }

    #[test]
    fn a_file_is_made_once_and_appended_to() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let disk = Folder::to_read(folder.path());
        let mut file = disk.create("a").expect("is made");
        write_all(&mut *file, b"one").expect("is written");
        write_all(&mut *file, b"two").expect("is written");
        file.sync().expect("is synced");
        let again = disk.create("a").map(drop).expect_err("is there");
        assert_eq!(again.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(disk.read("a").expect("is read"), b"onetwo");
        disk.rename("a", "b").expect("is renamed");
        disk.sync_folder().expect("is synced");
        assert_eq!(disk.list().expect("is listed"), ["b"]);
        let space = disk.space().expect("is told");
        assert!(space.free > 0 && space.total >= space.free);
    }
}
