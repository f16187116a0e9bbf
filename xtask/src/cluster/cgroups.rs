//! The control group of each node, under which kubelet puts the node's pods. It works with both versions
//! of control groups; a group is a cluster's by its name.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

use super::layout::ClusterName;
use super::processes::{Identity, born, end as end_processes};
use crate::clock;

const ROOT: &str = "/sys/fs/cgroup";

/// Makes a group in every hierarchy that counts or limits something.
///
/// # Errors
/// When none can be made.
pub fn ensure(group: &str) -> Result<()> {
    for hierarchy in hierarchies() {
        let folder = hierarchy.join(group);
        if !folder.exists() {
            fs::create_dir(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
    }
    Ok(())
}

/// The names of the cluster's groups that exist.
pub fn of(cluster: &ClusterName) -> Vec<String> {
    let mut names: Vec<String> = hierarchies()
        .iter()
        .flat_map(|hierarchy| fs::read_dir(hierarchy).into_iter().flatten().flatten())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| cluster.owns_namespace(name))
        .collect();
    names.sort();
    names.dedup();
    names
}

/// Ends every process in these groups, which are containers' and nobody else's.
///
/// # Errors
/// When one of them stays.
pub fn end(groups: &[String]) -> Result<()> {
    let members: Vec<Identity> = folders(groups)
        .iter()
        .flat_map(|folder| fs::read_to_string(folder.join("cgroup.procs")).ok())
        .flat_map(|text| text.lines().filter_map(|line| line.parse().ok()).collect::<Vec<i32>>())
        .filter_map(|pid| Some(Identity { pid, born: born(pid)? }))
        .collect();
    end_processes(&members)
}

/// Removes these groups; the kernel lets go of dead members only after a moment.
///
/// # Errors
/// When one is still in use after ten seconds.
pub fn remove(groups: &[String]) -> Result<()> {
    let sweep = || {
        for folder in folders(groups).iter().rev() {
            let _ = fs::remove_dir(folder);
        }
        Ok(folders(groups).is_empty().then_some(()))
    };
    clock::until(Duration::from_secs(10), sweep)?
        .with_context(|| format!("these control groups are still in use: {}", groups.join(" ")))
}

/// The folders of these groups and everything beneath, parents before children.
fn folders(groups: &[String]) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for hierarchy in hierarchies() {
        for group in groups {
            collect(&hierarchy.join(group), &mut all);
        }
    }
    all
}

fn collect(folder: &Path, all: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    all.push(folder.to_owned());
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        collect(&entry.path(), all);
    }
}

/// One hierarchy with version 2; with version 1 one for each controller, where some names are links to
/// others.
fn hierarchies() -> Vec<PathBuf> {
    let root = Path::new(ROOT);
    if root.join("cgroup.controllers").exists() {
        return vec![root.to_owned()];
    }
    let entries = fs::read_dir(root).into_iter().flatten().flatten();
    let folders = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    folders.map(|entry| entry.path()).filter(|path| path.join("cgroup.procs").exists()).collect()
}
