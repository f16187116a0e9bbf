//! Somebody who takes part in a bench as a program or several: its log, its ports, and how it is killed and started again.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use bulkhead_process::Port;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::process::{Group, Launch};

/// One cell, router, proxy or issuer. Its ports are kept while it is dead.
pub(crate) struct Member {
    pub(crate) name: String,
    launches: Vec<Launch>,
    log: PathBuf,
    _ports: Vec<Port>,
    group: Option<Group>,
}

impl Member {
    /// Starts it.
    pub(crate) fn start(name: &str, launches: Vec<Launch>, ports: Vec<Port>, folder: &Path) -> Result<Self> {
        let log = folder.join(format!("{name}.log"));
        let mut member = Self { name: name.to_owned(), launches, log, _ports: ports, group: None };
        member.revive()?;
        Ok(member)
    }

    /// The process id of the first of its programs.
    pub(crate) fn pid(&self) -> Result<Pid> {
        self.group.as_ref().map(Group::leader).with_context(|| format!("{} is dead", self.name))
    }

    /// SIGKILL to all of its processes at once: no goodbye.
    pub(crate) fn kill(&mut self) {
        self.group = None;
    }

    pub(crate) fn revive(&mut self) -> Result<()> {
        let group = Group::start(&self.launches, &self.log);
        self.group = Some(group.with_context(|| format!("{} does not start", self.name))?);
        Ok(())
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let group = self.group.as_ref().with_context(|| format!("{} is dead", self.name))?;
        group.signal(signal).with_context(|| format!("{} cannot be told", self.name))
    }

    /// Fails with its last words when it ended by itself.
    pub(crate) fn lives(&mut self) -> Result<()> {
        let Some(group) = &mut self.group else { return Ok(()) };
        group.lives().with_context(|| {
            let log = fs::read_to_string(&self.log).unwrap_or_default();
            let last: Vec<_> = log.lines().rev().take(5).collect();
            let last: Vec<_> = last.into_iter().rev().collect();
            format!("{} said:\n{}\n", self.name, last.join("\n"))
        })
    }
}
