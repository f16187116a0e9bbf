//! The programs of a local cluster, built from pinned Go modules into a cache that outlives checkouts. A
//! build is known by its module files and the Go release, and appears in the cache only when it is whole.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use sha2::{Digest as _, Sha256};

use super::state::{cache, lock};
use crate::command::{command, find, output};
use crate::{images, progress};

const KUBERNETES: &str = "v1.34.4";

/// A Go module of this repository and what is built from it.
struct Module {
    folder: &'static str,
    packages: &'static [&'static str],
    /// What the linker writes into the programs, beside leaving out debug information.
    variables: &'static [(&'static str, &'static str)],
}

const MODULES: [Module; 5] = [
    Module {
        folder: "kubernetes",
        packages: &[
            "k8s.io/kubernetes/cmd/kube-apiserver",
            "k8s.io/kubernetes/cmd/kube-controller-manager",
            "k8s.io/kubernetes/cmd/kube-proxy",
            "k8s.io/kubernetes/cmd/kube-scheduler",
            "k8s.io/kubernetes/cmd/kubectl",
            "k8s.io/kubernetes/cmd/kubelet",
        ],
        variables: &[
            ("k8s.io/component-base/version.gitVersion", KUBERNETES),
            ("k8s.io/component-base/version.gitMajor", "1"),
            ("k8s.io/component-base/version.gitMinor", "34"),
            ("k8s.io/client-go/pkg/version.gitVersion", KUBERNETES),
        ],
    },
    Module { folder: "pause", packages: &["."], variables: &[] },
    Module { folder: "coredns", packages: &["."], variables: &[] },
    Module {
        folder: "kube-router",
        packages: &["github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"],
        variables: &[],
    },
    Module {
        folder: "helm",
        packages: &["helm.sh/helm/v3/cmd/helm"],
        variables: &[("helm.sh/helm/v3/internal/version.version", "v3.20.2")],
    },
];

/// Holds a router to HTTP/2; no part of a cluster.
const H2SPEC: Module =
    Module { folder: "h2spec", packages: &["github.com/summerwind/h2spec/cmd/h2spec"], variables: &[] };

/// Where the built programs are.
#[derive(Clone, Debug)]
pub struct Tools {
    folders: Vec<(&'static str, PathBuf)>,
}

/// An image that the cluster itself needs.
#[derive(Clone, Debug)]
pub struct ClusterImage {
    /// The name under which pods ask for it.
    pub name: String,
    /// The archive to import.
    pub archive: PathBuf,
}

impl Tools {
    /// Builds what is not in the cache yet; minutes at the first time, nothing later.
    ///
    /// # Errors
    /// When Go is missing or a build fails.
    pub fn ensure() -> Result<Self> {
        Self::of(&MODULES)
    }

    /// The program that asks of a router what HTTP/2 asks of a server.
    ///
    /// # Errors
    /// As [`Tools::ensure`].
    pub fn h2spec() -> Result<PathBuf> {
        Self::of(&[H2SPEC])?.program("h2spec")
    }

    fn of(modules: &[Module]) -> Result<Self> {
        let home = cache()?.join("tools");
        fs::create_dir_all(&home).with_context(|| format!("cannot make {}", home.display()))?;
        let go = find("go").context(
            "programs of others are built with Go, and there is no `go` in PATH: install Go 1.26 or later",
        )?;
        let release = output(&mut command(&go, ["env", "GOVERSION"]))?;
        let _lock = lock(&home.join(".lock"))?;
        let mut folders = Vec::new();
        for module in modules {
            let source = sources().join(module.folder);
            let built = home.join(key(&source, release.trim())?);
            if !built.exists() {
                let what = format!("building {} (once; kept in {})", module.folder, home.display());
                progress::step(&what, || build(&go, module, &source, &built))?;
            }
            folders.push((module.folder, built));
        }
        Ok(Self { folders })
    }

    /// The path of one of the programs.
    ///
    /// # Errors
    /// When no module builds a program of that name.
    pub fn program(&self, name: &str) -> Result<PathBuf> {
        let mut candidates = self.folders.iter().map(|(_, folder)| folder.join(name));
        candidates.find(|path| path.is_file()).with_context(|| format!("no module builds {name}"))
    }

    /// The same as a word of a command line.
    ///
    /// # Errors
    /// As [`Tools::program`].
    pub fn command(&self, name: &str) -> Result<String> {
        Ok(self.program(name)?.to_str().context("the cache's path must be plain text")?.to_owned())
    }

    /// The image that holds a pod's namespaces open.
    ///
    /// # Errors
    /// When it cannot be packed.
    pub fn pause(&self) -> Result<ClusterImage> {
        self.image("pause")
    }

    /// The image of the cluster's DNS.
    ///
    /// # Errors
    /// When it cannot be packed.
    pub fn coredns(&self) -> Result<ClusterImage> {
        self.image("coredns")
    }

    fn image(&self, program: &str) -> Result<ClusterImage> {
        let binary = self.program(program)?;
        let folder = binary.parent().context("a program is in a folder")?;
        let key = folder.file_name().and_then(|name| name.to_str()).context("keys are plain text")?;
        let name = format!("localhost/bulkhead/cluster-{program}:{key}");
        let archive = folder.join(format!("{program}.tar"));
        // Nodes ask for it at the same time.
        let _lock = lock(&folder.with_file_name(".lock"))?;
        if !archive.exists() {
            images::pack(&name, &binary, images::User::Root, &archive)?;
        }
        Ok(ClusterImage { name, archive })
    }
}

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tools")
}

/// The first 16 hexadecimal digits of the hash of everything that decides what is built.
fn key(source: &Path, release: &str) -> Result<String> {
    let mut hash = Sha256::new();
    for file in ["go.mod", "go.sum", "main.go"] {
        match fs::read(source.join(file)) {
            Ok(bytes) => hash.update(bytes),
            // Modules without dependencies have no sums, and tools of others have no program of ours.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", source.display())),
        }
    }
    hash.update(release);
    Ok(hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

fn build(go: &Path, module: &Module, source: &Path, built: &Path) -> Result<()> {
    let name = built.file_name().unwrap_or_default().to_string_lossy();
    let partial = built.with_file_name(format!(".building-{name}"));
    fs::create_dir_all(&partial)?;
    let variables = module.variables.iter().map(|(name, value)| format!(" -X {name}={value}"));
    let linker = std::iter::once("-s -w".to_owned()).chain(variables).collect::<String>();
    let mut build = command(go, ["build", "-trimpath", "-ldflags", linker.as_str(), "-o"]);
    build.arg(format!("{}/", partial.display())).args(module.packages);
    output(build.current_dir(source).env("CGO_ENABLED", "0"))?;
    fs::rename(&partial, built)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_dependency_or_compiler_changes_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let source = folder.path();
        fs::write(source.join("go.mod"), "module a\n").unwrap();
        let first = key(source, "go1.26.0").unwrap();
        assert_eq!(first.len(), 16);
        assert_eq!(key(source, "go1.26.0").unwrap(), first);
        assert_ne!(key(source, "go1.26.1").unwrap(), first);
        fs::write(source.join("go.sum"), "b v1 h1:x\n").unwrap();
        assert_ne!(key(source, "go1.26.0").unwrap(), first);
    }

    #[test]
    fn every_module_is_in_the_repository() {
        for module in MODULES.iter().chain([&H2SPEC]) {
            assert!(sources().join(module.folder).join("go.mod").is_file(), "{}", module.folder);
        }
    }
}
