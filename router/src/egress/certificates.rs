//! Certificates for destinations, from folders of `--tls-dir`. They are read beside the thread that makes tables, looked
//! at again every few seconds, and the last good ones stay while what is there cannot be used.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bulkhead_crds::destination::DestinationTls;
use bulkhead_process::tls::{Client, Identity};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// Between two looks at the files, in milliseconds. Kubernetes takes up to a minute to bring a changed Secret.
const LOOK_MS: u64 = 2_000;
/// How long one table waits for files that none before asked for.
const PATIENCE: Duration = Duration::from_secs(1);
/// Larger files are no certificates.
const MAX_FILE: u64 = 1024 * 1024;

/// The folders that one client's certificates lie in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Folders {
    authority: String,
    identity: Option<String>,
}

impl Folders {
    fn of(tls: &DestinationTls) -> Self {
        Self { authority: tls.ca_secret.clone(), identity: tls.certificate_secret.clone() }
    }
}

/// What the files held when they were last read.
#[derive(PartialEq)]
struct Contents {
    authorities: Vec<u8>,
    identity: Option<Identity>,
}

type Look = (Folders, Result<Contents, String>);

#[derive(Default)]
struct Known {
    /// None until the first look.
    seen: Option<Result<Contents, String>>,
    client: Option<Client>,
    wrong: Option<String>,
}

/// Every certificate that a table asks for.
#[derive(Default)]
pub(crate) struct Certificates {
    directory: Option<PathBuf>,
    known: HashMap<Folders, Known>,
    looks: JoinSet<Look>,
    due_ms: u64,
}

impl Certificates {
    pub(crate) fn new(directory: Option<PathBuf>) -> Self {
        Self { directory, ..Self::default() }
    }

    /// Takes all that a table asks for, and waits a little for those that no table asked for before.
    pub(crate) async fn want<'t>(&mut self, wanted: impl Iterator<Item = &'t DestinationTls>) {
        let wanted: HashSet<Folders> = wanted.map(Folders::of).collect();
        self.known.retain(|folders, _| wanted.contains(folders));
        let new: Vec<Folders> =
            wanted.into_iter().filter(|folders| !self.known.contains_key(folders)).collect();
        for folders in &new {
            self.known.insert(folders.clone(), Known::default());
            self.look(folders.clone());
        }
        let is_unread = |known: &HashMap<Folders, Known>| {
            new.iter().any(|folders| known.get(folders).is_some_and(|known| known.seen.is_none()))
        };
        let first = async {
            while is_unread(&self.known)
                && let Some(Ok(look)) = self.looks.join_next().await
            {
                self.take(look);
            }
        };
        if timeout(PATIENCE, first).await.is_err() {
            tracing::warn!("certificates are not read yet; their destinations wait for them");
        }
    }

    /// Looks again when it is time, and takes what was seen. Whether any certificate is another now.
    pub(crate) fn refresh(&mut self, now_ms: u64) -> bool {
        if now_ms >= self.due_ms && self.looks.is_empty() {
            self.due_ms = now_ms + LOOK_MS;
            let all: Vec<Folders> = self.known.keys().cloned().collect();
            all.into_iter().for_each(|folders| self.look(folders));
        }
        let mut changed = false;
        while let Some(Ok(look)) = self.looks.try_join_next() {
            changed |= self.take(look);
        }
        changed
    }

    /// What connections are made with, and what is wrong with what is there now.
    pub(crate) fn client(&self, tls: &DestinationTls) -> (Option<&Client>, Option<&str>) {
        match self.known.get(&Folders::of(tls)) {
            Some(known) => (known.client.as_ref(), known.wrong.as_deref()),
            None => (None, None),
        }
    }

    fn look(&mut self, folders: Folders) {
        let directory = self.directory.clone();
        self.looks.spawn_blocking(move || {
            let seen = read(directory.as_deref(), &folders);
            (folders, seen)
        });
    }

    fn take(&mut self, (folders, seen): Look) -> bool {
        let Some(known) = self.known.get_mut(&folders) else { return false };
        if known.seen.as_ref() == Some(&seen) {
            return false;
        }
        let made = seen.as_ref().map_err(String::clone).and_then(|contents| {
            Client::new(&contents.authorities, contents.identity.as_ref()).map_err(|error| {
                let own = folders.identity.iter().map(|own| format!(" and {own}")).collect::<String>();
                format!("certificates of {}{own}: {error}", folders.authority)
            })
        });
        known.seen = Some(seen);
        match made {
            Ok(client) => {
                known.client = Some(client);
                known.wrong = None;
            }
            Err(wrong) => {
                tracing::warn!(
                    wrong,
                    "certificates of a destination cannot be used; the last good ones stay"
                );
                known.wrong = Some(wrong);
            }
        }
        true
    }
}

fn read(directory: Option<&Path>, folders: &Folders) -> Result<Contents, String> {
    let directory = directory
        .ok_or("tls needs --tls-dir, the directory with a folder of certificates for each Secret")?;
    let file = |folder: &str, name: &str| {
        // A name that leads elsewhere would hand a file of the router's to whoever writes Destinations.
        if !folder.starts_with(|first: char| first.is_ascii_alphanumeric()) || folder.contains('/') {
            return Err(format!("{folder:?} is no name of a Secret"));
        }
        let path = directory.join(folder).join(name);
        bounded(&path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
    };
    let identity = |folder: &String| {
        Ok::<_, String>(Identity { certificates: file(folder, "tls.crt")?, key: file(folder, "tls.key")? })
    };
    Ok(Contents {
        authorities: file(&folders.authority, "ca.crt")?,
        identity: folders.identity.as_ref().map(identity).transpose()?,
    })
}

fn bounded(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MiB"));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(directory: Option<&Path>, secret: &str, words: &str) {
        let folders = Folders { authority: secret.to_owned(), identity: None };
        let error = read(directory, &folders).err().expect("is refused");
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
