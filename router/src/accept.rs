//! A worker thread's loop: takes sockets, accepts connections, ends those that overstay, and drains at the end.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_process::socket;
use bulkhead_protocol::Reason;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Interval, timeout};

use crate::answer::{problem, unreadable};
use crate::edge::{Kick, Phase, Watch, last_answer, serve_connection};
use crate::listener::Listener;
use crate::request::serve;
use crate::worker::Worker;

/// Between two looks at connections, counts and pools.
const SWEEP: Duration = Duration::from_millis(250);
/// After the kernel had no file or memory for a connection.
const OUT_OF_FILES: Duration = Duration::from_millis(50);
/// How long a refused connection's answer may take to be written.
const SHED: Duration = Duration::from_millis(500);

/// What the process tells a worker.
pub(crate) enum Command {
    Open(Arc<Listener>, std::net::TcpListener),
    Close(String),
    /// Accept nothing more, finish what is under way, then end.
    Drain {
        within: Duration,
    },
}

/// One thread's listeners and connections.
struct Doors {
    worker: Rc<Worker>,
    open: RefCell<HashMap<String, watch::Sender<bool>>>,
    connections: RefCell<HashMap<u64, Connection>>,
    next: Cell<u64>,
    /// The time in milliseconds, as of the last sweep.
    now: Rc<Cell<u64>>,
    /// Told whenever a connection or an accept loop ends.
    ended: Notify,
    accepting: Cell<usize>,
}

struct Connection {
    watch: Rc<Watch>,
    listener: Arc<Listener>,
}

/// Runs until it is drained, or the process lets go of it. Needs a current-thread runtime with a `LocalSet`.
pub(crate) async fn run(worker: Rc<Worker>, mut commands: mpsc::Receiver<Command>) {
    let now = Rc::new(Cell::new(worker.clock().millis()));
    let doors = Rc::new(Doors {
        worker,
        open: RefCell::default(),
        connections: RefCell::default(),
        next: Cell::new(0),
        now,
        ended: Notify::new(),
        accepting: Cell::new(0),
    });
    let orphans = Rc::clone(&doors.worker);
    tokio::task::spawn_local(async move { orphans.orphans().raise().await });
    let timers = Rc::clone(doors.worker.timers());
    tokio::task::spawn_local(async move { timers.run().await });
    let mut sweep = tokio::time::interval(SWEEP);
    sweep.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            command = commands.recv() => match command {
                None => break,
                Some(Command::Open(listener, socket)) => doors.open(listener, socket),
                Some(Command::Close(name)) => {
                    doors.open.borrow_mut().remove(&name);
                }
                Some(Command::Drain { within }) => {
                    let drained = timeout(within, doors.drain());
                    // What overstays holds up nobody's drain.
                    let drained = while_sweeping(&doors, &mut sweep, drained).await;
                    if drained.is_err() {
                        let left = doors.connections.borrow().len();
                        tracing::warn!(connections = left, "the time to drain is over; what is left is cut");
                    }
                    doors.worker.sweep();
                    break;
                }
            },
            _ = sweep.tick() => doors.sweep(),
        }
    }
    doors.worker.orphans().abandon();
}

async fn while_sweeping<T>(doors: &Doors, sweep: &mut Interval, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            done = work.as_mut() => return done,
            _ = sweep.tick() => doors.sweep(),
        }
    }
}

impl Doors {
    fn open(self: &Rc<Self>, listener: Arc<Listener>, socket: std::net::TcpListener) {
        let socket = match TcpListener::from_std(socket) {
            Ok(socket) => socket,
            Err(error) => {
                return tracing::error!(%error, listener = listener.name(), "a socket cannot be used");
            }
        };
        let (stop, stopped) = watch::channel(false);
        self.open.borrow_mut().insert(listener.name().to_owned(), stop);
        self.accepting.set(self.accepting.get() + 1);
        let doors = Rc::clone(self);
        tokio::task::spawn_local(async move {
            doors.accept(&listener, &socket, stopped).await;
            doors.accepting.set(doors.accepting.get() - 1);
            doors.ended.notify_one();
        });
    }

    async fn accept(
        self: &Rc<Self>,
        listener: &Arc<Listener>,
        socket: &TcpListener,
        mut stopped: watch::Receiver<bool>,
    ) {
        loop {
            let accepted = tokio::select! {
                // What the kernel holds already is accepted first: closing the socket would reset it.
                biased;
                accepted = socket.accept() => accepted,
                _ = stopped.wait_for(|stop| *stop) => return,
            };
            match accepted {
                Ok((stream, peer)) => self.connection(listener, stream, peer.ip()),
                Err(error) => {
                    tracing::warn!(%error, listener = listener.name(), "a connection could not be accepted");
                    tokio::time::sleep(OUT_OF_FILES).await;
                }
            }
        }
    }

    fn connection(self: &Rc<Self>, listener: &Arc<Listener>, stream: TcpStream, peer: IpAddr) {
        // A client that takes nothing may do so for as long as one that asks nothing.
        let unread = listener.settings().idle_timeout.max(socket::GONE);
        let _ = socket::set_up(&stream, Some(unread));
        let Some(permit) = listener.connect() else {
            self.worker.metrics().refused("", Reason::RouterOverloaded);
            tokio::task::spawn_local(shed(stream));
            return;
        };
        let id = self.next.get();
        self.next.set(id + 1);
        let watch = Watch::new(&self.now);
        let known = Connection { watch: Rc::clone(&watch), listener: Arc::clone(listener) };
        self.connections.borrow_mut().insert(id, known);
        let header_bytes = listener.settings().header_bytes;
        let doors = Rc::clone(self);
        let listener = Arc::clone(listener);
        let metrics = self.worker.metrics().clone();
        let refuse = move |error| unreadable(&metrics, error);
        tokio::task::spawn_local(async move {
            let serve = |request| {
                let (doors, listener) = (Rc::clone(&doors), Arc::clone(&listener));
                async move { serve(&doors.worker, &listener, request).await }
            };
            serve_connection(stream, peer, header_bytes, watch, refuse, serve).await;
            doors.connections.borrow_mut().remove(&id);
            doors.ended.notify_one();
            drop(permit);
        });
    }

    fn sweep(&self) {
        self.now.set(self.worker.clock().millis());
        for connection in self.connections.borrow().values() {
            let settings = connection.listener.settings();
            let (phase, millis) = connection.watch.phase();
            let lasted = Duration::from_millis(millis);
            if Duration::from_millis(connection.watch.blocked()) >= settings.idle_timeout {
                // It asked for an answer and does not take it.
                connection.watch.kick(Kick::Abort);
            }
            match phase {
                Phase::Idle if lasted >= settings.idle_timeout => connection.watch.kick(Kick::Graceful),
                Phase::Head if lasted >= settings.header_timeout => connection.watch.kick(Kick::Abort),
                Phase::Idle | Phase::Head | Phase::Busy => {}
            }
        }
        self.worker.sweep();
    }

    async fn drain(&self) {
        // Dropping a sender ends the wait of its loop as well, so each is told before.
        self.open.borrow_mut().drain().for_each(|(_, stop)| {
            stop.send_replace(true);
        });
        while self.accepting.get() > 0 {
            self.ended.notified().await;
        }
        for connection in self.connections.borrow().values() {
            connection.watch.kick(Kick::Graceful);
        }
        while !self.connections.borrow().is_empty() {
            self.ended.notified().await;
        }
        self.worker.orphans().grown().await;
    }
}

/// Refuses a connection with a reason, without reading anything from it.
async fn shed(mut stream: TcpStream) {
    let answer = problem(
        Reason::RouterOverloaded,
        "the listener has as many connections as it may (limits.connections)",
        None,
    );
    let _ = timeout(SHED, async {
        stream.write_all(&last_answer(answer)).await?;
        stream.shutdown().await
    })
    .await;
}
