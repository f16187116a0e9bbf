//! The processes of a cluster: each is recorded with its whole command line before it starts, so that it
//! can be started again, and is known by its id and its time of birth, so that a reused id is never taken
//! for it. What they run is decided in `control_plane` and `node`.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::state::{State, write};
use crate::clock;

/// Set for every process of a cluster, to the cluster's folder. Their children inherit it, so that `down`
/// finds those too whose record was lost.
const MARK: &str = "BULKHEAD_CLUSTER";

/// How to run one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Unique in the cluster; also the name of its log.
    pub name: String,
    /// The network namespace it runs in.
    pub namespace: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Additions to the environment.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
}

/// A living process that cannot be mistaken for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The process id.
    pub pid: i32,
    /// When it began, in the kernel's ticks since boot.
    pub born: u64,
}

/// The records of one cluster's processes.
#[derive(Clone, Debug)]
pub struct Processes {
    folder: PathBuf,
    logs: PathBuf,
    mark: String,
}

impl Processes {
    /// Those of the cluster with that folder.
    pub fn of(state: &State) -> Self {
        let mark = state.folder().to_string_lossy().into_owned();
        Self { folder: state.path("processes"), logs: state.path("log"), mark }
    }

    /// Starts it unless it runs already with this very command line; a running one with another is
    /// replaced.
    ///
    /// # Errors
    /// When it cannot be recorded or started.
    pub fn ensure(&self, process: &Process) -> Result<()> {
        if self.running(&process.name).is_some() {
            if self.recorded(&process.name)? == *process {
                return Ok(());
            }
            self.stop(&process.name, Duration::from_secs(5))?;
        }
        write(&self.record(&process.name), &serde_json::to_string_pretty(process)?)?;
        self.start(&process.name).map(drop)
    }

    /// Starts a recorded process as it was started before.
    ///
    /// # Errors
    /// When there is no record, or it cannot be started.
    pub fn start(&self, name: &str) -> Result<Identity> {
        if let Some(identity) = self.running(name) {
            return Ok(identity);
        }
        let process = self.recorded(name)?;
        fs::create_dir_all(&self.logs)?;
        let log = OpenOptions::new().create(true).append(true).open(self.log(name))?;
        // Namespaces are entered with nsenter, because `ip netns exec` hides the control groups, without
        // which no container starts.
        let child = Command::new("setsid")
            .args(["nsenter", &format!("--net=/run/netns/{}", process.namespace), "--"])
            .args(&process.command)
            .env(MARK, &self.mark)
            .envs(&process.environment)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let pid = i32::try_from(child.id()).context("the kernel's process ids fit 31 bits")?;
        let born =
            born(pid).with_context(|| format!("{name} ended at once; see {}", self.log(name).display()))?;
        let identity = Identity { pid, born };
        write(&self.folder.join(format!("{name}.pid")), &serde_json::to_string(&identity)?)?;
        Ok(identity)
    }

    /// Asks a process to end, and ends it when `grace` is over. One that does not run is fine.
    ///
    /// # Errors
    /// When it outlives even that.
    pub fn stop(&self, name: &str, grace: Duration) -> Result<()> {
        let Some(identity) = self.running(name) else { return Ok(()) };
        send(identity, Signal::SIGTERM);
        if gone(&[identity], grace)? {
            return Ok(());
        }
        end(&[identity]).with_context(|| format!("cannot end {name}"))
    }

    /// Ends a process at once, as a machine that loses power would.
    ///
    /// # Errors
    /// When it outlives that.
    pub fn kill(&self, name: &str) -> Result<()> {
        self.stop_with(name, Signal::SIGKILL)
    }

    fn stop_with(&self, name: &str, signal: Signal) -> Result<()> {
        let Some(identity) = self.running(name) else { return Ok(()) };
        send(identity, signal);
        if gone(&[identity], Duration::from_secs(10))? { Ok(()) } else { bail!("{name} does not end") }
    }

    /// The process of that name, if it lives.
    pub fn running(&self, name: &str) -> Option<Identity> {
        let text = fs::read_to_string(self.folder.join(format!("{name}.pid"))).ok()?;
        let identity: Identity = serde_json::from_str(&text).ok()?;
        (born(identity.pid) == Some(identity.born)).then_some(identity)
    }

    /// The names of all recorded processes, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut names: Vec<_> = entries
            .filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".json").map(str::to_owned))
            .collect();
        names.sort();
        names
    }

    /// The recorded processes that should run and do not, each with the end of its log.
    pub fn fallen(&self) -> Vec<String> {
        let fallen = self.names().into_iter().filter(|name| self.running(name).is_none());
        fallen.map(|name| format!("{name} has ended; {}", self.last_words(&name))).collect()
    }

    /// Everything alive that carries this cluster's mark, recorded or not.
    pub fn marked(&self) -> Vec<Identity> {
        let wanted = format!("{MARK}={}", self.mark);
        let is_marked = |pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|entry| entry == wanted.as_bytes())
        };
        // The time of birth is read first: a process id reused in between then no longer matches.
        let identities = all_pids().filter_map(|pid| Some(Identity { pid, born: born(pid)? }));
        identities.filter(|identity| is_marked(&identity.pid)).collect()
    }

    fn recorded(&self, name: &str) -> Result<Process> {
        let path = self.record(name);
        let text = fs::read_to_string(&path).with_context(|| format!("{name} was never started here"))?;
        serde_json::from_str(&text).with_context(|| format!("{} is damaged", path.display()))
    }

    fn record(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.json"))
    }

    fn log(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{name}.log"))
    }

    fn last_words(&self, name: &str) -> String {
        let log = self.log(name);
        let text = fs::read(&log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("its log is empty");
        format!("{}: {last}", log.display())
    }
}

/// Ends all of them at once and waits until they are gone.
///
/// # Errors
/// When one of them stays.
pub fn end(identities: &[Identity]) -> Result<()> {
    for identity in identities {
        send(*identity, Signal::SIGKILL);
    }
    if gone(identities, Duration::from_secs(10))? {
        return Ok(());
    }
    let left = identities.iter().filter(|one| born(one.pid) == Some(one.born));
    bail!("these processes do not end: {}", left.map(|one| one.pid.to_string()).collect::<Vec<_>>().join(" "))
}

/// When a process began; `None` when there is none, or only a dead one that nobody has collected.
pub fn born(pid: i32) -> Option<u64> {
    alive_since(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Reads the kernel's line about a process. Its second field, the name, may hold blanks and parentheses.
fn alive_since(line: &str) -> Option<u64> {
    let (_, rest) = line.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    let state = fields.next()?;
    if matches!(state, "Z" | "X") {
        return None;
    }
    // Field 22 of the line, where the state is field 3.
    fields.nth(18)?.parse().ok()
}

fn send(identity: Identity, signal: Signal) {
    if born(identity.pid) == Some(identity.born) {
        // It may have ended by itself just now, which is what was wanted.
        let _ = kill(Pid::from_raw(identity.pid), signal);
    }
}

fn gone(identities: &[Identity], limit: Duration) -> Result<bool> {
    let all_gone = || identities.iter().all(|one| born(one.pid) != Some(one.born));
    Ok(clock::until(limit, || Ok(all_gone().then_some(())))?.is_some())
}

fn all_pids() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_birth_is_read_past_a_name_with_parentheses() {
        let line = |state: &str| {
            format!("7 (a) b) {state} 1 7 7 0 -1 4194304 100 0 0 0 1 2 0 0 20 0 1 0 4711 0 0 184467\n")
        };
        assert_eq!(alive_since(&line("S")), Some(4711));
        assert_eq!(alive_since(&line("Z")), None);
        assert_eq!(alive_since(""), None);
    }

    #[test]
    fn this_process_lives_and_a_reused_id_is_not_it() {
        let pid = i32::try_from(std::process::id()).unwrap();
        let born = born(pid).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let processes = Processes {
            folder: folder.path().to_owned(),
            logs: folder.path().join("log"),
            mark: "test".to_owned(),
        };
        let check = |identity: Identity, expected: bool| {
            fs::write(folder.path().join("x.pid"), serde_json::to_string(&identity).unwrap()).unwrap();
            assert_eq!(processes.running("x").is_some(), expected);
        };
        check(Identity { pid, born }, true);
        check(Identity { pid, born: born + 1 }, false);
        assert!(processes.running("y").is_none());
    }
}
