//! Removes everything of a cluster and nothing else. It asks the machine what is there rather than the
//! cluster's records, so that it works after a crash half way, and when the folder is gone.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, ensure};
use nix::mount::{MntFlags, umount2};

use super::layout::ClusterName;
use super::processes::{self, Processes};
use super::state::{Provider, State};
use super::{cgroups, kind};
use crate::command::{command, output, succeeds};

/// Removes the cluster. One that does not exist is fine.
///
/// # Errors
/// Names everything that stays; all other parts are removed nevertheless as far as they can be.
pub fn down(name: &ClusterName) -> Result<()> {
    let state = State::of(name)?;
    // A damaged record is no reason to leave the rest behind.
    if let Ok(Some(record)) = state.record()
        && record.provider == Provider::Kind
    {
        // While kind has nodes, the record is what says so.
        kind::down(name)?;
        return remove_folder(state.folder());
    }
    let marked = Processes::of(&state);
    // Kubelets first, or they would start again what is ended next. Whatever outlives one sweep, or was just being
    // started, is met by the next; the last ones report.
    for process in marked.names().iter().filter(|process| process.starts_with("kubelet")) {
        let _ = marked.kill(process);
    }
    let groups = cgroups::of(name);
    let _ = cgroups::end(&groups);
    let _ = processes::end(&marked.marked());
    remove_traces(name, state.folder());
    all([
        processes::end(&marked.marked()),
        cgroups::end(&groups),
        remove_links(name),
        remove_namespaces(name),
        cgroups::remove(&groups),
        // What is still mounted in the folder is not ours to empty.
        unmount(state.folder()).and_then(|()| remove_folder(state.folder())),
    ])
    .with_context(|| {
        format!("something of cluster {name} stays; `cargo xtask cluster down --name {name}` tries again")
    })
}

/// One error that names every failure.
fn all(results: impl IntoIterator<Item = Result<()>>) -> Result<()> {
    let failures: Vec<_> =
        results.into_iter().filter_map(Result::err).map(|error| format!("{error:#}")).collect();
    ensure!(failures.is_empty(), failures.join("; "));
    Ok(())
}

/// Deepest first, since one may lie on another.
fn unmount(folder: &Path) -> Result<()> {
    let table = fs::read_to_string("/proc/self/mountinfo").context("cannot read the table of mounts")?;
    all(mounts_under(&table, folder).into_iter().rev().map(|point| {
        umount2(&point, MntFlags::MNT_DETACH).with_context(|| format!("cannot unmount {}", point.display()))
    }))
}

fn mounts_under(table: &str, folder: &Path) -> Vec<PathBuf> {
    let points = table.lines().filter_map(|line| line.split(' ').nth(4));
    // The kernel writes blanks in paths as octal escapes.
    let paths = points.map(|point| PathBuf::from(point.replace("\\040", " ")));
    paths.filter(|path| path.starts_with(folder)).collect()
}

/// The machine's leg; its routes go with it.
fn remove_links(name: &ClusterName) -> Result<()> {
    let leg = name.interface();
    if succeeds(&mut command("ip", ["link", "show", &leg])) {
        output(&mut command("ip", ["link", "delete", &leg]))?;
    }
    Ok(())
}

fn remove_namespaces(name: &ClusterName) -> Result<()> {
    let entries = fs::read_dir("/run/netns").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let ours = names.filter(|namespace| name.owns_namespace(namespace));
    all(ours.map(|namespace| output(&mut command("ip", ["netns", "delete", &namespace])).map(drop)))
}

/// What programs leave in places that they share with others: results of network plugins, and links to
/// pods' logs. Nothing depends on them, so failures are of no interest.
fn remove_traces(name: &ClusterName, folder: &Path) {
    let results = Path::new("/var/lib/cni/results");
    let entries = fs::read_dir(results).into_iter().flatten().flatten();
    let files: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    for file in owned_results(name, &files) {
        let _ = fs::remove_file(results.join(file));
    }
    for entry in fs::read_dir("/var/log/containers").into_iter().flatten().flatten() {
        if fs::read_link(entry.path()).is_ok_and(|target| target.starts_with(folder)) {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// The results of the cluster's networks, and of the loopback of the same containers, which names no
/// network of ours.
fn owned_results<'a>(name: &ClusterName, files: &'a [String]) -> Vec<&'a String> {
    let container = |file: &'a str| file.rsplit('-').nth(1).unwrap_or_default();
    let ours = files.iter().filter(|file| name.owns_network_result(file));
    let containers: BTreeSet<_> = ours.map(|file| container(file)).collect();
    files.iter().filter(|file| containers.contains(container(file))).collect()
}

fn remove_folder(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", folder.display()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn one_part_that_stays_keeps_no_other_and_all_that_stay_are_named() {
        let mut removed = Vec::new();
        let failure = all(["a", "b", "c", "d"].map(|part| {
            removed.push(part);
            if part == "a" || part == "c" { bail!("{part} is busy") } else { Ok(()) }
        }));
        assert_eq!(removed, ["a", "b", "c", "d"]);
        assert_eq!(failure.unwrap_err().to_string(), "a is busy; c is busy");
        assert!(all([Ok(()), Ok(())]).is_ok());
    }

    #[test]
    fn results_of_other_clusters_containers_stay() {
        let (ours, theirs) = ("0a".repeat(32), "0b".repeat(32));
        let files = [
            format!("bk-dev-n1-{ours}-eth0"),
            format!("cni-loopback-{ours}-lo"),
            format!("bk-dev-n1-n1-{theirs}-eth0"),
            format!("cni-loopback-{theirs}-lo"),
        ];
        let found = owned_results(&"dev".parse().unwrap(), &files);
        assert_eq!(found, [&files[0], &files[1]]);
    }

    #[test]
    fn only_mounts_inside_the_folder_are_found() {
        let table = "22 1 0:20 / /a/dev rw - tmpfs t rw\n\
                     23 22 0:21 / /a/dev/x\\040y rw - tmpfs t rw\n\
                     24 1 0:22 / /a/dev2 rw - tmpfs t rw\n";
        let found = mounts_under(table, Path::new("/a/dev"));
        assert_eq!(found, [PathBuf::from("/a/dev"), PathBuf::from("/a/dev/x y")]);
    }
}
