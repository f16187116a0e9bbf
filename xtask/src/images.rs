//! Builds the static programs and packs each into an image, without Docker and without a registry. How an
//! archive is laid out is `tarball`'s.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::command::{command, find, output, succeeds};
use crate::progress;
use crate::tarball::{self, Entry, Image};

/// Programs that become images: the package, which is also the binary, and the image's name.
const PROGRAMS: [(&str, &str); 4] = [
    ("bulkhead-operator", "operator"),
    ("bulkhead-router", "router"),
    ("bulkhead-cell-runtime", "cell-runtime"),
    ("bulkhead-samples", "sample"),
];

/// Musl, because a statically linked glibc loads shared libraries to resolve names, and an image that holds
/// one file has none.
const TARGET: &str = match std::env::consts::ARCH.as_bytes() {
    b"aarch64" => "aarch64-unknown-linux-musl",
    _ => "x86_64-unknown-linux-musl",
};

/// Whom an image's program runs as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// What the cluster's own parts need.
    Root,
    /// 65532, which most images without a shell use; everything of ours.
    Nonroot,
}

/// An image on disk.
#[derive(Clone, Debug)]
pub struct Built {
    /// Repository and tag.
    pub name: String,
    /// The archive.
    pub archive: PathBuf,
    /// What container runtimes call its id.
    pub digest: String,
}

/// Builds the programs with a cargo profile and packs them; with names in `only` (`router`, …) just those.
///
/// # Errors
/// When a name is unknown, the target is missing, a program does not build, or an archive cannot be written.
pub fn build(profile: &str, tag: &str, only: &[String]) -> Result<Vec<Built>> {
    let wanted = chosen(only)?;
    let repository = repository()?;
    // Beside everything else that is built, wherever that is.
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let folder = repository.join(target).join("images");
    let out = folder.join("out");
    fs::create_dir_all(&out).with_context(|| format!("cannot make {}", out.display()))?;
    ensure_target()?;
    progress::step(&format!("building static programs (profile {profile})"), || {
        compile(&repository, &folder, profile)
    })?;
    let programs = folder.join(TARGET).join(if profile == "dev" { "debug" } else { profile });
    let pack_one = |(package, short)| {
        let name = format!("localhost/bulkhead/{short}:{tag}");
        let archive = out.join(format!("{short}.tar"));
        let digest = pack(&name, &programs.join(package), User::Nonroot, &archive)?;
        Ok(Built { name, archive, digest })
    };
    wanted.into_iter().map(pack_one).collect()
}

/// Packs one program into an image that holds nothing else but the folders and users a program may ask for.
///
/// # Errors
/// When the program cannot be read or the archive not be written.
pub fn pack(name: &str, program: &Path, user: User, archive: &Path) -> Result<String> {
    let content = fs::read(program).with_context(|| format!("cannot read {}", program.display()))?;
    let file_name = program.file_name().context("a program has a name")?.to_string_lossy().into_owned();
    let users = "root:x:0:0:root:/:/none\nnonroot:x:65532:65532:nonroot:/:/none\n";
    let groups = "root:x:0:\nnonroot:x:65532:\n";
    let folder = |mode| Entry { mode, content: None };
    let file = |mode, content: &[u8]| Entry { mode, content: Some(content.to_vec()) };
    let entries = BTreeMap::from([
        ("etc".to_owned(), folder(0o755)),
        ("etc/group".to_owned(), file(0o644, groups.as_bytes())),
        ("etc/passwd".to_owned(), file(0o644, users.as_bytes())),
        ("tmp".to_owned(), folder(0o1777)),
        (file_name.clone(), Entry { mode: 0o755, content: Some(content) }),
    ]);
    let image = Image {
        name: name.to_owned(),
        entrypoint: format!("/{file_name}"),
        user: if user == User::Root { "0:0".to_owned() } else { "65532:65532".to_owned() },
        entries,
    };
    tarball::write(&image, archive)
}

fn chosen(only: &[String]) -> Result<Vec<(&'static str, &'static str)>> {
    let known = PROGRAMS.map(|(_, short)| short);
    if let Some(unknown) = only.iter().find(|name| !known.contains(&name.as_str())) {
        bail!("there is no image {unknown:?}; there are {}", known.join(", "));
    }
    let wanted = |short: &str| only.is_empty() || only.iter().any(|name| name == short);
    Ok(PROGRAMS.into_iter().filter(|(_, short)| wanted(short)).collect())
}

/// Builds all programs, also where one is wanted: cargo gives dependencies the features of everything that is built
/// together, and another choice of programs would compile most of them again.
fn compile(repository: &Path, folder: &Path, profile: &str) -> Result<()> {
    let mut cargo = command(std::env::var_os("CARGO").unwrap_or("cargo".into()), ["build"]);
    cargo.args(["--target", TARGET, "--profile", profile]);
    for (package, _) in PROGRAMS {
        cargo.args(["--package", package]);
    }
    let variable = TARGET.replace('-', "_");
    // The C parts of the cryptography use no libc, so that the machine's own compiler can make them; without
    // this a package with a compiler for musl would be needed.
    if std::env::var_os(format!("CC_{variable}")).is_none() && find("musl-gcc").is_none() {
        cargo.env(format!("CC_{variable}"), "cc");
    }
    let status = cargo
        .current_dir(repository)
        .env("CARGO_TARGET_DIR", folder)
        .status()
        .context("cannot start cargo")?;
    if status.success() { Ok(()) } else { bail!("the programs do not build; cargo says why above") }
}

fn ensure_target() -> Result<()> {
    let sysroot = output(&mut command("rustc", ["--print", "sysroot"]))?;
    let installed = Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET).exists();
    if installed {
        return Ok(());
    }
    let add = || succeeds(&mut command("rustup", ["target", "add", TARGET]));
    if progress::step(&format!("adding the Rust target {TARGET}"), || Ok(add()))? {
        return Ok(());
    }
    bail!("images need static programs, and the Rust target {TARGET} is missing: add it to your toolchain")
}

pub(crate) fn repository() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(Path::to_owned).context("this crate is in a folder of the repository")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_images_are_built_unless_some_are_named() {
        let check = |only: &[&str], expected: &[&str]| {
            let only: Vec<_> = only.iter().map(|name| (*name).to_owned()).collect();
            let names: Vec<_> = chosen(&only).unwrap().into_iter().map(|(_, short)| short).collect();
            assert_eq!(names, expected);
        };
        check(&[], &["operator", "router", "cell-runtime", "sample"]);
        check(&["sample", "router"], &["router", "sample"]);
        let failure = chosen(&["rooter".to_owned()]).unwrap_err().to_string();
        assert!(failure.contains("rooter") && failure.contains("cell-runtime"), "{failure}");
    }
}
