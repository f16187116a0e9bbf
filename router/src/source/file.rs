//! One file of a folder: when a look at it is enough to read it or to forget it, and what it said well. Pure but for
//! [`contents`].

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use super::document::{self, Document, Object};
use super::schema::Schemas;

/// Larger files are refused rather than read.
const MAX_FILE: u64 = 64 * 1024 * 1024;

/// What shows that a file changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    modified: Option<SystemTime>,
    length: u64,
    #[cfg(unix)]
    inode: u64,
}

#[derive(Default)]
pub(super) struct File {
    /// At the last look; none when it was gone.
    seen: Option<Stamp>,
    /// When it was last read.
    read: Option<Stamp>,
    pub(super) objects: Vec<Arc<Object>>,
    pub(super) wrong: Vec<String>,
}

/// What a look at a file asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    Nothing,
    Read(Stamp),
    Forget,
}

impl Stamp {
    pub(super) fn of(metadata: &fs::Metadata) -> Self {
        #[cfg(unix)]
        use std::os::unix::fs::MetadataExt;
        Self {
            modified: metadata.modified().ok(),
            length: metadata.len(),
            #[cfg(unix)]
            inode: metadata.ino(),
        }
    }
}

impl File {
    /// Takes what was the same in two looks, so that nobody is writing, removing or renaming it. The first table is made
    /// of all that is there.
    pub(super) fn look(&mut self, now: Option<Stamp>, first: bool) -> Next {
        let settled = std::mem::replace(&mut self.seen, now.clone()) == now;
        match now {
            Some(stamp) if (settled || first) && self.read.as_ref() != Some(&stamp) => Next::Read(stamp),
            None if settled => Next::Forget,
            Some(_) | None => Next::Nothing,
        }
    }

    /// Takes what it says. Whether anything changed.
    pub(super) fn take(
        &mut self,
        path: &Path,
        bytes: io::Result<Vec<u8>>,
        stamp: Stamp,
        schemas: &Schemas,
    ) -> bool {
        let bytes = match bytes {
            Ok(bytes) => bytes,
            Err(error) => return self.cannot_read(path, &error),
        };
        self.read = Some(stamp);
        self.wrong.clear();
        let mut good = Vec::new();
        match String::from_utf8(bytes) {
            Err(wrong) => self.wrong.push(wrong.to_string()),
            // Cut by somebody who is about to write it, or by a full disk.
            Ok(text) if text.trim().is_empty() && !self.objects.is_empty() => {
                self.wrong
                    .push("empty, so what it said before stays; remove the file to remove it".to_owned());
            }
            Ok(text) => {
                for text in document::split(&text) {
                    match document::read(&text, schemas) {
                        Ok(Document::Object(object)) => good.push(Arc::new(object)),
                        Ok(Document::Ignored) => {}
                        Err(wrong) => self.wrong.push(wrong),
                    }
                }
            }
        }
        if !self.wrong.is_empty() {
            // Whatever the broken documents were meant to say, the file said it well before.
            let kept = std::mem::take(&mut self.objects);
            good.extend(
                kept.into_iter()
                    .filter(|old| !good.iter().any(|new| new.name() == old.name()))
                    .collect::<Vec<_>>(),
            );
        }
        self.objects = good;
        for wrong in &self.wrong {
            tracing::warn!(file = %path.display(), "refused: {wrong}");
        }
        true
    }

    /// Keeps what it said, and has it read at the next look: its stamp need not change for it to be readable again.
    /// Whether that is news.
    pub(super) fn cannot_read(&mut self, path: &Path, error: &io::Error) -> bool {
        self.read = None;
        let wrong = vec![format!("it cannot be read, so what it said before stays: {error}")];
        let news = self.wrong != wrong;
        if news {
            tracing::warn!(file = %path.display(), "{}", wrong.concat());
        }
        self.wrong = wrong;
        news
    }
}

/// # Errors
/// What the system said; a file that is too large is refused like that.
pub(super) fn contents(path: &Path, stamp: &Stamp) -> io::Result<Vec<u8>> {
    if stamp.length > MAX_FILE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {MAX_FILE} bytes")));
    }
    fs::read(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: &str =
        "apiVersion: bulkhead.dev/v1alpha1\nkind: Cell\nmetadata: {name: a}\nspec: {template: t}\n";

    #[test]
    fn a_file_whose_reading_failed_is_read_again_although_nothing_of_it_changed() {
        let schemas = Schemas::load().expect("schemas load");
        let stamp = Stamp { modified: None, length: 1, inode: 1 };
        let path = Path::new("a.yaml");
        let mut file = File::default();
        let look = |file: &mut File, bytes: io::Result<Vec<u8>>| {
            let next = file.look(Some(stamp.clone()), true);
            assert_eq!(next, Next::Read(stamp.clone()));
            let news = file.take(path, bytes, stamp.clone(), &schemas);
            (news, file.objects.len(), file.wrong.len())
        };
        let too_many_files = || Err(io::Error::from_raw_os_error(24));
        assert_eq!(look(&mut file, too_many_files()), (true, 0, 1));
        assert_eq!(look(&mut file, too_many_files()), (false, 0, 1), "it is said once");
        assert_eq!(look(&mut file, Ok(CELL.as_bytes().to_vec())), (true, 1, 0));
        assert_eq!(file.look(Some(stamp), true), Next::Nothing);
    }
}
