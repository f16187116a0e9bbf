//! A worker thread's loop: takes sockets, accepts connections, ends those that overstay, and drains at the end.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_process::socket;
use bulkhead_process::tls::server::HTTP2;
use bulkhead_protocol::Reason;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Interval, timeout};

use crate::answer::{malformed, problem, unreadable};
use crate::edge::{
    Allowed, Beginning, Kick, Phase, Watch, end_turns, last_answer, serve_connection, serve_http2,
};
use crate::front::{self, Client, Stream, Unfit};
use crate::listener::{Listener, Settings};
use crate::message::Answer;
use crate::request::serve;
use crate::worker::Worker;

/// Between two looks at connections, counts and pools.
const SWEEP: Duration = Duration::from_millis(250);
/// After the kernel had no file or memory for a connection.
const OUT_OF_FILES: Duration = Duration::from_millis(50);
/// How long a refused connection may take to take its answer.
const SHED: Duration = Duration::from_millis(500);
/// How often it is read from meanwhile, at most.
const MOST_UNREAD: u32 = 64;

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
    /// Connections that have not come to HTTP yet.
    entering: Cell<usize>,
    draining: Cell<bool>,
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
        entering: Cell::new(0),
        draining: Cell::new(false),
    });
    let orphans = Rc::clone(&doors.worker);
    tokio::task::spawn_local(async move { orphans.orphans().raise().await });
    let timers = Rc::clone(doors.worker.timers());
    tokio::task::spawn_local(async move { timers.run().await });
    tokio::task::spawn_local(end_turns());
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
        let settings = Arc::clone(&listener.settings());
        // A client that takes nothing may do so for as long as one that asks nothing.
        let unread = settings.idle_timeout.max(socket::GONE);
        let _ = socket::set_up(&stream, Some(unread));
        let Some(permit) = listener.connect() else {
            self.worker.metrics().refused("", Reason::RouterOverloaded);
            let detail = "the listener has as many connections as it may (limits.connections)";
            tokio::task::spawn_local(dismiss(stream, problem(Reason::RouterOverloaded, detail, None)));
            return;
        };
        let (doors, listener) = (Rc::clone(self), Arc::clone(listener));
        if settings.front().is_open() {
            let known = self.know(&listener);
            tokio::task::spawn_local(async move {
                doors.converse(&listener, known, front::plain(stream), Client::at(peer)).await;
                drop(permit);
            });
            return;
        }
        self.entering.set(self.entering.get() + 1);
        tokio::task::spawn_local(async move {
            let entered = doors.enter(&listener, &settings, stream, peer).await;
            let entered = entered.map(|(stream, client)| (doors.know(&listener), stream, client));
            doors.entering.set(doors.entering.get() - 1);
            doors.ended.notify_one();
            if let Some((known, stream, client)) = entered {
                doors.converse(&listener, known, stream, client).await;
            }
            drop(permit);
        });
    }

    /// What comes before HTTP. None where a connection does not get there.
    async fn enter(
        &self,
        listener: &Listener,
        settings: &Settings,
        stream: TcpStream,
        peer: IpAddr,
    ) -> Option<(Stream, Client)> {
        // Boxed, so that what follows does not carry its state about.
        let entering = Box::pin(front::enter(settings.front(), stream, peer));
        let entered = timeout(settings.header_timeout, entering).await;
        let refused = match entered.unwrap_or_else(|_| Err(Unfit::Late.into())) {
            Ok(entered) => return Some(entered),
            Err(refused) => refused,
        };
        let why = refused.why;
        tracing::debug!(%peer, listener = listener.name(), error = %why, "a connection did not come to HTTP");
        self.worker.metrics().unfit(listener.name(), why.reason());
        if let Some(stream) = refused.told {
            let answer = problem(Reason::Malformed, &why.to_string(), None);
            tokio::task::spawn_local(dismiss(stream, answer));
        }
        None
    }

    /// Counts a connection among those that are swept and drained.
    fn know(&self, listener: &Arc<Listener>) -> (u64, Rc<Watch>) {
        let id = self.next.get();
        self.next.set(id + 1);
        let watch = Watch::new(&self.now);
        if self.draining.get() {
            watch.kick(Kick::Graceful);
        }
        let known = Connection { watch: Rc::clone(&watch), listener: Arc::clone(listener) };
        self.connections.borrow_mut().insert(id, known);
        (id, watch)
    }

    /// Speaks HTTP to the end of the connection.
    async fn converse(
        self: &Rc<Self>,
        listener: &Arc<Listener>,
        (id, watch): (u64, Rc<Watch>),
        stream: Stream,
        client: Client,
    ) {
        let (header_bytes, allowed) = allowed(&listener.settings());
        let metrics = self.worker.metrics().clone();
        let refuse = move |error| unreadable(&metrics, error);
        let (peer, client) = (client.address, Rc::new(client));
        let serve = |request| {
            let (doors, listener, client) = (Rc::clone(self), Arc::clone(listener), Rc::clone(&client));
            async move { serve(&doors.worker, &listener, &client, request).await }
        };
        let http2 = if stream.agreed_protocol() == Some(HTTP2) {
            Some(Beginning::of(stream))
        } else {
            serve_connection(stream, peer, header_bytes, Rc::clone(&watch), refuse, &serve).await
        };
        if let Some(begun) = http2 {
            let refuse = |error| malformed(self.worker.metrics(), error);
            let blame = |fault| self.worker.metrics().http2_fault(listener.name(), fault);
            // In a place of its own, so that connections in HTTP/1.1 do not carry its room about.
            Box::pin(serve_http2(begun, allowed, watch, refuse, blame, &serve)).await;
        }
        self.connections.borrow_mut().remove(&id);
        self.ended.notify_one();
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
        self.draining.set(true);
        for connection in self.connections.borrow().values() {
            connection.watch.kick(Kick::Graceful);
        }
        while self.entering.get() > 0 || !self.connections.borrow().is_empty() {
            self.ended.notified().await;
        }
        self.worker.orphans().grown().await;
    }
}

/// Bytes of a head, and what a connection in HTTP/2 may have.
fn allowed(settings: &Settings) -> (u32, Allowed) {
    let Settings { streams, header_bytes, idle_timeout, .. } = *settings;
    (header_bytes, Allowed { streams, header_bytes, idle_timeout })
}

/// Refuses a connection with a reason. What the client has sent is read and forgotten, as far as it is there: closing a
/// socket with unread bytes would take the answer back.
async fn dismiss(mut stream: TcpStream, answer: Answer) {
    let _ = timeout(SHED, async {
        stream.write_all(&last_answer(answer)).await?;
        stream.shutdown().await?;
        let mut unread = [0; 1024];
        for _ in 0..MOST_UNREAD {
            if stream.read(&mut unread).await? == 0 {
                break;
            }
        }
        io::Result::Ok(())
    })
    .await;
}
