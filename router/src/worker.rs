//! One worker thread: what it has to itself (pools, budgets, counts), and what it shares with others. It looks the newest
//! table up with one atomic load; what it derives from a table is made when first needed.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arc_swap::{ArcSwap, Cache};
use bulkhead_crds::cell::CellState;
use bulkhead_ledger::Ledger;
use bulkhead_process::{Monotonic, clock};
use bulkhead_protocol::{Reason, TransactionId};
use bulkhead_routing::table::{CellIndex, Rule, RuleId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::egress::EgressPools;
use crate::forbidden::Forbidden;
use crate::listener::Listeners;
use crate::live::{CellLive, PodLive};
use crate::metrics::{CellMetrics, PathMetrics};
use crate::objects::Pod;
use crate::orphans::Orphans;
use crate::owned::Lingering;
use crate::pool::Pool;
use crate::snapshot::Snapshot;
use crate::timers::Timers;
use crate::under_way::UnderWay;
use bulkhead_routing::transaction::Budget;

/// Given-up attempts of one thread whose late words are waited for, and how many bytes each may hold for that: a cell that
/// hangs must not use up the memory of the others.
const MOST_LATE: usize = 1024;
const LATE_UNIT: u64 = 16 * 1024;

/// What all worker threads share. A decision locks nothing here; keys of clients and effects on record take a lock of one
/// among many.
pub(crate) struct Shared {
    pub(crate) current: Arc<ArcSwap<Snapshot>>,
    pub(crate) listeners: Arc<Listeners>,
    pub(crate) metrics: PathMetrics,
    pub(crate) clock: Monotonic,
    /// Tells the health thread of pods that refused a connection; what does not fit is dropped.
    pub(crate) refused: mpsc::Sender<Pod>,
    /// The process is stopping: answers close their connections.
    pub(crate) draining: AtomicBool,
    /// Transactions with keys of their clients' own.
    pub(crate) under_way: Arc<UnderWay>,
    pub(crate) ledger: Ledger,
    #[cfg(feature = "failpoints")]
    pub(crate) before_send: crate::config::BeforeSend,
    /// What cells asked for and may not reach.
    pub(crate) forbidden: Forbidden,
    /// Drains of cells whose time was over.
    pub(crate) drains_over: Arc<AtomicU32>,
}

/// One thread's own.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    newest: RefCell<Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>>>,
    table: RefCell<Rc<LocalTable>>,
    pools: RefCell<HashMap<Pod, Rc<Pool>>>,
    /// Those of which something is under way although there is another in their place.
    former: RefCell<Vec<Rc<Pool>>>,
    budgets: RefCell<HashMap<RuleId, Rc<RefCell<Budget>>>>,
    counts: RefCell<HashMap<Arc<str>, Rc<CellMetrics>>>,
    egress: EgressPools,
    orphans: Orphans,
    lingering: Lingering,
    late: Arc<Semaphore>,
    /// Drains whose end what is under way here has seen.
    drains_seen: Cell<u32>,
    timers: Rc<Timers>,
}

/// A snapshot, with what this thread keeps for its cells.
pub(crate) struct LocalTable {
    pub(crate) snapshot: Arc<Snapshot>,
    cells: Vec<OnceCell<LocalCell>>,
    /// By place of the rule.
    budgets: Vec<OnceCell<Rc<RefCell<Budget>>>>,
}

/// One cell on this thread.
pub(crate) struct LocalCell {
    pub(crate) live: Arc<CellLive>,
    pub(crate) pods: Vec<Rc<Pool>>,
    pub(crate) counts: Rc<CellMetrics>,
}

/// A transaction counted in its rule's budget for as long as this lives.
pub(crate) struct RuleUse {
    budget: Rc<RefCell<Budget>>,
    clock: Monotonic,
}

impl RuleUse {
    pub(crate) fn has_token(&self) -> bool {
        self.budget.borrow().has_token()
    }

    pub(crate) fn take(&self) {
        self.budget.borrow_mut().take();
    }
}

impl Drop for RuleUse {
    fn drop(&mut self) {
        self.budget.borrow_mut().end(self.clock.millis());
    }
}

impl LocalTable {
    fn new(snapshot: Arc<Snapshot>) -> Rc<Self> {
        let cells = std::iter::repeat_with(OnceCell::new).take(snapshot.cells.len()).collect();
        let budgets = std::iter::repeat_with(OnceCell::new).take(snapshot.table.rules().len()).collect();
        Rc::new(Self { snapshot, cells, budgets })
    }
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>) -> Self {
        let newest = RefCell::new(Cache::new(Arc::clone(&shared.current)));
        let table = LocalTable::new(shared.current.load_full());
        let egress = EgressPools::new(shared.clock, shared.metrics.egress.clone());
        let timers = Timers::new(shared.clock);
        Self {
            shared,
            newest,
            table: RefCell::new(table),
            pools: RefCell::default(),
            former: RefCell::default(),
            budgets: RefCell::default(),
            counts: RefCell::default(),
            egress,
            orphans: Orphans::default(),
            lingering: Lingering::default(),
            late: Arc::new(Semaphore::new(MOST_LATE)),
            drains_seen: Cell::new(0),
            timers,
        }
    }

    pub(crate) fn under_way(&self) -> &Arc<UnderWay> {
        &self.shared.under_way
    }

    pub(crate) fn ledger(&self) -> &Ledger {
        &self.shared.ledger
    }

    /// This thread's connections to destinations.
    pub(crate) fn egress(&self) -> &EgressPools {
        &self.egress
    }

    pub(crate) fn forbidden(&self) -> &Forbidden {
        &self.shared.forbidden
    }

    /// Where tests stop a router between the record of a message and its first byte.
    #[cfg(feature = "failpoints")]
    pub(crate) fn before_send(&self) {
        self.shared.before_send.run();
    }

    /// Transactions that go on without their clients.
    pub(crate) fn orphans(&self) -> &Orphans {
        &self.orphans
    }

    /// Transactions at owners that are given up.
    pub(crate) fn lingering(&self) -> &Lingering {
        &self.lingering
    }

    /// Room to wait for what a given-up attempt of so many bytes may still say; none when this thread waits for too many.
    pub(crate) fn late_place(&self, bytes: u64) -> Option<OwnedSemaphorePermit> {
        let weight = bytes / LATE_UNIT + 1;
        Arc::clone(&self.late).try_acquire_many_owned(u32::try_from(weight).ok()?).ok()
    }

    pub(crate) fn timers(&self) -> &Rc<Timers> {
        &self.timers
    }

    pub(crate) fn clock(&self) -> Monotonic {
        self.shared.clock
    }

    pub(crate) fn metrics(&self) -> &PathMetrics {
        &self.shared.metrics
    }

    pub(crate) fn listeners(&self) -> &Arc<Listeners> {
        &self.shared.listeners
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.shared.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn new_transaction(&self) -> TransactionId {
        TransactionId::new_v7(clock::now_unix_millis(), crate::random::bytes())
    }

    /// A pod refused a connection. The health thread hears of it unless it has its hands full, which it then knows of
    /// already.
    pub(crate) fn tell_refused(&self, pod: Pod) {
        let _ = self.shared.refused.try_send(pod);
    }

    /// The newest table.
    pub(crate) fn table(&self) -> Rc<LocalTable> {
        let mut newest = self.newest.borrow_mut();
        let newest = newest.load();
        let mut table = self.table.borrow_mut();
        if !Arc::ptr_eq(newest, &table.snapshot) {
            *table = LocalTable::new(Arc::clone(newest));
        }
        Rc::clone(&table)
    }

    pub(crate) fn is_newest(&self, table: &LocalTable) -> bool {
        Arc::ptr_eq(self.newest.borrow_mut().load(), &table.snapshot)
    }

    /// What this thread keeps for a cell of that table.
    pub(crate) fn cell<'t>(&self, table: &'t LocalTable, index: CellIndex) -> Option<&'t LocalCell> {
        let place = table.cells.get(index.0 as usize)?;
        let live = table.snapshot.live(index)?;
        Some(place.get_or_init(|| LocalCell {
            live: Arc::clone(live),
            pods: table.snapshot.pods(index).iter().map(|pod| self.pool(pod)).collect(),
            counts: self.counts_of(&live.name),
        }))
    }

    fn pool(&self, pod: &Arc<PodLive>) -> Rc<Pool> {
        let mut pools = self.pools.borrow_mut();
        match pools.get(&pod.at) {
            // A pod that went and came back is another one to the health thread.
            Some(pool) if pool.is_of(pod) => Rc::clone(pool),
            _ => {
                let pool = Rc::new(Pool::new(Arc::clone(pod)));
                self.former.borrow_mut().extend(pools.insert(pod.at, Rc::clone(&pool)));
                pool
            }
        }
    }

    fn counts_of(&self, cell: &Arc<str>) -> Rc<CellMetrics> {
        let mut counts = self.counts.borrow_mut();
        if let Some(of) = counts.get(cell) {
            return Rc::clone(of);
        }
        let of = Rc::new(self.shared.metrics.local(cell));
        counts.insert(Arc::clone(cell), Rc::clone(&of));
        of
    }

    /// Counts a transaction in its rule's budget.
    pub(crate) fn use_rule(&self, table: &LocalTable, rule: &Rule) -> RuleUse {
        // By its name it is found where the table before had it in another place.
        let by_name = || Rc::clone(self.budgets.borrow_mut().entry(rule.id.clone()).or_default());
        let budget =
            table.budgets.get(rule.place as usize).map(|place| Rc::clone(place.get_or_init(by_name)));
        let budget = budget.unwrap_or_else(by_name);
        budget.borrow_mut().begin();
        RuleUse { budget, clock: self.shared.clock }
    }

    /// Has the table hold the connections to its pods, also of cells that no request has asked for since it came.
    fn hold_pools(&self, table: &LocalTable) {
        for (index, _) in table.snapshot.table.cells() {
            let is_known = |pod: &Arc<PodLive>| self.pools.borrow().contains_key(&pod.at);
            if table.snapshot.pods(index).iter().any(is_known) {
                self.cell(table, index);
            }
        }
    }

    /// Asks back what is under way in cells that are disabled, and at pods that are gone, and ends what is left in cells
    /// whose drain is over.
    fn ask_back(&self, table: &LocalTable) {
        let moment = table.snapshot.at(self.clock().millis(), clock::now_unix_millis());
        let mut there = HashMap::new();
        for (index, _) in table.snapshot.table.cells() {
            let disabled = moment.weight(index).state == CellState::Disabled;
            let reason = disabled.then_some(Reason::CellDisabled);
            there.extend(table.snapshot.pods(index).iter().map(|pod| (pod.at, reason)));
        }
        let drains_over = self.shared.drains_over.load(Ordering::Acquire);
        let mut asks = self.drains_seen.replace(drains_over) != drains_over;
        for pool in self.pools.borrow().values().chain(&*self.former.borrow()) {
            asks |= pool.set_recalled(there.get(&pool.pod.at).copied().unwrap_or(Some(Reason::PodGone)));
        }
        if asks {
            self.timers.stir();
        }
    }

    /// What happens a few times a second: counts are handed in, and what is no longer needed goes.
    pub(crate) fn sweep(&self) {
        let now = self.clock().millis();
        self.lingering.sweep(self.clock().elapsed());
        let table = self.table();
        self.hold_pools(&table);
        self.ask_back(&table);
        self.egress.sweep(&table.snapshot.destinations);
        self.pools.borrow().values().for_each(|pool| pool.sweep(now));
        for (name, counts) in &*self.counts.borrow() {
            counts.flush();
            let cell = table.snapshot.table.cell_named(name);
            if let Some(live) = cell.and_then(|cell| table.snapshot.live(cell)) {
                counts.tally.hand_in(&live.said);
            }
        }
        // Held by the table or by an attempt under way, else gone.
        self.pools.borrow_mut().retain(|_, pool| Rc::strong_count(pool) > 1);
        self.former.borrow_mut().retain(|pool| Rc::strong_count(pool) > 1);
        self.counts.borrow_mut().retain(|_, counts| Rc::strong_count(counts) > 1);
        let rules = table.snapshot.table.rules().len();
        let mut budgets = self.budgets.borrow_mut();
        if budgets.len() > 2 * rules + 16 {
            budgets.retain(|_, budget| Rc::strong_count(budget) > 1);
        }
    }
}
