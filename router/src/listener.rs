//! Listeners and their limits: counters that admit or refuse, shared by all worker threads. Opening sockets is here;
//! accepting from them is the worker's.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use arc_swap::ArcSwap;
use bulkhead_crds::router::{Idempotency, Limits};
use bulkhead_process::tls::server::Server;
use bulkhead_routing::table::{TableListener, bytes};
use socket2::{Domain, Protocol, Socket, Type};

use crate::forwarded::Rules;
use crate::front::Front;
use crate::identity::Keys;

/// Connections that the kernel may hold before a worker accepts them.
const BACKLOG: i32 = 4096;

/// What a listener allows, read once from its spec.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    front: Front,
    forwarded: Rules,
    pub(crate) explain: bool,
    /// Where clients' own keys are, if the listener takes any.
    pub(crate) keys: Option<Keys>,
    connections: u32,
    in_flight: u32,
    pub(crate) header_bytes: u32,
    /// Requests under way on one connection in HTTP/2.
    pub(crate) streams: u32,
    buffer_total: u64,
    pub(crate) header_timeout: Duration,
    pub(crate) body_timeout: Duration,
    pub(crate) idle_timeout: Duration,
}

impl Settings {
    pub(crate) fn new(explain: bool, idempotency: Option<&Idempotency>, limits: &Limits) -> Self {
        Self {
            front: Front::default(),
            forwarded: Rules::default(),
            explain,
            keys: idempotency.and_then(Keys::new),
            connections: limits.connections,
            in_flight: limits.in_flight,
            header_bytes: limits.header_bytes,
            streams: limits.streams,
            // The schema lets in sizes alone, of which some are too large for a number.
            buffer_total: bytes(&limits.buffer_total).unwrap_or(u64::MAX),
            header_timeout: limits.header_timeout.get(),
            body_timeout: limits.body_timeout.get(),
            idle_timeout: limits.idle_timeout.get(),
        }
    }

    /// Those of one listener of the table.
    ///
    /// # Errors
    /// What of it cannot be used, so that the listener cannot be as its spec says.
    pub(crate) fn of(spec: &TableListener, tls: Option<Server>) -> Result<Self, String> {
        Ok(Self {
            front: Front::new(tls, spec.proxy_protocol.as_ref())?,
            forwarded: Rules::new(&spec.forwarded)?,
            ..Self::new(spec.explain, spec.idempotency.as_ref(), &spec.limits)
        })
    }

    /// What comes before HTTP.
    pub(crate) fn front(&self) -> &Front {
        &self.front
    }

    pub(crate) fn forwarded(&self) -> &Rules {
        &self.forwarded
    }
}

/// One listener of this process, over all its threads.
pub(crate) struct Listener {
    name: String,
    settings: ArcSwap<Settings>,
    /// Requests under way at most, by its settings.
    room: AtomicU32,
    connections: AtomicU32,
    in_flight: AtomicU32,
}

impl Listener {
    pub(crate) fn new(name: &str, settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            room: AtomicU32::new(settings.in_flight),
            settings: ArcSwap::from_pointee(settings),
            connections: AtomicU32::new(0),
            in_flight: AtomicU32::new(0),
        })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn settings(&self) -> arc_swap::Guard<Arc<Settings>> {
        self.settings.load()
    }

    pub(crate) fn set(&self, settings: Settings) {
        if **self.settings.load() != settings {
            self.room.store(settings.in_flight, Ordering::Relaxed);
            self.settings.store(Arc::new(settings));
        }
    }

    pub(crate) fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// How many requests a cell may have under way before it takes no more of this listener's.
    pub(crate) fn most_in_one_cell(&self, another_serves: impl FnOnce() -> bool) -> u32 {
        most_in_one_cell(self.room.load(Ordering::Relaxed), self.in_flight(), another_serves)
    }

    /// Room for one more connection, given back when the permit goes.
    pub(crate) fn connect(self: &Arc<Self>) -> Option<Permit> {
        Permit::take(self, |listener| &listener.connections, self.settings.load().connections)
    }

    /// Room for one more request.
    pub(crate) fn begin(self: &Arc<Self>, settings: &Settings) -> Option<Permit> {
        Permit::take(self, |listener| &listener.in_flight, settings.in_flight)
    }
}

/// A cell that is ready and hangs must leave room for those that answer: half of what the listener has, while another
/// cell serves. Cells count the requests of all listeners together, so that it holds only while this listener is more
/// than half full.
fn most_in_one_cell(room: u32, in_flight: u32, another_serves: impl FnOnce() -> bool) -> u32 {
    let half = room.div_ceil(2);
    if in_flight > half && another_serves() { half } else { u32::MAX }
}

/// One counted thing of a listener.
pub(crate) struct Permit {
    listener: Arc<Listener>,
    counter: fn(&Listener) -> &AtomicU32,
}

impl Permit {
    fn take(listener: &Arc<Listener>, counter: fn(&Listener) -> &AtomicU32, limit: u32) -> Option<Self> {
        let before = counter(listener).fetch_add(1, Ordering::Relaxed);
        let permit = Self { listener: Arc::clone(listener), counter };
        // Over the limit the permit is dropped here, which takes the count back.
        (before < limit).then_some(permit)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        (self.counter)(&self.listener).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Every listener of this process, and the memory that bodies take on all of them.
#[derive(Default)]
pub(crate) struct Listeners {
    open: RwLock<BTreeMap<String, Arc<Listener>>>,
    /// Those that should be open and are not, and why.
    closed: RwLock<BTreeMap<String, String>>,
    buffered: AtomicU64,
}

impl Listeners {
    pub(crate) fn all(&self) -> Vec<Arc<Listener>> {
        self.open.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(crate) fn insert(&self, listener: Arc<Listener>) {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.insert(listener.name.clone(), listener);
    }

    pub(crate) fn remove(&self, name: &str) {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    pub(crate) fn closed(&self) -> BTreeMap<String, String> {
        self.closed.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_closed(&self, closed: BTreeMap<String, String>) {
        *self.closed.write().unwrap_or_else(PoisonError::into_inner) = closed;
    }

    pub(crate) fn buffered(&self) -> u64 {
        self.buffered.load(Ordering::Relaxed)
    }
}

/// Memory for what one transaction holds (its body, contexts and answers), reserved before it is read and given back
/// when nothing holds it any more.
pub(crate) struct Room {
    listeners: Arc<Listeners>,
    limit: u64,
    held: Cell<u64>,
}

impl Room {
    pub(crate) fn none(listeners: &Arc<Listeners>, settings: &Settings) -> Rc<Self> {
        Rc::new(Self { listeners: Arc::clone(listeners), limit: settings.buffer_total, held: Cell::new(0) })
    }

    /// Makes room for `more` bytes. Whether there is.
    pub(crate) fn grow(&self, more: u64) -> bool {
        let before = self.listeners.buffered.fetch_add(more, Ordering::Relaxed);
        if before.saturating_add(more) > self.limit {
            self.listeners.buffered.fetch_sub(more, Ordering::Relaxed);
            return false;
        }
        self.held.set(self.held.get() + more);
        true
    }

    /// Counts bytes that come whatever room there is, since their transaction was let in: what cells and destinations hand
    /// over. New requests find the less.
    pub(crate) fn count(&self, bytes: usize) -> Counted {
        let bytes = bytes as u64;
        self.listeners.buffered.fetch_add(bytes, Ordering::Relaxed);
        Counted { listeners: Arc::clone(&self.listeners), bytes }
    }

    pub(crate) fn held(&self) -> u64 {
        self.held.get()
    }
}

/// Bytes that are counted for as long as this lives.
pub(crate) struct Counted {
    listeners: Arc<Listeners>,
    bytes: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.listeners.buffered.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.listeners.buffered.fetch_sub(self.held.get(), Ordering::Relaxed);
    }
}

/// Opens one socket for each worker thread on the same address, among which the kernel spreads connections.
///
/// # Errors
/// When the address is taken, by this or another process, or may not be used.
pub(crate) fn open(ip: IpAddr, port: u16, threads: usize) -> io::Result<(SocketAddr, Vec<TcpListener>)> {
    if port != 0 {
        // Sockets that share a port would also share it with another router that was started by mistake; one that
        // shares with nobody finds out.
        socket(SocketAddr::new(ip, port), false)?;
    }
    let first = socket(SocketAddr::new(ip, port), true)?;
    let address = first.local_addr()?;
    let mut sockets = vec![first];
    for _ in 1..threads {
        sockets.push(socket(address, true)?);
    }
    Ok((address, sockets))
}

fn socket(address: SocketAddr, shared: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(connections: u32, buffer_total: &str) -> Settings {
        let limits = Limits { connections, buffer_total: buffer_total.to_owned(), ..Limits::default() };
        Settings::new(false, None, &limits)
    }

    #[test]
    fn permits_end_at_the_limit_and_come_back() {
        let listener = Listener::new("http", settings(2, "1Ki"));
        let (one, two) = (listener.connect(), listener.connect());
        assert!(one.is_some() && two.is_some() && listener.connect().is_none());
        assert_eq!(listener.connections(), 2);
        drop(one);
        assert!(listener.connect().is_some());
    }

    #[test]
    fn memory_is_reserved_up_to_the_total_and_given_back() {
        let listeners = Arc::new(Listeners::default());
        let settings = settings(1, "1Ki");
        let (one, two) = (Room::none(&listeners, &settings), Room::none(&listeners, &settings));
        assert!(one.grow(1000) && !two.grow(100) && two.grow(24));
        drop(one);
        assert_eq!(listeners.buffered(), 24);
        let counted = two.count(2000);
        assert!(!two.grow(1));
        drop(counted);
        assert!(two.grow(1));
        drop(two);
        assert_eq!(listeners.buffered(), 0);
    }

    #[test]
    fn a_cell_takes_half_of_a_listener_that_is_more_than_half_full_while_another_serves() {
        let check = |room, in_flight, another_serves, expected| {
            let most = most_in_one_cell(room, in_flight, || another_serves);
            assert_eq!(most, expected, "{in_flight} of {room}, another serves: {another_serves}");
        };
        check(10, 6, true, 5);
        check(10, 5, true, u32::MAX);
        check(10, 6, false, u32::MAX);
        check(5, 4, true, 3);
        check(1, 1, true, u32::MAX);
    }

    #[test]
    fn a_port_that_somebody_listens_on_is_refused() {
        let ip = IpAddr::from([127, 0, 0, 1]);
        let (address, sockets) = open(ip, 0, 2).expect("a free port is found");
        assert_eq!(sockets.len(), 2);
        let taken = open(ip, address.port(), 1).expect_err("the port is taken");
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }
}
