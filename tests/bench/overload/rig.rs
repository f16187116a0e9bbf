//! The thread that is the cells behind a proxy and all clients before it: it asks the kernel what happened, and goes
//! on with whomever it happened to.

use std::net::TcpListener;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_process::Monotonic;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollTimeout};
use nix::unistd::Pid;

use super::clients::{Clients, Load};
use super::window::Window;
use crate::lab::kernel::{self, Cpu};
use crate::proxy::backend::Backend;

/// Load before anything is counted: connections are made and pools filled.
const WARM_UP: Duration = Duration::from_millis(500);
/// How long answers that are under way at the end are waited for.
const DRAIN: Duration = Duration::from_secs(3);
const EVENTS: usize = 256;
const SCRATCH: usize = 128 * 1024;
/// How long the kernel may have nothing to say before the clock is looked at, in milliseconds.
const LOOK_MS: u8 = 1;

/// What an event is about: of which kind, and the place among those.
const LISTENER: u64 = 0;
const CELL: u64 = 1;
const CLIENT: u64 = 2;
const OTHER: u64 = 3;

fn token<const KIND: u64>(place: usize) -> u64 {
    (place as u64) << 2 | KIND
}

/// Connections that somebody looks after.
pub(super) trait Party {
    /// Whether it has to look at the clock all the time.
    fn is_impatient(&self) -> bool;

    /// Does what is to be done by now.
    ///
    /// # Errors
    /// When nobody takes a connection.
    fn go_on(&mut self, now: u64, epoll: &Epoll) -> Result<()>;

    /// Something happened on that connection.
    fn happened(&mut self, place: usize, now: u64, scratch: &mut [u8], epoll: &Epoll);
}

/// Nobody.
pub(super) struct Nobody;

impl Party for Nobody {
    fn is_impatient(&self) -> bool {
        false
    }

    fn go_on(&mut self, _: u64, _: &Epoll) -> Result<()> {
        Ok(())
    }

    fn happened(&mut self, _: usize, _: u64, _: &mut [u8], _: &Epoll) {}
}

pub(super) struct Rig {
    epoll: Epoll,
    events: Vec<EpollEvent>,
    scratch: Vec<u8>,
    pub(super) backend: Backend,
    clock: Monotonic,
}

impl Rig {
    /// A cell for each listener.
    ///
    /// # Errors
    /// When the kernel has no events for us.
    pub(super) fn new(cells: Vec<TcpListener>) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("no epoll")?;
        let cells = cells.into_iter().map(|cell| (cell, None)).collect();
        let backend = Backend::new(cells, &epoll, token::<LISTENER>, token::<CELL>)?;
        let (events, scratch) = (vec![EpollEvent::empty(); EVENTS], vec![0; SCRATCH]);
        Ok(Self { epoll, events, scratch, backend, clock: Monotonic::start() })
    }

    pub(super) fn now(&self) -> u64 {
        self.clock.micros()
    }

    /// Clients as they are at the beginning.
    pub(super) fn clients(&self, load: Load) -> Clients {
        Clients::new(load, token::<CLIENT>, self.now())
    }

    /// What names connections of others than clients.
    pub(super) fn other_token() -> fn(usize) -> u64 {
        token::<OTHER>
    }

    /// Keeps the load on that proxy up for so long, and measures. `begin` may do something to cells when the window begins.
    ///
    /// # Errors
    /// When nobody takes connections, or the proxy is gone.
    pub(super) fn measure(
        &mut self,
        load: &Load,
        proxy: Pid,
        time: Duration,
        begin: impl FnOnce(&mut Backend),
    ) -> Result<Window> {
        let mut clients = self.clients(load.clone());
        self.turns(&mut clients, &mut Nobody, WARM_UP, |_| false)?;
        kernel::forget_peak(proxy);
        clients.count();
        let before = self.reading(proxy)?;
        begin(&mut self.backend);
        self.turns(&mut clients, &mut Nobody, time, |_| false)?;
        let (micros, cpu, foreign) = self.reading(proxy)?;
        let (peak, within) = (kernel::peak(proxy)?, clients.tallies().clone());
        clients.end();
        self.turns(&mut clients, &mut Nobody, DRAIN, Clients::is_quiet)?;
        Ok(Window {
            micros: micros - before.0,
            within,
            whole: clients.finish(),
            proxy: cpu.since(before.1),
            // Ticks are counted at different moments, so that nothing may come out below nothing.
            foreign: foreign.saturating_sub(before.2),
            peak,
        })
    }

    /// Goes on for so long, or until it is as wanted.
    ///
    /// # Errors
    /// When nobody takes connections.
    pub(super) fn turns(
        &mut self,
        clients: &mut Clients,
        others: &mut dyn Party,
        time: Duration,
        wanted: impl Fn(&Clients) -> bool,
    ) -> Result<()> {
        let until = self.clock.elapsed() + time;
        while self.clock.elapsed() < until && !wanted(clients) {
            self.turn(clients, others)?;
        }
        Ok(())
    }

    fn turn(&mut self, clients: &mut dyn Party, others: &mut dyn Party) -> Result<()> {
        // With requests to send at moments of their own it does not sleep: nobody is woken as exactly as that.
        let impatient = clients.is_impatient() || others.is_impatient();
        let timeout = if impatient { EpollTimeout::ZERO } else { EpollTimeout::from(LOOK_MS) };
        let count = match self.epoll.wait(&mut self.events, timeout) {
            Err(Errno::EINTR) => 0,
            waited => waited.context("the kernel does not say what happened")?,
        };
        for event in &self.events[..count] {
            let place = usize::try_from(event.data() >> 2).unwrap_or(usize::MAX);
            let now = self.clock.micros();
            match event.data() & 3 {
                LISTENER => self.backend.accept(place, &self.epoll),
                CELL => self.backend.go_on(place, &mut self.scratch, &self.epoll),
                CLIENT => clients.happened(place, now, &mut self.scratch, &self.epoll),
                _ => others.happened(place, now, &mut self.scratch, &self.epoll),
            }
        }
        let now = self.clock.micros();
        clients.go_on(now, &self.epoll)?;
        others.go_on(now, &self.epoll)
    }

    /// The time, the proxy's CPU and that of everybody else but us, in microseconds.
    fn reading(&self, proxy: Pid) -> Result<(u64, Cpu, u64)> {
        let (cpu, this) = (kernel::cpu(proxy)?, kernel::cpu_micros(Pid::this())?);
        let foreign = kernel::machine_micros()?.saturating_sub(cpu.sum() + this);
        Ok((self.clock.micros(), cpu, foreign))
    }
}

#[cfg(test)]
mod tests {
    use super::super::clients::Pace;
    use super::super::sockets::listening;
    use super::*;
    use crate::proxy::shape::Template;

    #[test]
    fn a_cell_answers_again_after_it_has_hung() {
        let cell = listening("127.0.0.1:0".parse().expect("an address")).expect("a port");
        let to = cell.local_addr().expect("has an address");
        let mut rig = Rig::new(vec![cell]).expect("the kernel has events");
        let load = |pace| Load { to, template: Template::of_rules("x-partner", 2), pace };
        let mut measure = |pace, begin: fn(&mut Backend)| {
            // This process stands for the proxy: whose CPU is counted makes no difference here.
            rig.measure(&load(pace), Pid::this(), Duration::from_millis(100), begin).expect("is measured")
        };
        let open = Pace::Open { per_second: 1_000, over: 3 };
        for pace in [Pace::Closed(2), open] {
            let window = measure(pace, |_| {});
            assert!(window.goodput() > 0.0 && window.failed() == 0, "{window:?}");
        }
        let window = measure(open, |cells| cells.hang(0));
        assert_eq!(window.failed(), 3, "every connection waits for an answer: {window:?}");
        assert!(window.held_back() > 0.0, "{window:?}");
        let window = measure(open, |cells| cells.revive(0));
        assert!(window.goodput() > 0.0, "{window:?}");
    }
}
