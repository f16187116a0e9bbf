//! What is measured, each row with proxies of its own.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use bulkhead_process::Monotonic;

use super::Args;
use super::clients::{Clients, Load, Pace};
use super::rig::{Nobody, Rig};
use super::slow::{SlowClients, Slowness};
use super::stage::{Limits, Stage, System};
use super::window::Window;
use crate::lab::kernel;
use crate::report::FOREIGN_CORES;

/// Connections of the closed loop that shows what somebody can do at most.
pub(super) const PEAK: usize = 512;
/// Of that, how much is sent in the open loop.
pub(super) const FACTORS: [f64; 3] = [0.5, 1.0, 2.0];
/// The last of them, which is more than anybody can do.
pub(super) const TWICE: usize = 2;
/// Clients of each kind that are slow.
pub(super) const SLOW: usize = 200;
/// How long a connection may be quiet while clients are slow.
pub(super) const QUIET: Duration = Duration::from_secs(5);
/// How late a proxy may be to close what is over: ours looks four times a second.
pub(super) const SLACK: Duration = Duration::from_secs(1);
/// Of the most that somebody can do, how much is sent to it while a cell hangs.
const PART: f64 = 0.25;
/// Requests that a cell may have under way then, and its place among the cells.
pub(super) const IN_CELL: u32 = 128;
const HUNG: usize = 1;
/// How often a window is measured in which others were at work.
const TRIES: usize = 4;
/// How long it may take until so many connections are there.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at files.
const LOOK: Duration = Duration::from_millis(50);
/// How long whoever is quiet is left alone before its memory is read, and how long its CPU is watched.
const SETTLE: Duration = Duration::from_secs(1);
const WATCHED: Duration = Duration::from_secs(3);

pub(super) const GOODPUT: &str = "goodput";
pub(super) const SLOW_CLIENTS: &str = "slow clients";
pub(super) const HUNG_CELL: &str = "hung cell";
pub(super) const IDLE: &str = "idle connections";

/// All that was measured; of a row that was not chosen there is nothing.
#[derive(Default)]
pub(super) struct Found {
    pub(super) goodput: Vec<Goodput>,
    pub(super) slow: Vec<Slow>,
    pub(super) hung: Vec<Hung>,
    pub(super) idle: Vec<Idle>,
}

/// What one system came to with more and more requests.
pub(super) struct Goodput {
    pub(super) system: &'static str,
    /// Of the closed loop.
    pub(super) peak: Vec<Window>,
    /// Of the open one, with each of [`FACTORS`] times what the same round's peak was.
    pub(super) open: [Vec<Window>; FACTORS.len()],
    /// Twice the peak, where most are refused.
    pub(super) narrow: Vec<Window>,
}

pub(super) struct Slow {
    pub(super) system: &'static str,
    pub(super) slowness: Slowness,
    /// Bytes in memory before they came, and at most while they were there.
    pub(super) resident: [u64; 2],
    /// Until all of their sockets were gone, from when all were there.
    pub(super) gone: Option<Duration>,
    /// Sockets that were not gone when they should have been.
    pub(super) left: usize,
}

/// Windows before a cell hangs, and from that moment on.
pub(super) struct Hung {
    pub(super) system: &'static str,
    pub(super) before: Vec<Window>,
    pub(super) with: Vec<Window>,
}

pub(super) struct Idle {
    pub(super) system: &'static str,
    pub(super) connections: u32,
    /// Bytes in memory, without them and with them.
    pub(super) resident: [u64; 2],
    /// Microseconds of CPU in a second.
    pub(super) cpu: [f64; 2],
}

pub(super) fn measure(args: &Args, folder: &Path) -> Result<Found> {
    let rows = [GOODPUT, SLOW_CLIENTS, HUNG_CELL, IDLE];
    let chosen: Vec<_> = rows.into_iter().filter(|row| row.contains(&args.row)).collect();
    ensure!(!chosen.is_empty(), "no row has {:?} in its name; there are: {}", args.row, rows.join(", "));
    let mut found = Found::default();
    for row in chosen {
        eprintln!("{row}");
        let limits = match row {
            SLOW_CLIENTS => Limits { idle: QUIET, ..Limits::WIDE },
            HUNG_CELL => Limits { in_cell: Some(IN_CELL), ..Limits::WIDE },
            _ => Limits::WIDE,
        };
        let folder = folder.join(row.replace(' ', "-"));
        let stage = Stage::set(limits, args.has_haproxy()?, &args.cache, &folder)?;
        let mut row_of = Row { rig: stage.rig, args };
        let systems = &stage.systems;
        match row {
            GOODPUT => found.goodput = row_of.goodput(systems)?,
            SLOW_CLIENTS => {
                for slowness in Slowness::ALL {
                    for system in systems {
                        found.slow.push(row_of.slow(system, slowness)?);
                    }
                }
            }
            HUNG_CELL => {
                for system in systems {
                    found.hung.push(row_of.hung(system)?);
                }
            }
            _ => {
                for system in systems {
                    found.idle.push(row_of.idle(system)?);
                }
            }
        }
    }
    Ok(found)
}

struct Row<'a> {
    rig: Rig,
    args: &'a Args,
}

impl Row<'_> {
    /// Where others were at work it is measured again, and the one that they disturbed least counts.
    fn window(&mut self, system: &System, load: &Load) -> Result<Window> {
        let time = self.time();
        least_disturbed(|| self.rig.measure(load, system.pid, time, |_| {}), Window::foreign_cores)
    }

    fn time(&self) -> Duration {
        Duration::from_secs(self.args.seconds.into())
    }

    fn goodput(&mut self, systems: &[System]) -> Result<Vec<Goodput>> {
        let mut found: Vec<_> = systems
            .iter()
            .map(|system| Goodput {
                system: system.name,
                peak: Vec::new(),
                open: Default::default(),
                narrow: Vec::new(),
            })
            .collect();
        for round in 0..self.args.rounds as usize {
            for place in 0..systems.len() {
                // Nobody comes after the same one every time.
                let place = (place + round) % systems.len();
                let (system, found) = (&systems[place], &mut found[place]);
                let peak = self.window(system, &system.load(Pace::Closed(PEAK)))?;
                let open = |factor: f64| Pace::Open {
                    per_second: (peak.goodput() * factor) as u32,
                    over: self.args.connections as usize,
                };
                let steps = FACTORS.map(open);
                for (pace, windows) in steps.into_iter().zip(&mut found.open) {
                    windows.push(self.window(system, &system.load(pace))?);
                }
                if let Some(narrow) = system.narrow {
                    let load = Load { to: narrow, ..system.load(steps[TWICE]) };
                    found.narrow.push(self.window(system, &load)?);
                }
                found.peak.push(peak);
            }
        }
        Ok(found)
    }

    /// As many as there are to be come at once, and are waited for until the proxy has no socket of theirs.
    fn slow(&mut self, system: &System, slowness: Slowness) -> Result<Slow> {
        // What a proxy gets for its first requests is nobody's who is slow. Of many connections it would keep what these need.
        self.window(system, &system.load(Pace::Closed(1)))?;
        let mut nobody = self.rig.clients(system.load(Pace::Closed(0)));
        self.rig.turns(&mut nobody, &mut Nobody, SETTLE, |_| false)?;
        kernel::forget_peak(system.pid);
        let (files, resident) = (kernel::open_files(system.pid)?, kernel::resident(system.pid)?);
        let mut slow = SlowClients::new(system.address, slowness, SLOW, Rig::other_token(), self.rig.now());
        let clock = Monotonic::start();
        while !slow.are_all_there() {
            ensure!(clock.elapsed() < PATIENCE, "not all slow clients could connect in time");
            self.rig.turns(&mut nobody, &mut slow, Duration::from_millis(1), |_| false)?;
        }
        let (clock, patience) = (Monotonic::start(), 2 * QUIET + SLACK);
        let (mut gone, mut left) = (None, usize::MAX);
        while gone.is_none() && clock.elapsed() < patience {
            self.rig.turns(&mut nobody, &mut slow, LOOK, |_| false)?;
            left = kernel::open_files(system.pid)?.saturating_sub(files);
            gone = (left == 0).then(|| clock.elapsed());
        }
        Ok(Slow {
            system: system.name,
            slowness,
            resident: [resident, kernel::peak(system.pid)?],
            gone,
            left,
        })
    }

    fn hung(&mut self, system: &System) -> Result<Hung> {
        let peak = self.window(system, &system.load(Pace::Closed(IN_CELL as usize)))?.goodput();
        let over = self.args.connections as usize;
        let load = system.load(Pace::Open { per_second: (peak * PART) as u32, over });
        let mut found = Hung { system: system.name, before: Vec::new(), with: Vec::new() };
        for _ in 0..self.args.rounds {
            let pair = || self.before_and_with(system, &load);
            let foreign = |[before, with]: &[Window; 2]| before.foreign_cores().max(with.foreign_cores());
            let [before, with] = least_disturbed(pair, foreign)?;
            found.before.push(before);
            found.with.push(with);
        }
        Ok(found)
    }

    fn before_and_with(&mut self, system: &System, load: &Load) -> Result<[Window; 2]> {
        let time = self.time();
        let before = self.rig.measure(load, system.pid, time, |_| {})?;
        let with = self.rig.measure(load, system.pid, time, |cells| cells.hang(HUNG))?;
        self.rig.backend.revive(HUNG);
        // Whoever held it against the cell has forgotten by then.
        let mut nobody = self.rig.clients(system.load(Pace::Closed(0)));
        self.rig.turns(&mut nobody, &mut Nobody, SETTLE, |_| false)?;
        Ok([before, with])
    }

    fn idle(&mut self, system: &System) -> Result<Idle> {
        // What a proxy gets for its first requests is no connection's.
        self.window(system, &system.load(Pace::Closed(PEAK)))?;
        let mut nobody = self.rig.clients(system.load(Pace::Closed(0)));
        let (memory_without, cpu_without) = self.at_rest(system, &mut nobody)?;
        let mut clients = self.rig.clients(system.load(Pace::Once(self.args.idle as usize)));
        self.rig.turns(&mut clients, &mut Nobody, PATIENCE, Clients::is_quiet)?;
        let (memory_with, cpu_with) = self.at_rest(system, &mut clients)?;
        let quiet = clients.is_quiet();
        let good: u64 = clients.finish().iter().map(|tally| tally.good + tally.late).sum();
        let connections = self.args.idle;
        ensure!(
            quiet && good == u64::from(connections),
            "{}: {good} of {connections} connections have had an answer, and not one more",
            system.name
        );
        let (resident, cpu) = ([memory_without, memory_with], [cpu_without, cpu_with]);
        Ok(Idle { system: system.name, connections, resident, cpu })
    }

    /// Bytes in memory, and microseconds of CPU in a second.
    fn at_rest(&mut self, system: &System, clients: &mut Clients) -> Result<(u64, f64)> {
        self.rig.turns(clients, &mut Nobody, SETTLE, |_| false)?;
        let before = kernel::cpu_micros(system.pid)?;
        self.rig.turns(clients, &mut Nobody, WATCHED, |_| false)?;
        let micros = kernel::cpu_micros(system.pid)? - before;
        Ok((kernel::resident(system.pid)?, micros as f64 / WATCHED.as_secs_f64()))
    }
}

fn least_disturbed<T>(mut measure: impl FnMut() -> Result<T>, foreign: impl Fn(&T) -> f64) -> Result<T> {
    let mut best = measure()?;
    for _ in 1..TRIES {
        if foreign(&best) <= FOREIGN_CORES / 2.0 {
            break;
        }
        let again = measure()?;
        if foreign(&again) < foreign(&best) {
            best = again;
        }
    }
    Ok(best)
}
