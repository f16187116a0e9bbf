//! The folder that holds everything of one cluster, and the record that says which cluster it is. It is
//! written before anything is made, so that `down` works after a crash half way.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::layout::{ClusterName, Layout, MAX_CLUSTERS, MAX_NODES};
use crate::command::{command, output};

/// Who runs the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Provider {
    /// Processes of this machine, each node in a network namespace of its own.
    #[default]
    Local,
    /// kind, which needs Docker.
    Kind,
}

/// What is remembered of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// Who runs it.
    pub provider: Provider,
    /// Its names and addresses.
    #[serde(flatten)]
    pub layout: Layout,
}

/// The folder of one cluster; it need not exist.
#[derive(Clone, Debug)]
pub struct State {
    folder: PathBuf,
    name: ClusterName,
}

/// The folder under which everything is cached: `$XDG_CACHE_HOME/bulkhead`, by default
/// `~/.cache/bulkhead`.
///
/// # Errors
/// When neither variable is set.
pub fn cache() -> Result<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    Ok(base
        .context("set HOME or XDG_CACHE_HOME to an absolute path: clusters are kept there")?
        .join("bulkhead"))
}

impl State {
    /// The folder of the cluster of that name.
    ///
    /// # Errors
    /// As [`cache`].
    pub fn of(name: &ClusterName) -> Result<Self> {
        Ok(Self { folder: clusters()?.join(name.to_string()), name: name.clone() })
    }

    /// The folder itself.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// A path inside the folder.
    pub fn path(&self, inside: impl AsRef<Path>) -> PathBuf {
        self.folder.join(inside)
    }

    /// A path inside the folder as text, for configuration files and arguments.
    pub fn text(&self, inside: impl AsRef<Path>) -> String {
        self.path(inside).to_string_lossy().into_owned()
    }

    /// The kubeconfig of the cluster's administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.path("kubeconfig")
    }

    /// What is remembered of it, if it exists.
    ///
    /// # Errors
    /// When the record cannot be read.
    pub fn record(&self) -> Result<Option<Record>> {
        let path = self.path("cluster.json");
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            read => read.with_context(|| format!("cannot read {}", path.display()))?,
        };
        let hint =
            || format!("{} is damaged; `cargo xtask cluster down` removes the cluster", path.display());
        serde_json::from_str(&text).map(Some).with_context(hint)
    }

    /// What is remembered of a cluster that must be there.
    ///
    /// # Errors
    /// When it is not.
    pub fn existing(&self) -> Result<Record> {
        let up =
            || format!("there is no cluster {0}; `cargo xtask cluster up --name {0}` makes it", self.name);
        self.record()?.with_context(up)
    }

    /// Remembers a new cluster, or gives what is remembered of it.
    ///
    /// # Errors
    /// When the one that exists differs from what is asked for, or no more fit on this machine.
    pub fn claim(&self, provider: Provider, nodes: Option<u8>) -> Result<Record> {
        let all = clusters()?;
        fs::create_dir_all(&all).with_context(|| format!("cannot make {}", all.display()))?;
        let _lock = lock(&all.join(".lock"))?;
        if let Some(record) = self.record()? {
            self.check_same(&record, provider, nodes)?;
            return Ok(record);
        }
        let nodes = nodes.unwrap_or(2);
        if !(1..=MAX_NODES).contains(&nodes) {
            bail!("--nodes must be 1 to {MAX_NODES}, not {nodes}");
        }
        let index = match provider {
            Provider::Local => free_index(&taken(&all)?)?,
            Provider::Kind => 0,
        };
        let record = Record { provider, layout: Layout { name: self.name.clone(), index, nodes } };
        fs::create_dir_all(&self.folder).with_context(|| format!("cannot make {}", self.folder.display()))?;
        write(&self.path("cluster.json"), &serde_json::to_string_pretty(&record)?)?;
        Ok(record)
    }

    fn check_same(&self, record: &Record, provider: Provider, nodes: Option<u8>) -> Result<()> {
        let other = nodes.filter(|nodes| *nodes != record.layout.nodes);
        if other.is_none() && provider == record.provider {
            return Ok(());
        }
        bail!(
            "cluster {0} exists with {1} nodes (provider {2:?}); take it down first: \
             `cargo xtask cluster down --name {0}`",
            self.name,
            record.layout.nodes,
            record.provider
        )
    }
}

/// Holds a file's lock until it is dropped; waits while another process has it.
///
/// # Errors
/// When the file cannot be made or locked.
pub fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("cannot make {}", path.display()))?;
    file.lock().with_context(|| format!("cannot lock {}", path.display()))?;
    Ok(file)
}

/// Writes a file whole or not at all, making its folder where needed.
///
/// # Errors
/// When it cannot be written.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let attempt = || -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let partial = path.with_extension("partial");
        fs::write(&partial, text)?;
        fs::rename(&partial, path)
    };
    attempt().with_context(|| format!("cannot write {}", path.display()))
}

fn clusters() -> Result<PathBuf> {
    Ok(cache()?.join("clusters"))
}

/// The indices of all other local clusters, and of networks that this machine has a route to.
fn taken(clusters: &Path) -> Result<BTreeSet<u8>> {
    let mut taken = BTreeSet::new();
    for entry in fs::read_dir(clusters)? {
        let record = entry?.path().join("cluster.json");
        let known =
            fs::read_to_string(record).ok().and_then(|text| serde_json::from_str::<Record>(&text).ok());
        taken.extend(
            known.filter(|record| record.provider == Provider::Local).map(|record| record.layout.index),
        );
    }
    taken.extend(routed(&output(&mut command("ip", ["-4", "route", "show"]))?));
    Ok(taken)
}

fn routed(routes: &str) -> impl Iterator<Item = u8> + '_ {
    routes.lines().filter_map(|line| line.strip_prefix("10.250.")?.split('.').next()?.parse().ok())
}

fn free_index(taken: &BTreeSet<u8>) -> Result<u8> {
    (0..MAX_CLUSTERS)
        .find(|index| !taken.contains(index))
        .with_context(|| format!("all {MAX_CLUSTERS} places for clusters on this machine are taken"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_index_is_taken() {
        let check = |taken: &[u8], expected: u8| {
            assert_eq!(free_index(&taken.iter().copied().collect()).unwrap(), expected);
        };
        check(&[], 0);
        check(&[0, 1, 3], 2);
        assert!(free_index(&(0..MAX_CLUSTERS).collect()).is_err());
    }

    #[test]
    fn a_network_somebody_else_routes_to_counts_as_taken() {
        let routes =
            "default via 192.0.2.1 dev eth0\n10.250.3.0/24 dev vpn0 proto kernel\n10.96.0.0/16 dev x\n";
        assert_eq!(routed(routes).collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn a_record_survives_its_file() {
        let layout = Layout { name: "dev".parse().unwrap(), index: 2, nodes: 3 };
        let record = Record { provider: Provider::Local, layout };
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), record);
    }
}
