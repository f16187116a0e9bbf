//! The thread that is both the cells behind a proxy and the clients before it, so that both together cost as little as
//! they can: one that asks the kernel what happened, and no other. What is measured is read there as well, at the very
//! moments at which a window begins and ends.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bulkhead_process::Monotonic;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollTimeout};
use nix::unistd::Pid;
use rustls::ServerConfig;
use tokio::sync::oneshot;

use super::backend::Backend;
use super::clients::{Clients, Load};
use super::window::{Reading, Window};
use crate::lab::kernel;

/// Load before anything is counted: connections are made and pools filled.
const WARM_UP: Duration = Duration::from_millis(500);
/// How long answers that are under way at the end are waited for.
const DRAIN: Duration = Duration::from_secs(1);
/// Events that are taken from the kernel at once.
const EVENTS: usize = 256;
/// Bytes that are read at once.
const SCRATCH: usize = 128 * 1024;
/// How long the kernel may have nothing to say before the clock is looked at, in milliseconds.
const LOOK_MS: u8 = 1;

/// Stops with its thread when dropped.
pub(crate) struct Rig {
    orders: mpsc::Sender<Order>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

struct Order {
    load: Load,
    proxy: Pid,
    window: Duration,
    done: oneshot::Sender<Result<Window>>,
}

struct Turns {
    epoll: Epoll,
    events: Vec<EpollEvent>,
    scratch: Vec<u8>,
    backend: Backend,
    clock: Monotonic,
    stop: Arc<AtomicBool>,
    /// Of requests, so that none has the id of another.
    next: u64,
}

/// What an event is about: of which kind, and the place among those.
const LISTENER: u64 = 0;
const CELL: u64 = 1;
const CLIENT: u64 = 2;

fn token<const KIND: u64>(place: usize) -> u64 {
    (place as u64) << 2 | KIND
}

fn told(token: u64) -> (u64, usize) {
    (token & 3, usize::try_from(token >> 2).unwrap_or(usize::MAX))
}

impl Rig {
    /// Has a cell answer at each listener from now on, over TLS where there is a configuration for it.
    ///
    /// # Errors
    /// When the kernel has no thread or no events for us.
    pub(crate) fn start(listeners: Vec<(TcpListener, Option<Arc<ServerConfig>>)>) -> Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("no epoll")?;
        let stop = Arc::<AtomicBool>::default();
        let backend = Backend::new(listeners, &epoll, token::<LISTENER>, token::<CELL>)?;
        let mut turns = Turns {
            epoll,
            events: vec![EpollEvent::empty(); EVENTS],
            scratch: vec![0; SCRATCH],
            backend,
            clock: Monotonic::start(),
            stop: Arc::clone(&stop),
            next: 0,
        };
        let (orders, taken) = mpsc::channel();
        let thread = std::thread::Builder::new().name("load".to_owned());
        let thread = thread.spawn(move || turns.serve(&taken)).context("no thread for the load")?;
        Ok(Self { orders, stop, thread: Some(thread) })
    }

    /// Keeps the load up for `window` and measures.
    ///
    /// # Errors
    /// When any request is not answered with 200, or the proxy is gone.
    pub(crate) async fn measure(&self, load: Load, proxy: Pid, window: Duration) -> Result<Window> {
        let (done, measured) = oneshot::channel();
        let gone = "the thread of the load is gone";
        self.orders.send(Order { load, proxy, window, done }).ok().context(gone)?;
        measured.await.context(gone)?
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Turns {
    fn serve(&mut self, orders: &mpsc::Receiver<Order>) {
        while !self.stop.load(Ordering::Relaxed) {
            if self.turn(None).is_err() {
                return;
            }
            if let Ok(Order { load, proxy, window, done }) = orders.try_recv() {
                let _ = done.send(self.measure(load, proxy, window));
            }
        }
    }

    fn measure(&mut self, load: Load, proxy: Pid, window: Duration) -> Result<Window> {
        let mut clients = Clients::new(load, token::<CLIENT>, self.next, self.clock.micros());
        self.turns(&mut clients, WARM_UP, |_| false)?;
        kernel::forget_peak(proxy);
        let before = self.reading(&clients, proxy)?;
        clients.count_from(before.micros);
        self.turns(&mut clients, window, |_| false)?;
        let after = self.reading(&clients, proxy)?;
        let memory = [kernel::resident(proxy)?, kernel::peak(proxy)?];
        clients.end();
        self.turns(&mut clients, DRAIN, Clients::is_over)?;
        self.next = clients.next();
        let (latencies, unanswered) = clients.finish(self.clock.micros());
        Ok(Window::between(&before, &after, latencies, unanswered, memory))
    }

    /// Goes on for so long, or until it is as wanted.
    fn turns(
        &mut self,
        clients: &mut Clients,
        time: Duration,
        wanted: impl Fn(&Clients) -> bool,
    ) -> Result<()> {
        let until = self.clock.elapsed() + time;
        while self.clock.elapsed() < until && !wanted(clients) {
            if self.stop.load(Ordering::Relaxed) {
                bail!("stopped");
            }
            self.turn(Some(clients))?;
        }
        Ok(())
    }

    fn turn(&mut self, mut clients: Option<&mut Clients>) -> Result<()> {
        // With requests to send at moments of their own it does not sleep: nobody is woken as exactly as that.
        let impatient = clients.as_ref().is_some_and(|clients| clients.is_impatient());
        let timeout = if impatient { EpollTimeout::ZERO } else { EpollTimeout::from(LOOK_MS) };
        let count = match self.epoll.wait(&mut self.events, timeout) {
            Err(Errno::EINTR) => 0,
            waited => waited.context("the kernel does not say what happened")?,
        };
        for event in &self.events[..count] {
            match told(event.data()) {
                (LISTENER, place) => self.backend.accept(place, &self.epoll),
                (CELL, place) => self.backend.go_on(place, &mut self.scratch, &self.epoll),
                (_, place) => {
                    if let Some(clients) = &mut clients {
                        clients.happened(place, self.clock.micros(), &mut self.scratch, &self.epoll)?;
                    }
                }
            }
        }
        clients.map_or(Ok(()), |clients| clients.go_on(self.clock.micros(), &self.epoll))
    }

    fn reading(&self, clients: &Clients, proxy: Pid) -> Result<Reading> {
        Ok(Reading {
            micros: self.clock.micros(),
            answered: clients.answered(),
            by_cell: self.backend.requests(),
            proxy: kernel::cpu(proxy)?,
            this: kernel::cpu_micros(Pid::this())?,
            machine: kernel::machine_micros()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::shape::{self, Over, Shape, Template};
    use super::super::tls::{self, Trust};
    use super::*;

    #[test]
    fn an_event_says_of_what_it_is() {
        for place in [0, 1, 70_000] {
            assert_eq!(told(token::<LISTENER>(place)), (LISTENER, place));
            assert_eq!(told(token::<CLIENT>(place)), (CLIENT, place));
        }
    }

    /// Clients and cells without a proxy between them.
    async fn measure(shape: &Shape) -> Window {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let to = listener.local_addr().expect("has an address");
        let folder = tempfile::tempdir().expect("a folder");
        let trust = Trust::make(folder.path()).expect("is made");
        let speaks = shape.over != Over::Plain;
        let rig = Rig::start(vec![(listener, speaks.then_some(trust.cells))]).expect("starts");
        let tls = speaks.then(|| (trust.clients, tls::front().expect("is a name")));
        let load = Load { to, template: Template::new(shape), way: shape.way, per_second: 1_000, tls };
        // This process stands for the proxy: whose CPU is counted makes no difference here.
        rig.measure(load, Pid::this(), Duration::from_millis(300)).await.expect("is measured")
    }

    #[tokio::test]
    async fn every_row_is_asked_and_answered() {
        for shape in &shape::SHAPES {
            let window = measure(shape).await;
            assert!(window.requests > 0 && window.latencies.count() > 0, "{}: {window:?}", shape.name);
            assert_eq!((window.unanswered, window.share_of_first), (0, 1.0), "{}", shape.name);
        }
    }
}
