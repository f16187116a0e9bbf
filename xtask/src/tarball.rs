//! Writes an image of one layer as a docker-archive, byte for byte the same for the same input: entries
//! sorted, no times, no names of this machine. What goes into an image is decided in `images`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// A file or folder of an image.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Permission bits.
    pub mode: u32,
    /// `None` for a folder.
    pub content: Option<Vec<u8>>,
}

/// What an image is made of.
#[derive(Clone, Debug)]
pub struct Image {
    /// Repository and tag, as pods ask for it.
    pub name: String,
    /// The program it runs.
    pub entrypoint: String,
    /// `UID:GID` it runs as.
    pub user: String,
    /// By path, without a leading slash.
    pub entries: BTreeMap<String, Entry>,
}

/// Writes the archive and gives the digest of its configuration, which container runtimes call the image's
/// id.
///
/// # Errors
/// When the file cannot be written.
pub fn write(image: &Image, path: &Path) -> Result<String> {
    let (archive, digest) = archive(image)?;
    let partial = path.with_extension("partial");
    let attempt = || -> std::io::Result<()> {
        File::create(&partial)?.write_all(&archive)?;
        std::fs::rename(&partial, path)
    };
    attempt().with_context(|| format!("cannot write {}", path.display()))?;
    Ok(digest)
}

/// The archive's bytes and its configuration's digest.
fn archive(image: &Image) -> Result<(Vec<u8>, String)> {
    let layer = pack(&image.entries)?;
    let layer_digest = digest(&layer);
    let configuration = serde_json::to_vec(&json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {"Entrypoint": [image.entrypoint], "User": image.user, "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer_digest}")]},
        "history": [{"created_by": "bulkhead"}],
    }))?;
    let digest = digest(&configuration);
    let (configuration_file, layer_file) = (format!("{digest}.json"), format!("{layer_digest}/layer.tar"));
    let manifest = serde_json::to_vec(&json!([
        {"Config": configuration_file, "RepoTags": [image.name], "Layers": [layer_file]}
    ]))?;
    let file = |content| Entry { mode: 0o644, content: Some(content) };
    let outer = BTreeMap::from([
        (configuration_file, file(configuration)),
        (layer_file, file(layer)),
        ("manifest.json".to_owned(), file(manifest)),
    ]);
    Ok((pack(&outer)?, format!("sha256:{digest}")))
}

fn pack(entries: &BTreeMap<String, Entry>) -> Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, entry) in entries {
        let mut header = tar::Header::new_ustar();
        header.set_mode(entry.mode);
        header.set_mtime(0);
        header.set_uid(0);
        header.set_gid(0);
        let content = entry.content.as_deref().unwrap_or_default();
        header.set_size(content.len() as u64);
        let kind = if entry.content.is_some() { tar::EntryType::Regular } else { tar::EntryType::Directory };
        header.set_entry_type(kind);
        tar.append_data(&mut header, path, content).with_context(|| format!("cannot pack {path}"))?;
    }
    Ok(tar.into_inner()?)
}

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(content: &str) -> Image {
        let file = |mode, content: &str| Entry { mode, content: Some(content.as_bytes().to_vec()) };
        let entries = [
            ("tmp".to_owned(), Entry { mode: 0o1777, content: None }),
            ("etc/passwd".to_owned(), file(0o644, "root:x:0:0::/:\n")),
            ("app".to_owned(), file(0o755, content)),
        ];
        Image {
            name: "localhost/a:dev".to_owned(),
            entrypoint: "/app".to_owned(),
            user: "65532:65532".to_owned(),
            entries: entries.into_iter().collect(),
        }
    }

    #[test]
    fn the_same_input_gives_the_same_bytes() {
        let (first, first_digest) = archive(&image("one")).unwrap();
        let (again, again_digest) = archive(&image("one")).unwrap();
        assert!(first == again && first_digest == again_digest);
        assert_ne!(archive(&image("two")).unwrap().1, first_digest);
    }

    #[test]
    fn the_layer_is_the_one_the_configuration_names() {
        let (bytes, digest) = archive(&image("one")).unwrap();
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(bytes.as_slice()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let mut content = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut content).unwrap();
            files.insert(entry.path().unwrap().to_string_lossy().into_owned(), content);
        }
        let manifest: serde_json::Value = serde_json::from_slice(&files["manifest.json"]).unwrap();
        let configuration = &files[manifest[0]["Config"].as_str().unwrap()];
        assert_eq!(format!("sha256:{}", super::digest(configuration)), digest);
        let layer = &files[manifest[0]["Layers"][0].as_str().unwrap()];
        let configuration: serde_json::Value = serde_json::from_slice(configuration).unwrap();
        assert_eq!(configuration["rootfs"]["diff_ids"][0], format!("sha256:{}", super::digest(layer)));
        assert_eq!(configuration["config"]["User"], "65532:65532");
    }
}
