//! Keeps the status of RoutingPolicies, Routers and TrafficShifts: one loop that looks whenever an object or an answer of
//! a router changes. What routers serve is asked in `poll`; what each status says is decided in files of its own.

mod drained;
mod housekeeping;
mod policies;
pub(crate) mod poll;
mod routers;
mod shifts;
pub(crate) mod snapshot;

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_crds::{Cell, Router, RoutingPolicy, TrafficShift, names};
use bulkhead_routing::table::{Inputs, ParentVerdict, ShiftVerdict, build, unknown_routers};
use jiff::Timestamp;
use kube::core::{ApiResource, ObjectMeta};
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::cell::{Context, shift};
use crate::stores::readable;
use crate::writer::Error;
use crate::{clock, kinds};

/// Changes that come together are looked at together.
const DEBOUNCE: Duration = Duration::from_millis(50);
const RESYNC: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(1);

/// Everything that the statuses are made from, at one moment.
struct World {
    cells: Vec<Cell>,
    /// Name and UID of every Cell, those that cannot be read among them.
    existing: HashSet<(String, String)>,
    routers: Vec<Router>,
    policies: Vec<RoutingPolicy>,
    shifts: Vec<TrafficShift>,
    snapshot: Arc<snapshot::Snapshot>,
}

/// What was last written of each object, so that a store that lags behind does not make us write it again.
type Written = HashMap<String, (Option<String>, Value)>;

/// Looks until the process ends, and tells `pending` whether routers are waited for.
pub(crate) async fn run(
    context: Arc<Context>,
    mut changed: watch::Receiver<u64>,
    pending: watch::Sender<bool>,
) {
    context.stores.ready().await;
    let mut snapshots = context.snapshot.clone();
    // What was written last is truer than what a new leader knows before it has asked.
    let _ = snapshots.wait_for(|snapshot| snapshot.asked).await;
    let mut written = Written::new();
    let mut judged = Judged::default();
    loop {
        changed.borrow_and_update();
        let world = World {
            cells: readable(&context.stores.cells),
            existing: context.stores.cells.state().iter().map(|cell| identity(cell.meta())).collect(),
            routers: readable(&context.stores.routers),
            policies: readable(&context.stores.policies),
            shifts: readable(&context.stores.shifts),
            snapshot: snapshots.borrow_and_update().clone(),
        };
        let (open, failed) = pass(&context, &world, &mut judged, &mut written).await;
        pending.send_if_modified(|last| std::mem::replace(last, open) != open);
        tokio::select! {
            _ = changed.changed() => tokio::time::sleep(DEBOUNCE).await,
            _ = snapshots.changed() => {}
            () = tokio::time::sleep(if failed { RETRY } else { RESYNC }) => {}
        }
    }
}

fn identity(meta: &ObjectMeta) -> (String, String) {
    (meta.name.clone().unwrap_or_default(), meta.uid.clone().unwrap_or_default())
}

/// One look at everything: whether anything is still waited for, and whether anything failed.
async fn pass(context: &Context, world: &World, judged: &mut Judged, written: &mut Written) -> (bool, bool) {
    let at = clock::now();
    let now = clock::rfc3339(at);
    judged.renew(world, at);
    let Verdicts { policies, shifts, drained } = &judged.verdicts;
    let mut open = world.cells.iter().any(|cell| is_moving(cell, world, at));
    let mut failed = false;
    let mut statuses: Vec<(ApiResource, Target<'_>, Value, bool)> = Vec::new();
    for policy in &world.policies {
        let namespace = policy.metadata.namespace.clone().unwrap_or_default();
        let about: Vec<_> = policies.get(&(namespace, policy.name_any())).into_iter().flatten().collect();
        let status = policies::status(policy, &about, drained, &world.snapshot, &now);
        let same = policy.status.as_ref() == Some(&status);
        open |= waits(&status.parents.iter().flat_map(|parent| &parent.conditions).collect::<Vec<_>>());
        statuses.push((
            resource("RoutingPolicy", "routingpolicies"),
            Target::of(policy),
            to_value(&status),
            same,
        ));
    }
    for router in &world.routers {
        let status = routers::status(router, &world.snapshot, &now);
        let same = router.status.as_ref() == Some(&status);
        open |= waits(&status.conditions.iter().collect::<Vec<_>>());
        statuses.push((resource("Router", "routers"), Target::of(router), to_value(&status), same));
    }
    for shift in &world.shifts {
        let verdict = shifts.get(&shift.name_any());
        let status = shifts::status(shift, verdict, &world.snapshot, at);
        let same = shift.status.as_ref() == Some(&status);
        open |= waits(&status.conditions.iter().collect::<Vec<_>>());
        statuses.push((
            resource("TrafficShift", "trafficshifts"),
            Target::of(shift),
            to_value(&status),
            same,
        ));
    }
    for (resource, target, value, same) in statuses {
        if same {
            continue;
        }
        if let Err(error) = write(context, &resource, &target, value, written).await {
            failed = true;
            tracing::warn!(kind = resource.kind, name = target.name, %error, "a status could not be written; tried again");
        }
    }
    if let Err(error) = housekeeping::remove_orphans(context, world).await {
        failed = true;
        tracing::warn!(%error, "a shift that nobody needs could not be removed; tried again");
    }
    (open, failed)
}

/// What the tables make of the objects.
#[derive(Default)]
struct Verdicts {
    /// By namespace and name.
    policies: HashMap<(String, String), Vec<ParentVerdict>>,
    shifts: HashMap<String, ShiftVerdict>,
    /// `NAMESPACE/POLICY/RULE` of each rule that nobody is left to serve.
    drained: HashSet<String>,
}

/// Verdicts, and what they were made from: judging is the dearest part, and answers of routers change none.
#[derive(Default)]
struct Judged {
    made_from: u64,
    verdicts: Verdicts,
}

impl Judged {
    fn renew(&mut self, world: &World, now: Timestamp) {
        let made_from = fingerprint(world, now);
        if self.made_from != made_from {
            self.made_from = made_from;
            self.verdicts = judge(world, now);
        }
    }
}

/// Changes with every object that a table is built from and with the end of a shift, and with nothing that is only status.
fn fingerprint(world: &World, now: Timestamp) -> u64 {
    fn add<K: ResourceExt>(objects: &[K], hasher: &mut DefaultHasher) {
        for object in objects {
            let meta = object.meta();
            (&meta.uid, meta.generation, meta.deletion_timestamp.is_some()).hash(hasher);
        }
        objects.len().hash(hasher);
    }
    let mut hasher = DefaultHasher::new();
    add(&world.cells, &mut hasher);
    add(&world.routers, &mut hasher);
    add(&world.policies, &mut hasher);
    add(&world.shifts, &mut hasher);
    world.shifts.iter().filter(|shift| shifts::has_ended(shift, now)).count().hash(&mut hasher);
    hasher.finish()
}

/// What every Router's table makes of policies and shifts: the very code that the routers run.
fn judge(world: &World, now: Timestamp) -> Verdicts {
    let mut verdicts = Verdicts::default();
    let names: Vec<String> = world.routers.iter().map(ResourceExt::name_any).collect();
    let known: Vec<&str> = names.iter().map(String::as_str).collect();
    let policies: Vec<&RoutingPolicy> = world.policies.iter().collect();
    let mut all = unknown_routers(&known, &policies);
    for router in &world.routers {
        let inputs = Inputs {
            router,
            cells: world.cells.iter().collect(),
            policies: policies.clone(),
            shifts: world.shifts.iter().collect(),
            destinations: Vec::new(),
        };
        let made = build(&inputs);
        verdicts.drained.extend(drained::rules(&made.table, now).map(|rule| rule.as_str().to_owned()));
        all.extend(made.verdicts);
        for verdict in made.shifts {
            // A shift of a rule is known to the Routers that have the rule; one of them is enough.
            let better = verdicts.shifts.get(&verdict.name).is_none_or(|last| !last.accepted.ok);
            if better {
                verdicts.shifts.insert(verdict.name.clone(), verdict);
            }
        }
    }
    for verdict in all {
        let name = (verdict.namespace.clone(), verdict.name.clone());
        verdicts.policies.entry(name).or_default().push(verdict);
    }
    verdicts
}

/// Whether a condition still waits for routers.
fn waits(conditions: &[&bulkhead_crds::Condition]) -> bool {
    conditions.iter().any(|condition| condition.reason == "Pending")
}

/// A cell that leaves traffic, or comes back to it, is watched closely.
fn is_moving(cell: &Cell, world: &World, now: Timestamp) -> bool {
    let traffic = world.snapshot.cell(cell.name(), None);
    let weight = shift::weight(cell, &world.shifts, now);
    let leaves = weight == 0 || cell.metadata.deletion_timestamp.is_some();
    if leaves { !traffic.is_drained() } else { traffic.sending > 0 && !traffic.has_full(weight) }
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    kinds::resource(names::GROUP, names::VERSION, kind, plural)
}

fn to_value(status: &impl Serialize) -> Value {
    json!(status)
}

/// The object that a status is written of.
struct Target<'a> {
    namespace: Option<&'a str>,
    name: &'a str,
    uid: &'a str,
    version: Option<&'a str>,
}

impl<'a> Target<'a> {
    fn of<K: ResourceExt>(object: &'a K) -> Self {
        let meta = object.meta();
        Self {
            namespace: meta.namespace.as_deref(),
            name: meta.name.as_deref().unwrap_or_default(),
            uid: meta.uid.as_deref().unwrap_or_default(),
            version: meta.resource_version.as_deref(),
        }
    }
}

async fn write(
    context: &Context,
    resource: &ApiResource,
    target: &Target<'_>,
    value: Value,
    written: &mut Written,
) -> Result<(), Error> {
    let version = target.version.map(ToOwned::to_owned);
    if written.get(target.uid).is_some_and(|(at, last)| *at == version && *last == value) {
        return Ok(());
    }
    let result = context.writer.status(resource, target.namespace, target.name, &value).await;
    match result {
        // It is gone; its status needs no writing.
        Err(error) if error.code() == Some(404) => Ok(()),
        Err(error) => Err(error),
        Ok(()) => {
            written.insert(target.uid.to_owned(), (version, value));
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::CellSpec;
    use bulkhead_protocol::Serving;
    use bulkhead_protocol::serving::CellServing;

    use super::snapshot::Snapshot;
    use super::*;
    use crate::fixture;

    /// Whether cell `a` is watched closely while a router sends it `effective` percent, under that shift.
    #[track_caller]
    fn check(effective: u32, shift: Option<(&str, Value)>, expected: bool) {
        let mut serving = Serving::default();
        let seen = CellServing { r#in: true, effective_weight: effective, ..CellServing::default() };
        serving.cells.insert("a".to_owned(), seen);
        let pod = fixture::router_pod("r-0", serving);
        let shift = shift.map(|(end, mut spec)| {
            (spec["cell"], spec["reason"], spec["expiresAt"]) = (json!("a"), json!("test"), json!(end));
            TrafficShift::new("s", serde_json::from_value(spec).expect("is one"))
        });
        let world = World {
            cells: vec![],
            existing: HashSet::new(),
            routers: vec![],
            policies: vec![],
            shifts: shift.into_iter().collect(),
            snapshot: Arc::new(Snapshot { asked: true, routers: vec![pod] }),
        };
        let cell = Cell::new("a", CellSpec { weight: 100, ..CellSpec::default() });
        let now = "2030-01-01T00:00:00Z".parse().expect("a time");
        assert_eq!(is_moving(&cell, &world, now), expected, "{effective} % under {:?}", world.shifts);
    }

    #[test]
    fn routers_are_asked_often_only_while_a_cell_is_not_where_it_goes() {
        let (later, earlier) = ("2030-01-01T00:00:01Z", "2029-12-31T23:59:59Z");
        check(100, None, false);
        check(25, None, true);
        check(100, Some((later, json!({"weight": 0}))), true);
        check(100, Some((later, json!({"state": "Drained"}))), true);
        check(0, Some((later, json!({"weight": 0}))), false);
        check(50, Some((later, json!({"weight": 50}))), false);
        check(100, Some((earlier, json!({"weight": 0}))), false);
    }
}
