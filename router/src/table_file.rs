//! The last good objects on disk, from which a router starts while the API server is away. Written whole, to a file
//! beside it that then takes its name, so that a crash leaves the one before.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::objects::Objects;

/// Told apart from files of other versions, which are left unread.
const FORMAT: u32 = 1;

#[derive(Serialize)]
struct Written<'a> {
    format: u32,
    router: &'a str,
    objects: &'a Objects,
}

#[derive(Deserialize)]
struct Format {
    format: u32,
    router: String,
}

#[derive(Deserialize)]
struct Read {
    objects: Objects,
}

/// Why there is no table on disk to start from.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unusable {
    #[error("{path} cannot be read: {source}")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} is no table: {source}")]
    Garbage { path: PathBuf, source: serde_json::Error },
    #[error("{path} has format {format} for router {router:?}, which is not this router's: remove it")]
    Foreign { path: PathBuf, format: u32, router: String },
    #[error("the thread that read the table failed: {0}")]
    Broken(#[from] tokio::task::JoinError),
}

/// The objects as they are written.
///
/// # Errors
/// When an object is no JSON, which none is that was read.
pub(crate) fn encode(router: &str, objects: &Objects) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&Written { format: FORMAT, router, objects })
}

/// Writes the bytes, synced before they take the file's name. It waits for the disk.
///
/// # Errors
/// When the disk does not take them; the file before stays.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("next");
    let mut file = File::create(&beside)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    // The new name itself is on disk only once the folder is.
    match path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// # Errors
/// When there is no such file, or it is of another format or router.
pub(crate) fn read(path: &Path, router: &str) -> Result<Objects, Unusable> {
    let bytes = fs::read(path).map_err(|source| Unusable::Io { path: path.to_owned(), source })?;
    let garbage = |source| Unusable::Garbage { path: path.to_owned(), source };
    let format: Format = serde_json::from_slice(&bytes).map_err(garbage)?;
    if format.format != FORMAT || format.router != router {
        return Err(Unusable::Foreign {
            path: path.to_owned(),
            format: format.format,
            router: format.router,
        });
    }
    let read: Read = serde_json::from_slice(&bytes).map_err(garbage)?;
    Ok(read.objects)
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::{Cell, CellSpec};

    use super::*;

    #[test]
    fn what_was_written_is_read_and_a_weight_of_zero_survives() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("table.json");
        let mut objects = Objects::default();
        objects.cells.replace(vec![Cell::new("a", CellSpec { weight: 0, ..CellSpec::default() })]);
        write(&path, &encode("main", &objects).expect("is JSON")).expect("is written");
        let read = read(&path, "main").expect("is read");
        assert_eq!(read.cells.items()[0].spec.weight, 0);
        assert!(read.complete());
    }

    #[test]
    fn a_file_of_another_router_or_half_a_file_is_refused() {
        let folder = tempfile::tempdir().expect("a folder can be made");
        let path = folder.path().join("table.json");
        write(&path, &encode("other", &Objects::default()).expect("is JSON")).expect("is written");
        assert!(matches!(read(&path, "main"), Err(Unusable::Foreign { .. })));
        fs::write(&path, "{\"format\":1,").expect("is written");
        assert!(matches!(read(&path, "main"), Err(Unusable::Garbage { .. })));
        assert!(matches!(read(&folder.path().join("none"), "main"), Err(Unusable::Io { .. })));
    }
}
