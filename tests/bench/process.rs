//! Real processes and real signals. None outlives the bench, however that ends.

use std::fs::OpenOptions;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// How to start a program; kept, so that it can be started again.
#[derive(Clone, Debug)]
pub(crate) struct Launch {
    program: PathBuf,
    arguments: Vec<String>,
    core: Option<usize>,
}

impl Launch {
    pub(crate) fn new<S: Into<String>>(
        program: impl Into<PathBuf>,
        arguments: impl IntoIterator<Item = S>,
    ) -> Self {
        Self {
            program: program.into(),
            arguments: arguments.into_iter().map(Into::into).collect(),
            core: None,
        }
    }

    /// The same on that core alone.
    pub(crate) fn on_core(self, core: Option<usize>) -> Self {
        Self { core, ..self }
    }

    /// The same within a network namespace.
    pub(crate) fn within(self, namespace: Option<&str>) -> Self {
        let Some(namespace) = namespace else { return self };
        let program = self.program.to_string_lossy().into_owned();
        let before = ["netns", "exec", namespace, &program].map(str::to_owned);
        Self { program: "ip".into(), arguments: before.into_iter().chain(self.arguments).collect(), ..self }
    }
}

/// Processes that live and die together: a signal reaches all of them at once.
pub(crate) struct Group {
    children: Vec<Child>,
    leader: Pid,
}

impl Group {
    /// Starts them all; what they say is appended to `log`.
    pub(crate) fn start(launches: &[Launch], log: &Path) -> Result<Self> {
        let mut group = Self { children: Vec::new(), leader: Pid::from_raw(0) };
        for launch in launches {
            let child = spawn(launch, group.leader, log)?;
            if group.children.is_empty() {
                group.leader =
                    Pid::from_raw(i32::try_from(child.id()).context("the process id is no pid_t")?);
            }
            group.children.push(child);
        }
        Ok(group)
    }

    /// The process id of the first, and of the group.
    pub(crate) fn leader(&self) -> Pid {
        self.leader
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        killpg(self.leader, signal).with_context(|| format!("{signal} does not reach group {}", self.leader))
    }

    /// Fails when one of them ended by itself.
    pub(crate) fn lives(&mut self) -> Result<()> {
        for child in &mut self.children {
            if let Some(status) = child.try_wait()? {
                ensure!(false, "a process ended by itself ({status})");
            }
        }
        Ok(())
    }
}

impl Drop for Group {
    /// SIGKILL, no goodbye. A stopped process dies of it too.
    fn drop(&mut self) {
        if self.children.is_empty() {
            return;
        }
        // Whoever ended already is not there to be reached, which is as good.
        let _ = self.signal(Signal::SIGKILL);
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

/// This thread, and those that it starts, on that core alone.
///
/// # Errors
/// When this machine has no such core, or may not use it.
pub(crate) fn stay_on(core: usize) -> Result<()> {
    sched_setaffinity(Pid::from_raw(0), &cores(core)?)
        .with_context(|| format!("there is no core {core} to run on"))
}

fn cores(core: usize) -> Result<CpuSet> {
    let mut cores = CpuSet::new();
    cores.set(core).with_context(|| format!("{core} is no number of a core"))?;
    Ok(cores)
}

#[expect(unsafe_code, reason = "between fork and exec only the child can ask to die with its parent")]
fn spawn(launch: &Launch, group: Pid, log: &Path) -> Result<Child> {
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(log)
        .with_context(|| format!("{} cannot be written", log.display()))?;
    let mut command = Command::new(&launch.program);
    command
        .args(&launch.arguments)
        .stdin(Stdio::null())
        .stdout(log.try_clone().context("the log cannot be shared")?)
        .stderr(log)
        .process_group(group.as_raw());
    let cores = launch.core.map(cores).transpose()?;
    // SAFETY: prctl(2) and sched_setaffinity(2) are one system call each, which neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(move || {
            set_pdeathsig(Signal::SIGKILL)?;
            // Before it is a program: threads that it starts stay where it is.
            cores.map_or(Ok(()), |cores| sched_setaffinity(Pid::from_raw(0), &cores))?;
            Ok(())
        });
    }
    command.spawn().with_context(|| format!("cannot start {}", launch.program.display()))
}

/// A program that was built together with this one.
pub(crate) fn sibling(name: &str) -> Result<PathBuf> {
    let this = std::env::current_exe().context("the path of this program cannot be told")?;
    let path = this.with_file_name(name);
    ensure!(path.is_file(), "{} is missing; `cargo xtask bench` builds it first", path.display());
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleepers(folder: &Path) -> Group {
        let sleeper = Launch::new("sleep", ["600"]);
        Group::start(&[sleeper.clone(), sleeper], &folder.join("log")).expect("starts")
    }

    #[test]
    fn a_group_dies_at_once_when_it_is_dropped_even_if_stopped() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut group = sleepers(folder.path());
        group.lives().expect("both live");
        group.signal(Signal::SIGSTOP).expect("is reached");
        let leader = group.leader;
        drop(group);
        assert!(killpg(leader, None).is_err(), "nobody is left");
    }

    #[test]
    fn who_ended_by_itself_is_noticed() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut group = sleepers(folder.path());
        group.children[1].kill().expect("is killed");
        group.children[1].wait().expect("ends");
        assert!(group.lives().is_err());
    }
}
