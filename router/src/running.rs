//! A router from its start to its end: threads and what joins them, readiness, and the drain.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, anyhow};
use arc_swap::ArcSwap;
use bulkhead_ledger::{Ledger, Options, SystemClock};
use bulkhead_process::{Admin, Gate, Monotonic, Readiness, Shutdown};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::accept::{self, Command};
use crate::admin;
use crate::builder::Builder;
use crate::config::{Config, Source};
use crate::egress::{Bounds, EgressReadings};
use crate::forbidden::Forbidden;
use crate::health::{self, Starting};
use crate::ledger_admin;
use crate::listener::Listeners;
use crate::listening::{Addresses, Listening};
use crate::metrics::{HealthMetrics, PathMetrics, Readings, TableMetrics};
use crate::objects::Pod;
use crate::snapshot::Snapshot;
use crate::source::{Freshness, watch_folder, watch_kubernetes};
use crate::threads::{Thread, spawn};
use crate::tunnel::Tunnels;
use crate::worker::{Shared, Worker};

/// Changes that may wait for the builder before the watches wait for it.
const CHANGES: usize = 4096;
/// Refused pods that may wait for the health thread.
const REFUSED: usize = 1024;
/// Commands that may wait for a worker.
const COMMANDS: usize = 64;
/// How long threads may take to end after they were told.
const END: Duration = Duration::from_secs(5);

/// A router that was started.
pub struct Running {
    admin: SocketAddr,
    connect: Option<SocketAddr>,
    addresses: watch::Receiver<Addresses>,
    ended: tokio::task::JoinHandle<anyhow::Result<()>>,
}

impl Running {
    /// Where probes, metrics and `/v1/serving` are.
    pub fn admin_address(&self) -> SocketAddr {
        self.admin
    }

    /// Where cells ask for tunnels, if they may.
    pub fn connect_address(&self) -> Option<SocketAddr> {
        self.connect
    }

    /// Where the listener of that name is, once it is open.
    ///
    /// # Errors
    /// When the router ended before it was opened.
    pub async fn address(&self, listener: &str) -> anyhow::Result<SocketAddr> {
        let mut addresses = self.addresses.clone();
        let open = addresses.wait_for(|open| open.contains_key(listener)).await;
        let open = open.map_err(|_| anyhow!("the router ended before {listener} was open"))?;
        open.get(listener).copied().with_context(|| format!("{listener} is not open"))
    }

    /// Waits for the end, which comes after the shutdown that it was started with was drained.
    ///
    /// # Errors
    /// When a thread ended before it should.
    pub async fn ended(self) -> anyhow::Result<()> {
        self.ended.await.context("the router's own task failed")?
    }
}

/// Runs a router until the shutdown, and its drain, are over.
///
/// # Errors
/// When it cannot start, or a thread ends before it should.
pub async fn run(config: Config, shutdown: Shutdown) -> anyhow::Result<()> {
    start(config, shutdown).await?.ended().await
}

/// Starts a router. It listens once the cells of its first table have answered, or their time is over.
///
/// # Errors
/// When the admin address is taken, or the system gives no threads.
pub async fn start(config: Config, shutdown: Shutdown) -> anyhow::Result<Running> {
    let clock = Monotonic::start();
    let admin_socket = TcpListener::bind(config.admin_address)
        .await
        .with_context(|| format!("the admin address {} cannot be used", config.admin_address))?;
    let admin = admin_socket.local_addr()?;
    let connect_socket = bind_tunnels(&config).await?;
    let connect = connect_socket.as_ref().map(TcpListener::local_addr).transpose()?;
    let (refused, to_health) = mpsc::channel(REFUSED);
    let shared = Arc::new(Shared {
        current: Arc::new(ArcSwap::from_pointee(Snapshot::default())),
        listeners: Arc::new(Listeners::default()),
        metrics: PathMetrics::register(&config.registry)?,
        clock,
        refused,
        draining: AtomicBool::new(false),
        under_way: Arc::default(),
        ledger: ledger(&config)?,
        forbidden: Forbidden::default(),
        drains_over: Arc::default(),
        #[cfg(feature = "failpoints")]
        before_send: config.before_send.clone(),
    });
    let readiness = Readiness::new();
    let running = readiness.gate("running");
    running.open();
    let (addresses, bound) = watch::channel(Addresses::new());
    let stop = Shutdown::new();
    let mut helpers = feeders(&config, &shared, &readiness, to_health, &stop)?;
    let (workers, mut worker_threads) = workers(&config, &shared, &stop)?;
    let drain_tunnels = Shutdown::new();
    if let Some(socket) = connect_socket {
        worker_threads.push(tunnels(socket, &shared, drain_tunnels.clone(), &stop)?);
    }
    let listening = Listening {
        config: config.clone(),
        listeners: Arc::clone(&shared.listeners),
        workers: workers.clone(),
        addresses,
        gate: readiness.gate("listeners"),
    };
    let listening = listening.run(helpers.tables, helpers.cells_known);
    helpers.threads.push(administration(admin_socket, &config, &shared, &readiness, listening, &stop)?);
    let process = Process { config, shutdown, stop, running, shared, workers, drain_tunnels };
    let ended = tokio::spawn(process.run(helpers.threads, worker_threads));
    Ok(Running { admin, connect, addresses: bound, ended })
}

/// The ledger, read before anything listens.
fn ledger(config: &Config) -> anyhow::Result<Ledger> {
    let clock = SystemClock::start();
    let mut options = Options::new(config.ledger_dir.clone().unwrap_or_default());
    options.window = config.ledger_window;
    let ledger = match &config.ledger_dir {
        None => Ledger::volatile(&options, clock)?,
        Some(folder) => {
            let opened = Ledger::open(&options, clock);
            let (ledger, recovery) =
                opened.with_context(|| format!("the ledger in {} cannot be used", folder.display()))?;
            tracing::info!(?recovery, "the ledger is read");
            ledger
        }
    };
    ledger.register(&config.registry)?;
    Ok(ledger)
}

/// Threads that feed the request path, and the tables that they make.
struct Feeders {
    threads: Vec<Thread>,
    tables: watch::Receiver<Arc<Snapshot>>,
    cells_known: oneshot::Receiver<()>,
}

fn feeders(
    config: &Config,
    shared: &Arc<Shared>,
    readiness: &Readiness,
    refused: mpsc::Receiver<Pod>,
    stop: &Shutdown,
) -> anyhow::Result<Feeders> {
    let clock = shared.clock;
    let freshness = Freshness::new(clock);
    let registry = &config.registry;
    Readings::register(registry, Arc::clone(shared), freshness.clone())?;
    EgressReadings::register(registry, Arc::clone(&shared.current))?;
    let (changes, to_builder) = mpsc::channel(CHANGES);
    let (published, tables) = watch::channel(Arc::new(Snapshot::default()));
    let bounds = Bounds {
        cluster_networks: config.cluster_networks.clone(),
        // Who writes a folder has the machine anyway.
        no_loopback: matches!(config.source, Source::Kubernetes),
    };
    let builder = Builder {
        router: config.router.clone(),
        table_file: config.table_file.clone(),
        fenced: matches!(config.source, Source::Kubernetes),
        tls_dir: config.tls_dir.clone(),
        bounds,
        clock,
        current: Arc::clone(&shared.current),
        published,
        drains_over: Arc::clone(&shared.drains_over),
        gate: readiness.gate("table"),
        metrics: TableMetrics::register(registry)?,
    };
    let (answered, cells_known) = oneshot::channel();
    let starting = Starting::new(readiness.gate("health"), answered);
    let metrics = HealthMetrics::register(registry)?;
    let to_health = tables.clone();
    let threads = vec![
        match config.source.clone() {
            Source::Folder(folder) => {
                spawn("bulkhead-files", stop.clone(), move || watch_folder(folder, changes))?
            }
            Source::Kubernetes => {
                let kubeconfig = config.kubeconfig.clone();
                spawn("bulkhead-watch", stop.clone(), move || {
                    watch_kubernetes(kubeconfig, changes, freshness)
                })?
            }
        },
        spawn("bulkhead-table", stop.clone(), move || builder.run(to_builder))?,
        spawn("bulkhead-health", stop.clone(), move || {
            health::run(to_health, refused, starting, metrics, clock)
        })?,
    ];
    Ok(Feeders { threads, tables, cells_known })
}

type Workers = (Vec<mpsc::Sender<Command>>, Vec<Thread>);

fn workers(config: &Config, shared: &Arc<Shared>, stop: &Shutdown) -> anyhow::Result<Workers> {
    let (mut senders, mut threads) = (vec![], vec![]);
    for number in 0..config.thread_count() {
        let (commands, to_worker) = mpsc::channel(COMMANDS);
        let shared = Arc::clone(shared);
        let work = move || async move {
            accept::run(Rc::new(Worker::new(shared)), to_worker).await;
            Ok(())
        };
        threads.push(spawn(&format!("bulkhead-worker-{number}"), stop.clone(), work)?);
        senders.push(commands);
    }
    Ok((senders, threads))
}

async fn bind_tunnels(config: &Config) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = config.connect_address else { return Ok(None) };
    let bound = TcpListener::bind(address).await;
    bound.map(Some).with_context(|| format!("the connect address {address} cannot be used"))
}

/// The thread of tunnels out of cells. It drains when workers do.
fn tunnels(socket: TcpListener, shared: &Shared, drain: Shutdown, stop: &Shutdown) -> anyhow::Result<Thread> {
    let tunnels = Tunnels {
        current: Arc::clone(&shared.current),
        metrics: shared.metrics.clone(),
        forbidden: shared.forbidden.clone(),
    };
    let socket = socket.into_std()?;
    Ok(spawn("bulkhead-tunnels", stop.clone(), move || async move {
        tunnels.run(TcpListener::from_std(socket)?, drain).await;
        Ok(())
    })?)
}

/// The thread of the admin server, which opens listeners too.
fn administration(
    socket: TcpListener,
    config: &Config,
    shared: &Arc<Shared>,
    readiness: &Readiness,
    listening: impl Future<Output = ()> + Send + 'static,
    stop: &Shutdown,
) -> anyhow::Result<Thread> {
    let routes = admin::routes(admin::Source {
        router: config.router.clone(),
        pod: config.pod_name.clone(),
        shared: Arc::clone(shared),
    })
    .merge(ledger_admin::routes(shared.ledger.clone()));
    let admin = Admin { registry: config.registry.clone(), readiness: readiness.clone(), routes };
    let socket = socket.into_std()?;
    let until = stop.clone();
    Ok(spawn("bulkhead-admin", stop.clone(), move || async move {
        let socket = TcpListener::from_std(socket)?;
        let (served, ()) = tokio::join!(bulkhead_process::admin::serve(socket, admin, until), listening);
        Ok(served?)
    })?)
}

/// What ends the process, and how.
struct Process {
    config: Config,
    shutdown: Shutdown,
    stop: Shutdown,
    running: Gate,
    shared: Arc<Shared>,
    workers: Vec<mpsc::Sender<Command>>,
    drain_tunnels: Shutdown,
}

/// Where the runtime that it was started on ends first, nobody else tells its threads.
impl Drop for Process {
    fn drop(&mut self) {
        self.stop.trigger();
    }
}

impl Process {
    async fn run(self, helpers: Vec<Thread>, workers: Vec<Thread>) -> anyhow::Result<()> {
        let mut helpers: FuturesUnordered<_> = helpers.into_iter().map(Thread::ended).collect();
        let mut workers: FuturesUnordered<_> = workers.into_iter().map(Thread::ended).collect();
        let early = tokio::select! {
            () = self.shutdown.requested() => None,
            Some(ended) = helpers.next() => Some(ended),
            Some(ended) = workers.next() => Some(ended),
        };
        let ended = match early {
            Some(ended) => {
                self.stop.trigger();
                ended.and_then(|()| Err(anyhow!("a thread ended before the router was asked to")))
            }
            None => {
                self.drain(&mut workers).await;
                self.stop.trigger();
                let _ = timeout(END, async { while helpers.next().await.is_some() {} }).await;
                Ok(())
            }
        };
        // It waits for the disk, and for nobody who still writes.
        let ledger = self.shared.ledger.clone();
        tokio::task::spawn_blocking(move || ledger.close()).await?;
        ended
    }

    /// Not ready at once; then, when those who send here have had time to notice, no new connections; then the end of
    /// what is under way.
    async fn drain<F: Future>(&self, workers: &mut FuturesUnordered<F>) {
        self.running.close("the router is stopping");
        self.shared.draining.store(true, Ordering::Relaxed);
        tokio::time::sleep(self.config.drain_delay).await;
        self.drain_tunnels.trigger();
        let within = self.shared.current.load().about.drain_timeout;
        for worker in &self.workers {
            // A worker that is gone has nothing to drain.
            let _ = worker.send(Command::Drain { within }).await;
        }
        let _ = timeout(within + END, async { while workers.next().await.is_some() {} }).await;
    }
}
