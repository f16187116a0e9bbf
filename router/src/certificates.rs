//! Certificates from folders of `--tls-dir`, of destinations, listeners and cells alike. They are read beside the thread that
//! makes tables, looked at again every few seconds, and the last good ones stay while what is there cannot be used.

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::fs::File;
use std::hash::Hash;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::Duration;

use bulkhead_process::tls::Identity;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Between two looks at the files, in milliseconds. Kubernetes takes up to a minute to bring a changed Secret.
const LOOK_MS: u64 = 2_000;
/// How long one table waits for files that none before asked for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Larger files are no certificates.
const MAX_FILE: u64 = 1024 * 1024;

/// What is made of the files of some folders.
pub(crate) trait Wanted: Clone + Debug + Eq + Hash + Send + 'static {
    /// What the files hold.
    type Contents: PartialEq + Send + 'static;
    type Made;

    /// # Errors
    /// Which file cannot be read.
    fn read(&self, folders: &Folders) -> Result<Self::Contents, String>;

    /// # Errors
    /// Why they cannot be used, with the names of the folders.
    fn make(&self, contents: &Self::Contents) -> Result<Self::Made, String>;
}

/// The directory with a folder for each Secret, if there is one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Folders(Option<PathBuf>);

impl Folders {
    pub(crate) fn of(directory: Option<PathBuf>) -> Self {
        Self(directory)
    }

    /// # Errors
    /// Why it cannot be read, with its path.
    pub(crate) fn file(&self, folder: &str, name: &str) -> Result<Vec<u8>, String> {
        let directory = self
            .0
            .as_deref()
            .ok_or("tls needs --tls-dir, the directory with a folder of certificates for each Secret")?;
        // A name that leads elsewhere would hand a file of the router's to whoever writes Destinations.
        if !folder.starts_with(|first: char| first.is_ascii_alphanumeric()) || folder.contains('/') {
            return Err(format!("{folder:?} is no name of a Secret"));
        }
        let path = directory.join(folder).join(name);
        bounded(&path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
    }

    /// # Errors
    /// Which of the two files cannot be read.
    pub(crate) fn identity(&self, folder: &str) -> Result<Identity, String> {
        Ok(Identity { certificates: self.file(folder, "tls.crt")?, key: self.file(folder, "tls.key")? })
    }
}

fn bounded(path: &std::path::Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MiB"));
    }
    Ok(bytes)
}

type Look<W> = (W, Result<<W as Wanted>::Contents, String>);

struct Known<W: Wanted> {
    /// None until the first look.
    seen: Option<Result<W::Contents, String>>,
    made: Option<W::Made>,
    wrong: Option<String>,
}

impl<W: Wanted> Default for Known<W> {
    fn default() -> Self {
        Self { seen: None, made: None, wrong: None }
    }
}

/// All of one kind that a table asks for.
pub(crate) struct Certificates<W: Wanted> {
    folders: Folders,
    known: HashMap<W, Known<W>>,
    looks: JoinSet<Look<W>>,
    due_ms: u64,
}

impl<W: Wanted> Default for Certificates<W> {
    fn default() -> Self {
        Self::new(Folders::default())
    }
}

impl<W: Wanted> Certificates<W> {
    pub(crate) fn new(folders: Folders) -> Self {
        Self { folders, known: HashMap::new(), looks: JoinSet::new(), due_ms: 0 }
    }

    /// Takes all that a table asks for, and waits a little for those that no table asked for before.
    pub(crate) async fn want(&mut self, wanted: impl Iterator<Item = W>) {
        let wanted: HashSet<W> = wanted.collect();
        self.known.retain(|one, _| wanted.contains(one));
        let new: Vec<W> = wanted.into_iter().filter(|one| !self.known.contains_key(one)).collect();
        for one in &new {
            self.known.insert(one.clone(), Known::default());
            self.look(one.clone());
        }
        let is_unread = |known: &HashMap<W, Known<W>>| {
            new.iter().any(|one| known.get(one).is_some_and(|known| known.seen.is_none()))
        };
        let first = async {
            while is_unread(&self.known)
                && let Some(Ok(look)) = self.looks.join_next().await
            {
                self.take(look);
            }
        };
        if timeout(PATIENCE, first).await.is_err() {
            tracing::warn!("certificates are not read yet; what needs them waits for them");
        }
    }

    /// Looks again when it is time, and takes what was seen. Whether any certificate is another now.
    pub(crate) fn refresh(&mut self, now_ms: u64) -> bool {
        if now_ms >= self.due_ms && self.looks.is_empty() {
            self.due_ms = now_ms + LOOK_MS;
            let all: Vec<W> = self.known.keys().cloned().collect();
            all.into_iter().for_each(|one| self.look(one));
        }
        let mut changed = false;
        while let Some(Ok(look)) = self.looks.try_join_next() {
            changed |= self.take(look);
        }
        changed
    }

    /// What is used, and what is wrong with what is there now.
    pub(crate) fn get(&self, wanted: &W) -> (Option<&W::Made>, Option<&str>) {
        match self.known.get(wanted) {
            Some(known) => (known.made.as_ref(), known.wrong.as_deref()),
            None => (None, None),
        }
    }

    fn look(&mut self, wanted: W) {
        let folders = self.folders.clone();
        self.looks.spawn_blocking(move || {
            let seen = wanted.read(&folders);
            (wanted, seen)
        });
    }

    fn take(&mut self, (wanted, seen): Look<W>) -> bool {
        let Some(known) = self.known.get_mut(&wanted) else { return false };
        if known.seen.as_ref() == Some(&seen) {
            return false;
        }
        let made = seen.as_ref().map_err(String::clone).and_then(|contents| wanted.make(contents));
        known.seen = Some(seen);
        match made {
            Ok(made) => {
                known.made = Some(made);
                known.wrong = None;
            }
            Err(wrong) => {
                tracing::warn!(wrong, "certificates cannot be used; the last good ones stay");
                known.wrong = Some(wrong);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[track_caller]
    fn check(directory: Option<&Path>, secret: &str, words: &str) {
        let error =
            Folders::of(directory.map(Path::to_owned)).file(secret, "ca.crt").expect_err("is refused");
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn only_files_of_the_directory_are_read_and_only_small_ones() {
        let directory = tempfile::tempdir().expect("makes a folder");
        let (secrets, path) = (directory.path().join("tls"), directory.path());
        for folder in [secrets.join("large"), path.join("outside")] {
            std::fs::create_dir_all(&folder).expect("makes a folder");
            let file = File::create(folder.join("ca.crt")).expect("makes a file");
            file.set_len(MAX_FILE + 1).expect("makes it large");
        }
        check(None, "ca", "tls needs --tls-dir");
        check(Some(&secrets), "../outside", "is no name of a Secret");
        check(Some(&secrets), "large/../../outside", "is no name of a Secret");
        check(Some(&secrets), "", "is no name of a Secret");
        check(Some(&secrets), "absent", "absent/ca.crt cannot be read");
        check(Some(&secrets), "large", "larger than 1 MiB");
    }
}
