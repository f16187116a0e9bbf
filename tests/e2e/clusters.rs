//! Local clusters are made as they are asked for, live side by side, and leave nothing behind.

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_tests::{World, eventually};
use serde_json::Value;

/// The cluster that comes and goes beside the one that all tests run on.
const SECOND: &str = "beside";

/// Removes the second cluster when this goes out of scope.
struct Second<'a>(&'a World);

impl Second<'_> {
    fn down(&self) -> Result<String> {
        self.0.xtask(&["cluster", "down", "--name", SECOND])
    }
}

impl Drop for Second<'_> {
    fn drop(&mut self) {
        let _ = self.down();
    }
}

/// All that clusters make on a machine, but for what belongs to those that live there all the time.
fn traces(world: &World) -> Result<BTreeSet<String>> {
    let printed = |args: &[&str]| -> Result<Vec<String>> {
        let output = Command::new(args[0]).args(&args[1..]).output().with_context(|| args.join(" "))?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
    };
    let mut found: Vec<String> = printed(&["ip", "netns"])?;
    found.extend(printed(&["ip", "-brief", "link"])?);
    found.extend(printed(&["ip", "route"])?);
    found.extend(fs::read_to_string("/proc/self/mounts")?.lines().map(str::to_owned));
    for hierarchy in fs::read_dir("/sys/fs/cgroup")?.flatten() {
        let groups = fs::read_dir(hierarchy.path()).into_iter().flatten().flatten();
        found.extend(
            groups.map(|group| group.path().display().to_string()).filter(|path| path.contains("/bk-")),
        );
    }
    found.extend(processes().into_iter().map(|(mark, program)| format!("{program} of {mark}")));
    let clusters = world.audit_log.ancestors().nth(3).context("the log lies in the folder of its cluster")?;
    for cluster in fs::read_dir(clusters)?.flatten().filter(|cluster| cluster.file_name() != SECOND) {
        let name = cluster.file_name().display().to_string();
        let marks = [format!("bk-{name}-"), format!("clusters/{name}")];
        found.retain(|trace| trace.contains(SECOND) || !marks.iter().any(|mark| trace.contains(mark)));
    }
    Ok(found.into_iter().collect())
}

/// Every process of every cluster: the folder of its cluster, and its program.
fn processes() -> Vec<(String, String)> {
    let every = fs::read_dir("/proc").into_iter().flatten().flatten();
    every
        .filter_map(|process| {
            let environment = fs::read(process.path().join("environ")).ok()?;
            let environment = String::from_utf8_lossy(&environment).into_owned();
            let mark = environment.split('\0').find_map(|entry| entry.strip_prefix("BULKHEAD_CLUSTER="))?;
            let program = fs::read_to_string(process.path().join("comm")).ok()?;
            mark.contains("/clusters/").then(|| (mark.to_owned(), program.trim().to_owned()))
        })
        .collect()
}

fn status(world: &World, name: &str) -> Result<Value> {
    let text = world.xtask(&["cluster", "status", "--name", name, "--json"])?;
    serde_json::from_str(&text).context("status is no JSON")
}

#[test]
fn up_again_changes_nothing_of_a_cluster_that_is_up() {
    let (world, _turn) = World::enter();
    let before = status(world, &world.cluster).expect("it is up");
    assert_eq!(before["healthy"], true, "{before}");
    world.cluster("up", &[]).expect("up twice is fine");
    assert_eq!(status(world, &world.cluster).expect("it is up"), before, "every process is the same");
}

#[test]
fn a_second_cluster_comes_and_goes_and_leaves_nothing_even_if_its_making_is_cut_off() {
    let (world, _turn) = World::enter();
    let before = traces(world).expect("seen");
    let first = status(world, &world.cluster).expect("it is up");
    let second = Second(world);

    let up = ["cluster", "up", "--name", SECOND, "--nodes", "1"];
    let mut making = world.begin_xtask(&up).expect("begun");
    let kubelet_runs = || {
        let runs = |(mark, program): &(String, String)| mark.ends_with(SECOND) && program == "kubelet";
        ensure!(processes().iter().any(runs), "no kubelet yet");
        Ok(())
    };
    let half_way = eventually(Duration::from_secs(60), kubelet_runs);
    making.kill().expect("killed");
    making.wait().expect("ended");
    half_way.expect("it was half way up");
    assert_ne!(traces(world).expect("seen"), before, "the control: something was left");
    second.down().expect("removed");
    assert_eq!(traces(world).expect("seen"), before);

    world.xtask(&up).expect("made beside the first");
    let up_and_well = status(world, SECOND).expect("it is up");
    assert_eq!(
        (&up_and_well["healthy"], up_and_well["nodes"].as_array().map(Vec::len)),
        (&Value::Bool(true), Some(1))
    );
    assert_ne!(up_and_well["nodes"][0]["address"], first["nodes"][0]["address"]);
    second.down().expect("removed");
    assert_eq!(traces(world).expect("seen"), before);
    assert_eq!(status(world, &world.cluster).expect("it is up"), first, "the first was left alone");
    world.all_serving(&["payments-a", "payments-b", "payments-c"]).expect("and serves on");
}
