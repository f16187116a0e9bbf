//! The thread that owns the objects and makes tables of them: changes in, whole snapshots out. It never waits for the
//! request path or the disk, and the request path never for it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use bulkhead_process::{Gate, Monotonic, clock};
use bulkhead_protocol::serving::ObjectVersion;
use bulkhead_routing::table::{History, Inputs, Table, build};
use kube::ResourceExt;
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};

use crate::cell_tls::CellCertificates;
use crate::disk::Disk;
use crate::drains::Drains;
use crate::egress;
use crate::front::ListenerCertificates;
use crate::live::Registry;
use crate::metrics::TableMetrics;
use crate::names::Names;
use crate::objects::{Change, Objects, Pod, Touched, version};
use crate::owned::Owners;
use crate::pace::Pace;
use crate::retired::Retired;
use crate::snapshot::{About, Snapshot};

/// How long an API server may take at the start before the table on disk serves.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a table older than the one served is refused, in milliseconds.
const REFUSE_OLDER_MS: u64 = 60_000;
/// Between two looks at what waits for time to pass.
const TICK: Duration = Duration::from_millis(250);

/// What the builder works with and for.
pub(crate) struct Builder {
    pub(crate) router: String,
    pub(crate) table_file: Option<PathBuf>,
    /// Whether an operator settles generations of policies, so that `owner` rules can wait for it.
    pub(crate) fenced: bool,
    pub(crate) tls_dir: Option<PathBuf>,
    pub(crate) bounds: egress::Bounds,
    pub(crate) clock: Monotonic,
    /// Where the request path finds the snapshot.
    pub(crate) current: Arc<ArcSwap<Snapshot>>,
    /// Tells health, listeners and the readiness gate of it.
    pub(crate) published: watch::Sender<Arc<Snapshot>>,
    /// Counts drains whose time is over, so that workers look who is to end.
    pub(crate) drains_over: Arc<AtomicU32>,
    /// Opens with the first table.
    pub(crate) gate: Gate,
    pub(crate) metrics: TableMetrics,
}

/// What the builder remembers between tables.
#[derive(Default)]
struct Memory {
    /// Copied by a change only while the table file is made of them.
    objects: Arc<Objects>,
    /// Changes not yet in a table.
    pending: Touched,
    pace: Pace,
    retired: Retired<Snapshot>,
    registry: Registry,
    drains: Drains,
    names: Names,
    destinations: egress::Registry,
    listeners: ListenerCertificates,
    cell_tls: CellCertificates,
    table: Arc<Table>,
    about: Arc<About>,
    owners: Owners,
    version: u64,
    /// Generation served of each object, by UID.
    generations: HashMap<String, i64>,
    older_since_ms: Option<u64>,
    disk: Option<Disk>,
    /// What the disk had at the start, for as long as nothing else could be served.
    on_disk: Option<Objects>,
}

impl Memory {
    fn take(&mut self, change: Change) {
        self.pending = self.pending.and(change(Arc::make_mut(&mut self.objects)));
    }

    /// Takes what the disk had, once it is read.
    fn recall(&mut self) {
        let Some(objects) = self.disk.as_mut().and_then(Disk::last) else { return };
        let recalled = Arc::make_mut(&mut self.objects).owners.recall(objects.owners.clone());
        self.pending = self.pending.and(Touched::TABLE.when(recalled));
        self.on_disk = Some(objects);
    }

    /// Puts policies' new weights into the table, which has all else as it is. Whether that was possible.
    fn reweigh(&mut self, objects: &Objects) -> bool {
        let served =
            |version: &ObjectVersion| self.generations.get(&version.uid) == Some(&version.generation);
        let policies = objects.policies.items().iter().map(|policy| (policy, version(policy)));
        let edited: Vec<_> = policies.filter(|(_, (_, version))| !served(version)).collect();
        let policies: Vec<_> = edited.iter().map(|(policy, _)| *policy).collect();
        let Some(table) = self.table.reweighed(&policies) else { return false };
        let about = Arc::make_mut(&mut self.about);
        about.built_unix_ms = clock::now_unix_millis();
        for (_, (name, version)) in edited {
            self.generations.insert(version.uid.clone(), version.generation);
            about.objects.insert(name, version);
        }
        self.table = Arc::new(table);
        true
    }
}

impl Builder {
    /// Runs until the sources are gone.
    ///
    /// # Errors
    /// Never: what goes wrong with a table leaves the one before in force.
    pub(crate) async fn run(self, mut changes: mpsc::Receiver<Change>) -> anyhow::Result<()> {
        let (path, failures) = (self.table_file.clone(), &self.metrics.write_failures);
        let disk = path.map(|path| Disk::new(path, self.router.clone(), failures.clone()));
        let destinations = egress::Registry::new(self.tls_dir.clone(), self.bounds.clone());
        let listeners = ListenerCertificates::new(self.tls_dir.clone());
        let cell_tls = CellCertificates::new(self.tls_dir.clone());
        let mut memory = Memory { disk, destinations, listeners, cell_tls, ..Memory::default() };
        loop {
            match timeout(TICK, changes.recv()).await {
                Ok(None) => return Ok(()),
                Ok(Some(first)) => {
                    memory.take(first);
                    sleep(memory.pace.gathers(self.clock.elapsed())).await;
                    while let Ok(change) = changes.try_recv() {
                        memory.take(change);
                    }
                }
                Err(_) => {}
            }
            self.pass(&mut memory).await;
            let now = self.clock.millis();
            if memory.pending.any() && memory.objects.complete() && !self.refuses(&mut memory, now) {
                let objects = Arc::clone(&memory.objects);
                let published = self.publish(&mut memory, &objects, false).await;
                memory.pending = Touched::default();
                if let Some(disk) = memory.disk.as_mut().filter(|_| published) {
                    disk.changed();
                }
            }
            self.look_at_drains(&mut memory);
            // What is pending is not what is served.
            if let Some(disk) = memory.disk.as_mut().filter(|_| !memory.pending.any()) {
                disk.write(&memory.objects, now);
            }
        }
    }

    /// What happens because time passes, however many changes come meanwhile.
    async fn pass(&self, memory: &mut Memory) {
        let now = self.clock.millis();
        let certificates =
            memory.destinations.refresh(now) | memory.listeners.refresh(now) | memory.cell_tls.refresh(now);
        if memory.names.refresh(now) | certificates {
            memory.pending = memory.pending.and(Touched::ENDPOINTS);
        }
        memory.recall();
        memory.retired.free();
        if memory.objects.complete() {
            memory.on_disk = None;
        }
        let waited = u128::from(now) >= PATIENCE.as_millis();
        if waited
            && memory.version == 0
            && let Some(objects) = memory.on_disk.take()
        {
            tracing::warn!("the API server does not answer; serving the last table from disk");
            memory.pending = memory.pending.and(Touched::TABLE);
            self.publish(memory, &objects, true).await;
        }
    }

    /// Each table is looked at, and each a few times a second, since shifts expire.
    fn look_at_drains(&self, memory: &mut Memory) {
        let (snapshot, now) = (self.current.load(), self.clock.millis());
        let moment = snapshot.at(now, clock::now_unix_millis());
        let cells = snapshot.table.cells().filter_map(|(index, _)| {
            let is_drained = moment.weight(index).percent == 0;
            snapshot.live(index).map(|live| (live, is_drained))
        });
        if memory.drains.look(cells, snapshot.about.drain_timeout, now) {
            self.drains_over.fetch_add(1, Ordering::Release);
        }
    }

    /// Whether what was told is older than what is served, as after a restore of the API server, and for how long that
    /// was so. After a minute it is taken: the cluster may well have been restored.
    fn refuses(&self, memory: &mut Memory, now: u64) -> bool {
        let served = &memory.generations;
        let is_older =
            |version: &ObjectVersion| served.get(&version.uid).is_some_and(|at| version.generation < *at);
        let older = memory.objects.versions().find(|(_, version)| is_older(version));
        let Some((name, _)) = older else {
            memory.older_since_ms = None;
            return false;
        };
        let since = *memory.older_since_ms.get_or_insert_with(|| {
            self.metrics.older_refused.inc();
            tracing::warn!(
                object = name,
                "what the API server says is older than what is served; refused for a minute"
            );
            now
        });
        if now - since < REFUSE_OLDER_MS {
            return true;
        }
        tracing::warn!("the older objects are taken: the API server may have been restored from a backup");
        self.metrics.older_taken.inc();
        memory.older_since_ms = None;
        memory.generations.clear();
        memory.pending = memory.pending.and(Touched::TABLE);
        false
    }

    /// Makes a snapshot of the objects and puts it in force. Whether there was one to make.
    async fn publish(&self, memory: &mut Memory, objects: &Objects, from_disk: bool) -> bool {
        let mut token = None;
        let Some(router) = objects.routers.items().iter().find(|router| router.name_any() == self.router)
        else {
            tracing::warn!(router = self.router, "there is no Router of this name; the last table stays");
            return false;
        };
        let anew =
            memory.pending.table || memory.about.bad != objects.bad || memory.about.from_disk != from_disk;
        let began = self.clock.elapsed();
        if anew || (memory.pending.weights && !memory.reweigh(objects)) {
            let mut built = build(&Inputs {
                router,
                cells: objects.cells.items().iter().collect(),
                policies: objects.policies.items().iter().collect(),
                shifts: objects.shifts.items().iter().collect(),
                destinations: objects.destinations.items().iter().collect(),
            });
            if self.fenced {
                // A table from disk may be older than what others have settled since.
                let unknown = History::default();
                built.table.fence(if from_disk { &unknown } else { &objects.owners });
            }
            let versions = objects.versions().collect();
            token = memory.owners.renew(&built.table, &versions);
            memory.table = Arc::new(built.table);
            memory.about = Arc::new(About {
                objects: versions,
                verdicts: built.verdicts,
                shifts: built.shifts,
                destinations: built.destinations,
                bad: objects.bad.clone(),
                former: memory.owners.former(),
                from_disk,
                built_unix_ms: clock::now_unix_millis(),
                drain_timeout: router.spec.drain_timeout.get(),
            });
            let named = memory.about.objects.values().filter(|version| !version.uid.is_empty());
            memory.generations = named.map(|version| (version.uid.clone(), version.generation)).collect();
        }
        if anew || memory.pending.weights {
            let took = memory.pace.made(began, self.clock.elapsed());
            self.metrics.build_seconds.observe(took.as_secs_f64());
        }
        let snapshot = Arc::new(self.snapshot(memory, objects).await);
        self.metrics.tables.inc();
        memory.retired.keep(self.current.swap(Arc::clone(&snapshot)));
        drop(token);
        self.published.send_replace(snapshot);
        self.gate.open();
        memory.registry.prune();
        true
    }

    async fn snapshot(&self, memory: &mut Memory, objects: &Objects) -> Snapshot {
        memory.version += 1;
        let table = Arc::clone(&memory.table);
        let endpoints = table.cells().flat_map(|(_, cell)| &cell.endpoints);
        let outside = table.destinations().flat_map(|destination| &destination.endpoints);
        memory.names.resolve(endpoints.chain(outside), self.clock.millis()).await;
        let destinations = memory.destinations.of_table(&table, &memory.names).await;
        let servers = memory.listeners.of_table(&table).await;
        let links = memory.cell_tls.of_table(&table).await;
        let mut cells = Vec::with_capacity(table.cells().len());
        let mut pods = Vec::with_capacity(table.cells().len());
        for (_, cell) in table.cells() {
            let mut at = objects.slices.pods(&cell.name);
            at.extend(
                cell.endpoints
                    .iter()
                    .flat_map(|endpoint| memory.names.addresses(endpoint))
                    .filter_map(Pod::outside),
            );
            cells.push(memory.registry.cell(&cell.name));
            let connector = links.connector(cell);
            let live = |pod| {
                let pod = memory.registry.pod(pod);
                pod.set_connector(&connector);
                pod
            };
            pods.push(at.into_iter().map(live).collect());
        }
        let about = Arc::clone(&memory.about);
        let owned = memory.owners.token();
        let any_doubt = memory.registry.any_doubt();
        Snapshot {
            version: memory.version,
            table,
            cells,
            pods,
            destinations,
            servers,
            cell_tls_wrong: links.wrong,
            any_doubt,
            owned,
            about,
        }
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::{Cell, CellSpec};
    use bulkhead_process::Readiness;
    use prometheus::Registry;

    use super::*;
    use crate::objects::Set;

    fn builder() -> Builder {
        Builder {
            router: "main".to_owned(),
            table_file: None,
            fenced: false,
            tls_dir: None,
            bounds: egress::Bounds::default(),
            clock: Monotonic::start(),
            current: Arc::default(),
            published: watch::Sender::default(),
            drains_over: Arc::default(),
            gate: Readiness::new().gate("table"),
            metrics: TableMetrics::register(&Registry::new()).expect("registers"),
        }
    }

    fn cell(name: &str, generation: i64) -> Cell {
        let mut cell = Cell::new(name, CellSpec::default());
        cell.metadata.uid = Some(name.to_owned());
        cell.metadata.generation = Some(generation);
        cell
    }

    #[tokio::test]
    async fn generations_of_what_is_gone_are_forgotten() {
        let builder = builder();
        let mut memory = Memory::default();
        let router = serde_json::json!({
            "apiVersion": "bulkhead.dev/v1alpha1", "kind": "Router", "metadata": {"name": "main"},
            "spec": {"listeners": [{"name": "http", "port": 8080}]},
        });
        let router = serde_json::from_value(router).expect("is a Router");
        let mut objects = Objects { routers: Set::from(vec![router]), ..Objects::default() };
        for (cells, expected) in [(&["a", "b"][..], 2), (&["c"], 1)] {
            objects.cells.replace(cells.iter().map(|name| cell(name, 1)).collect());
            memory.pending = Touched::TABLE;
            assert!(builder.publish(&mut memory, &objects, false).await);
            assert_eq!(memory.generations.len(), expected, "{:?}", memory.generations);
        }
    }

    #[test]
    fn what_is_older_than_what_is_served_is_taken_once_it_has_been_so_for_a_minute() {
        let builder = builder();
        let mut memory = Memory { generations: HashMap::from([("a".to_owned(), 7)]), ..Memory::default() };
        let mut check = |generation, now, expected| {
            Arc::make_mut(&mut memory.objects).cells.replace(vec![cell("a", generation)]);
            assert_eq!(builder.refuses(&mut memory, now), expected, "{generation} at {now}");
        };
        check(7, 0, false);
        check(3, 1_000, true);
        check(3, 60_999, true);
        // As new as what is served, so that the minute begins again with the next that is not.
        check(7, 61_000, false);
        check(3, 62_000, true);
        check(4, 121_999, true);
        check(4, 122_000, false);
        assert_eq!((builder.metrics.older_refused.get(), builder.metrics.older_taken.get()), (2, 1));
        assert!(memory.pending.table, "what every object has is learned anew");
    }
}
