//! Opens, changes and closes listeners as the Router object says, while the process runs.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bulkhead_process::Gate;
use bulkhead_routing::table::TableListener;
use tokio::sync::{mpsc, oneshot, watch};

use crate::accept::Command;
use crate::config::Config;
use crate::front::Served;
use crate::listener::{Listener, Listeners, Settings, open};
use crate::snapshot::Snapshot;

/// Between two tries at an address that is taken.
const RETRY: Duration = Duration::from_secs(1);

/// Bound addresses by listener.
pub(crate) type Addresses = BTreeMap<String, SocketAddr>;

/// The workers and what they were told.
pub(crate) struct Listening {
    pub(crate) config: Config,
    pub(crate) listeners: Arc<Listeners>,
    pub(crate) workers: Vec<mpsc::Sender<Command>>,
    pub(crate) addresses: watch::Sender<Addresses>,
    /// Open while any listener is: one that cannot be opened takes no other with it.
    pub(crate) gate: Gate,
}

struct Opened {
    listener: Arc<Listener>,
    /// As the object says, before this process's own choice.
    port: u16,
}

impl Listening {
    /// Follows the tables until they stop coming, from when the cells of the first are known: whoever connects before
    /// would be told that no cell is healthy.
    pub(crate) async fn run(
        self,
        mut tables: watch::Receiver<Arc<Snapshot>>,
        mut cells_known: oneshot::Receiver<()>,
    ) {
        loop {
            let snapshot = Arc::clone(&tables.borrow_and_update());
            let names = snapshot.table.listeners().iter().map(|spec| spec.name.clone());
            let why = |name| (name, "the cells' first answers are waited for".to_owned());
            self.listeners.set_closed(names.map(why).collect());
            tokio::select! {
                known = &mut cells_known => match known {
                    Ok(()) => break,
                    Err(_) => return,
                },
                changed = tables.changed() => if changed.is_err() {
                    return;
                },
            }
        }
        let mut opened = BTreeMap::new();
        loop {
            let snapshot = Arc::clone(&tables.borrow_and_update());
            let closed = self.follow(&snapshot, &mut opened).await;
            match closed.values().next() {
                Some(why) if opened.is_empty() => self.gate.close(why),
                _ => self.gate.open(),
            }
            let all_open = closed.is_empty();
            self.listeners.set_closed(closed);
            tokio::select! {
                changed = tables.changed() => if changed.is_err() {
                    return;
                },
                () = tokio::time::sleep(RETRY), if !all_open => {}
            }
        }
    }

    /// Opens and closes what differs. Gives the listeners that are not open, or not as the object says, and why.
    async fn follow(
        &self,
        snapshot: &Snapshot,
        opened: &mut BTreeMap<String, Opened>,
    ) -> BTreeMap<String, String> {
        let wanted = snapshot.table.listeners();
        let stays =
            |name: &str, had: &Opened| wanted.iter().any(|one| one.name == name && one.port == had.port);
        let gone: Vec<String> =
            opened.iter().filter(|(name, had)| !stays(name, had)).map(|(name, _)| name.clone()).collect();
        for name in gone {
            opened.remove(&name);
            self.close(&name).await;
        }
        let mut closed = BTreeMap::new();
        for spec in wanted {
            if let Err(why) = self.bring(spec, snapshot.servers.get(&spec.name), opened).await {
                closed.insert(spec.name.clone(), why);
            }
        }
        closed
    }

    /// Has one listener be as its spec says.
    ///
    /// # Errors
    /// Why it is not: one whose TLS there is nothing for is closed, one with another fault goes on as it was.
    async fn bring(
        &self,
        spec: &TableListener,
        tls: Option<&Served>,
        opened: &mut BTreeMap<String, Opened>,
    ) -> Result<(), String> {
        let server = tls.and_then(|tls| tls.server.clone());
        if spec.tls.is_some() && server.is_none() {
            // In the clear, or for clients that it should not let in, it is open to nobody.
            if opened.remove(&spec.name).is_some() {
                self.close(&spec.name).await;
            }
            let wrong = tls.and_then(|tls| tls.wrong.clone());
            return Err(wrong.unwrap_or_else(|| format!("listener {} has no certificates yet", spec.name)));
        }
        let name = &spec.name;
        match (opened.get(name), Settings::of(spec, server)) {
            (Some(had), Ok(settings)) => had.listener.set(settings),
            (Some(_), Err(wrong)) => return Err(format!("listener {name} goes on as it was: {wrong}")),
            (None, Err(wrong)) => return Err(format!("listener {name} is not opened: {wrong}")),
            (None, Ok(settings)) => {
                let listener = self.open(spec, settings).await?;
                opened.insert(name.clone(), Opened { listener, port: spec.port });
            }
        }
        Ok(())
    }

    async fn open(&self, spec: &TableListener, settings: Settings) -> Result<Arc<Listener>, String> {
        let port = self.config.port(&spec.name, spec.port);
        let ip = self.config.listen_ip;
        let (address, sockets) = open(ip, port, self.workers.len()).map_err(|error| {
            tracing::error!(%error, listener = spec.name, %ip, port, "the listener cannot be opened; tried again");
            format!("listener {} cannot be opened on {ip}:{port}: {error}", spec.name)
        })?;
        let listener = Listener::new(&spec.name, settings);
        for (worker, socket) in self.workers.iter().zip(sockets) {
            // A worker that is gone ends the process; there is nobody to tell here.
            let _ = worker.send(Command::Open(Arc::clone(&listener), socket)).await;
        }
        tracing::info!(listener = spec.name, %address, "listening");
        self.listeners.insert(Arc::clone(&listener));
        self.addresses.send_modify(|addresses| {
            addresses.insert(spec.name.clone(), address);
        });
        Ok(listener)
    }

    async fn close(&self, name: &str) {
        tracing::info!(listener = name, "no longer listening");
        for worker in &self.workers {
            let _ = worker.send(Command::Close(name.to_owned())).await;
        }
        self.listeners.remove(name);
        self.addresses.send_modify(|addresses| {
            addresses.remove(name);
        });
    }
}
