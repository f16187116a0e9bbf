//! Health on its own thread: a stream to every pod of every cell, what they say put through the state machine of
//! `routing`, and the verdicts into the atomics that the request path reads. It asks nobody else.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bulkhead_process::{Gate, Monotonic, clock};
use bulkhead_protocol::HealthLine;
use bulkhead_routing::health::{Doubt, Effect, Event, Fleet, Pod as PodName};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::live::{CellLive, CellReport, PodLive};
use crate::load::Load;
use crate::metrics::HealthMetrics;
use crate::objects::Pod;
use crate::snapshot::Snapshot;
use crate::stream;

/// Between two looks for silence.
const TICK: Duration = Duration::from_millis(50);
/// Ticks between two looks at evidence: as often as threads hand in what they have.
const TICKS_A_LOOK: u32 = 5;

/// One cell as this thread knows it.
struct Watched {
    live: Arc<CellLive>,
    pods: HashMap<PodName, WatchedPod>,
    load: Load,
}

struct WatchedPod {
    live: Arc<PodLive>,
    task: JoinHandle<()>,
}

/// Who waits for the first answers of the cells.
pub(crate) struct Starting {
    gate: Gate,
    cells_known: Option<oneshot::Sender<()>>,
    has_table: bool,
}

impl Starting {
    pub(crate) fn new(gate: Gate, cells_known: oneshot::Sender<()>) -> Self {
        Self { gate, cells_known: Some(cells_known), has_table: false }
    }

    fn end(&mut self) {
        if let Some(cells_known) = self.cells_known.take() {
            self.gate.open();
            // Who listens may have ended already, which ends this thread too.
            let _ = cells_known.send(());
        }
    }
}

/// What the streams, the ticks and the tables share on this one thread.
struct State {
    fleet: Fleet,
    cells: HashMap<Arc<str>, Watched>,
    snapshot: Arc<Snapshot>,
    metrics: HealthMetrics,
    clock: Monotonic,
}

/// Runs until the tables stop coming. Needs a current-thread runtime with a `LocalSet`.
///
/// # Errors
/// Never: what goes wrong is some pod's and ends in a verdict.
pub(crate) async fn run(
    mut tables: watch::Receiver<Arc<Snapshot>>,
    mut refused: mpsc::Receiver<Pod>,
    mut starting: Starting,
    metrics: HealthMetrics,
    clock: Monotonic,
) -> anyhow::Result<()> {
    let (fleet, snapshot) = (Fleet::default(), Arc::default());
    let state = State { fleet, cells: HashMap::new(), snapshot, metrics, clock };
    let state = Rc::new(RefCell::new(state));
    let mut ticks = 0_u32;
    let mut planned = clock.millis();
    loop {
        tokio::select! {
            changed = tables.changed() => {
                if changed.is_err() {
                    return Ok(());
                }
                let snapshot = Arc::clone(&tables.borrow_and_update());
                starting.has_table |= snapshot.version > 0;
                sync(&state, &snapshot);
            }
            Some(pod) = refused.recv() => state.borrow_mut().refused(pod),
            () = tokio::time::sleep_until(clock.at_millis(planned).into()) => {
                // What the sockets hold already is read before anybody is called silent.
                tokio::task::yield_now().await;
                tokio::task::yield_now().await;
                let now = clock.millis();
                state.borrow_mut().tick(now.saturating_sub(planned));
                ticks = (ticks + 1) % TICKS_A_LOOK;
                if ticks == 0 {
                    state.borrow_mut().look();
                }
                planned = now + TICK.as_millis() as u64;
            }
        }
        if starting.has_table && state.borrow().fleet.is_answered(clock.millis()) {
            starting.end();
        }
    }
}

/// Takes the cells and pods of a new table.
fn sync(state: &Rc<RefCell<State>>, snapshot: &Arc<Snapshot>) {
    let mut guard = state.borrow_mut();
    guard.snapshot = Arc::clone(snapshot);
    let now = guard.clock.millis();
    guard.fleet.sync(snapshot.table.cells().map(|(_, cell)| &cell.name), now);
    let names: HashSet<&Arc<str>> = snapshot.table.cells().map(|(_, cell)| &cell.name).collect();
    guard.cells.retain(|name, watched| {
        let stays = names.contains(name);
        if !stays {
            watched.pods.values().for_each(|pod| pod.task.abort());
        }
        stays
    });
    let moment = snapshot.at(now, clock::now_unix_millis());
    for (index, cell) in snapshot.table.cells() {
        let Some(live) = snapshot.live(index) else { continue };
        let watched = guard.cells.entry(Arc::clone(&cell.name)).or_insert_with(|| Watched {
            live: Arc::clone(live),
            pods: HashMap::new(),
            load: Load::default(),
        });
        watched.live = Arc::clone(live);
        watched.load.set_capacity(cell.capacity.clone());
        let wanted: HashMap<PodName, &Arc<PodLive>> =
            snapshot.pods(index).iter().map(|pod| (name_of(pod.at), pod)).collect();
        let gone: Vec<PodName> =
            watched.pods.keys().filter(|pod| !wanted.contains_key(*pod)).cloned().collect();
        for pod in gone {
            if let Some(watched) = guard.cells.get_mut(&cell.name)
                && let Some(stream) = watched.pods.remove(&pod)
            {
                stream.task.abort();
            }
            guard.event(&cell.name, Event::PodRemoved(pod));
        }
        for (pod, live) in wanted {
            guard.add(state, &cell.name, pod, live);
        }
        let shifted = moment.weight(index).operator_shift;
        guard.event(&cell.name, Event::OperatorShift(shifted));
    }
}

/// A pod is told apart by where its traffic goes.
fn name_of(pod: Pod) -> PodName {
    pod.traffic.to_string().into()
}

impl State {
    fn add(&mut self, shared: &Rc<RefCell<Self>>, cell: &Arc<str>, pod: PodName, live: &Arc<PodLive>) {
        let Some(watched) = self.cells.get_mut(cell) else { return };
        if let Some(known) = watched.pods.get(&pod)
            && known.live.at == live.at
        {
            return;
        }
        let reader = Reader {
            state: Rc::clone(shared),
            cell: Arc::clone(cell),
            pod: Arc::clone(&pod),
            of_another: Cell::new(false),
        };
        let stream = stream::follow(live.connectors(), live.at.health, reader);
        let task = tokio::task::spawn_local(stream);
        if let Some(before) =
            watched.pods.insert(Arc::clone(&pod), WatchedPod { live: Arc::clone(live), task })
        {
            before.task.abort();
        }
        self.event(cell, Event::PodAdded(pod));
    }

    /// Takes what a line says of the cell's load, which is the cell's only if the pod is.
    fn hear(&mut self, reader: &Reader, line: &HealthLine) {
        let (Some(health), Some(watched)) = (self.fleet.get(&reader.cell), self.cells.get_mut(&reader.cell))
        else {
            return;
        };
        watched.load.retain(|pod| health.hears(pod) && *pod != reader.pod);
        if !reader.of_another.get() {
            if let (HealthLine::Verdict(verdict), Some(pod)) = (line, watched.pods.get(&reader.pod)) {
                pod.live.set_contexts(&verdict.context_versions);
            }
            let mine = watched.live.in_flight();
            watched.live.set_allowance(watched.load.hear(&reader.pod, line, mine));
        }
    }

    /// A connection for a request was refused.
    fn refused(&mut self, pod: Pod) {
        let name = name_of(pod);
        let of: Vec<Arc<str>> = self
            .cells
            .iter()
            .filter(|(_, cell)| cell.pods.contains_key(&name))
            .map(|(cell, _)| Arc::clone(cell))
            .collect();
        for cell in of {
            self.event(&cell, Event::Refused(Arc::clone(&name)));
        }
    }

    fn event(&mut self, cell: &Arc<str>, event: Event) {
        let now = self.clock.millis();
        let effects = self.fleet.event(cell, event, now);
        self.show(cell);
        for effect in effects {
            self.tell(cell, &effect);
        }
    }

    fn tick(&mut self, late_ms: u64) {
        let now = self.clock.millis();
        let (doubt, effects) = self.fleet.tick(late_ms, now);
        if let Doubt::ObserverStalled { began: true } = doubt {
            self.metrics.stalled.inc();
            tracing::warn!(reason = "ObserverStalled", "every cell fell silent at once; verdicts are held");
        }
        for (cell, effect) in effects {
            self.show(&cell);
            self.tell(&cell, &effect);
        }
        // A cell that was never heard is out once its time is over, and that is no effect of its own.
        let unheard: Vec<Arc<str>> = self
            .cells
            .iter()
            .filter(|(_, cell)| cell.live.report().reason == "NotHeardYet")
            .map(|(name, _)| Arc::clone(name))
            .collect();
        for cell in unheard {
            self.show(&cell);
        }
    }

    /// Looks at what requests said of cells.
    fn look(&mut self) {
        let Self { fleet, snapshot, clock, .. } = self;
        let said = |index| snapshot.live(index).map(|live| live.said.take()).unwrap_or_default();
        let effects = fleet.look(&snapshot.table, said, clock.millis());
        for (cell, effect) in effects {
            self.show(&cell);
            self.tell(&cell, &effect);
        }
        self.snapshot.any_doubt.store(self.fleet.doubts_any(), Ordering::Relaxed);
    }

    /// Puts what is known of the cell where the request path and the admin server see it.
    fn show(&self, cell: &Arc<str>) {
        let (Some(state), Some(watched)) = (self.fleet.get(cell), self.cells.get(cell)) else { return };
        let usable: HashSet<&PodName> = state.usable_pods().collect();
        for (name, pod) in &watched.pods {
            pod.live.set_usable(usable.contains(name));
        }
        watched.live.set_in(state.is_in(), state.ramp_start_ms());
        watched.live.set_suspected(state.suspected());
        watched.live.set_report(CellReport {
            reason: state.reason().to_owned(),
            message: state.case().map_or_else(|| watched.load.message().to_owned(), ToString::to_string),
            pods: u32::try_from(usable.len()).unwrap_or(u32::MAX),
        });
    }

    fn tell(&self, cell: &Arc<str>, effect: &Effect) {
        let to = match effect {
            Effect::In => {
                tracing::info!(cell = &**cell, "the cell is in");
                "in"
            }
            Effect::Out { reason } => {
                tracing::warn!(cell = &**cell, reason, "the cell is out");
                "out"
            }
            Effect::Suspected { case, for_ms } => {
                let (reason, seconds) = (case.fault().as_str(), for_ms / 1_000);
                tracing::warn!(
                    cell = &**cell,
                    reason,
                    seconds,
                    "the cell is suspected, and gets nothing where enough others are left: {case}"
                );
                "suspect"
            }
            Effect::LetBack => {
                tracing::info!(cell = &**cell, "the cell is suspected no longer, and comes back by steps");
                return;
            }
            Effect::PodsChanged | Effect::Moved => return,
        };
        self.metrics.transitions.with_label_values(&[&**cell, to]).inc();
    }
}

/// Takes what one stream brings.
pub(crate) struct Reader {
    state: Rc<RefCell<State>>,
    cell: Arc<str>,
    pod: PodName,
    /// The pod said that it is of another cell; its address was the cell's before.
    of_another: Cell<bool>,
}

impl Reader {
    pub(crate) fn line(&self, line: HealthLine) {
        if let HealthLine::Verdict(verdict) = &line {
            self.of_another.set(*verdict.cell != *self.cell);
        }
        let mut state = self.state.borrow_mut();
        state.hear(self, &line);
        let event = match line {
            HealthLine::Verdict(verdict) if self.of_another.get() => {
                tracing::warn!(
                    cell = &*self.cell,
                    pod = &*self.pod,
                    says = verdict.cell,
                    "the pod is of another cell"
                );
                let pod = Arc::clone(&self.pod);
                Event::Verdict { pod, ready: false, reason: "WrongCell".to_owned(), ready_for_ms: 0 }
            }
            line => Event::from_line(Arc::clone(&self.pod), line),
        };
        state.event(&self.cell, event);
    }

    pub(crate) fn refused(&self) {
        self.state.borrow_mut().event(&self.cell, Event::Refused(Arc::clone(&self.pod)));
    }

    /// This router could not even ask, by its own fault.
    pub(crate) fn deaf(&self) {
        self.state.borrow_mut().event(&self.cell, Event::Deaf(Arc::clone(&self.pod)));
    }

    /// No connection, or nothing on it for too long.
    pub(crate) fn silent(&self) {
        self.state.borrow_mut().event(&self.cell, Event::Silence(Arc::clone(&self.pod)));
    }

    pub(crate) fn ended(&self) {
        self.state.borrow_mut().event(&self.cell, Event::StreamEnded(Arc::clone(&self.pod)));
    }
}
