//! Keeps the status of RoutingPolicies, Routers, TrafficShifts and Destinations: one loop that looks whenever an object or an
//! answer of a router changes. What routers serve is asked in `poll`; what each status says is decided in files of its own.

mod destinations;
mod drained;
mod forbidden;
mod grace;
mod housekeeping;
mod policies;
pub(crate) mod poll;
mod routers;
mod shifts;
pub(crate) mod snapshot;
mod verdicts;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bulkhead_crds::{Cell, Condition, Destination, Router, RoutingPolicy, TrafficShift, names};
use bulkhead_process::clock::Monotonic;
use bulkhead_protocol::Reason;
use jiff::Timestamp;
use kube::core::{ApiResource, ObjectMeta};
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::cell::{Context, shift};
use crate::stores::{Guard, readable};
use crate::writer::Error;
use crate::{clock, kinds, tunnels};
use forbidden::{Asked, Forbidden};
use grace::{GRACE, Grace};
use verdicts::{Judged, Verdicts};

/// Changes that come together are looked at together.
const DEBOUNCE: Duration = Duration::from_millis(50);
const RESYNC: Duration = Duration::from_secs(60);
const RETRY: Duration = Duration::from_secs(1);

/// Everything that the statuses are made from, at one moment.
#[derive(Default)]
struct World {
    cells: Vec<Cell>,
    /// Name and UID of every Cell, those that cannot be read among them.
    existing: HashSet<(String, String)>,
    routers: Vec<Router>,
    policies: Vec<RoutingPolicy>,
    shifts: Vec<TrafficShift>,
    destinations: Vec<Destination>,
    snapshot: Arc<snapshot::Snapshot>,
    /// Cells find routers that open tunnels.
    tunnels: bool,
}

/// What was last written of each object, so that a store that lags behind does not make us write it again.
type Written = HashMap<String, (Option<String>, Value)>;

/// What one look leaves for the next.
#[derive(Default)]
struct Memory {
    judged: Judged,
    written: Written,
    grace: Grace,
    forbidden: Forbidden,
}

/// What a look found, for when to look again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Look {
    /// Something is still waited for.
    open: bool,
    /// A status that waits for routers is kept back for a moment.
    kept: bool,
    failed: bool,
}

impl Look {
    /// When to look again if nothing happens.
    fn again(self) -> Duration {
        match self {
            Self { failed: true, .. } => RETRY,
            Self { kept: true, .. } => GRACE,
            _ => RESYNC,
        }
    }
}

/// Looks until the process ends, and tells `pending` whether routers are waited for.
pub(crate) async fn run(
    context: Arc<Context>,
    mut changed: watch::Receiver<u64>,
    pending: watch::Sender<bool>,
    monotonic: Monotonic,
) {
    context.stores.ready().await;
    let mut snapshots = context.snapshot.clone();
    // What was written last is truer than what a new leader knows before it has asked.
    let _ = snapshots.wait_for(|snapshot| snapshot.asked).await;
    let mut memory = Memory::default();
    loop {
        changed.borrow_and_update();
        let world = World {
            cells: readable(&context.stores.cells),
            existing: context.stores.cells.state().iter().map(|cell| identity(cell.meta())).collect(),
            routers: readable(&context.stores.routers),
            policies: readable(&context.stores.policies),
            shifts: readable(&context.stores.shifts),
            destinations: readable(&context.stores.destinations),
            snapshot: snapshots.borrow_and_update().clone(),
            tunnels: tunnels::address(&context.stores.tunnels.state()).is_some(),
        };
        let look = pass(&context, &world, &mut memory, monotonic.millis()).await;
        pending.send_if_modified(|last| std::mem::replace(last, look.open) != look.open);
        tokio::select! {
            _ = changed.changed() => tokio::time::sleep(DEBOUNCE).await,
            _ = snapshots.changed() => {}
            () = tokio::time::sleep(look.again()) => {}
        }
    }
}

fn identity(meta: &ObjectMeta) -> (String, String) {
    (meta.name.clone().unwrap_or_default(), meta.uid.clone().unwrap_or_default())
}

/// One look at everything.
async fn pass(context: &Context, world: &World, memory: &mut Memory, now_ms: u64) -> Look {
    let at = clock::now();
    memory.judged.renew(world, at);
    let planned = plan(world, &memory.judged.verdicts, at);
    let is_moving = world.cells.iter().any(|cell| is_moving(cell, world, at));
    let open = is_moving || planned.iter().any(|planned| planned.waits);
    let mut look = Look { open, ..Look::default() };
    memory.grace.renew(
        planned.iter().filter(|planned| planned.waits).map(|planned| (planned.uid, planned.generation)),
        now_ms,
    );
    for planned in planned.into_iter().filter(|planned| !planned.same) {
        if planned.waits && memory.grace.holds(planned.uid, now_ms) {
            look.kept = true;
            continue;
        }
        let (kind, name) = (planned.resource.kind.clone(), planned.name);
        if let Err(error) = write(context, planned, &mut memory.written).await {
            look.failed = true;
            tracing::warn!(kind, name, %error, "a status could not be written; tried again");
        }
    }
    if let Err(error) = housekeeping::remove_orphans(context, world).await {
        look.failed = true;
        tracing::warn!(%error, "a shift that nobody needs could not be removed; tried again");
    }
    for asked in memory.forbidden.look(&world.snapshot, now_ms) {
        tell_forbidden(context, world, &asked).await;
    }
    look
}

/// The status that every object should have, purely.
fn plan<'a>(world: &'a World, verdicts: &Verdicts, at: Timestamp) -> Vec<Planned<'a>> {
    let (snapshot, now) = (&world.snapshot, clock::rfc3339(at));
    let Verdicts { policies, shifts, destinations, drained } = verdicts;
    let mut planned = Vec::new();
    for policy in &world.policies {
        let namespace = policy.metadata.namespace.clone().unwrap_or_default();
        let about: Vec<_> = policies.get(&(namespace, policy.name_any())).into_iter().flatten().collect();
        let status = policies::status(policy, &about, drained, snapshot, &now);
        let conditions = status.parents.iter().flat_map(|parent| &parent.conditions);
        let mut next = Planned::new(policy, policy.status.as_ref(), &status, conditions);
        next.waits |= policies::is_moving(&status, policy, snapshot);
        planned.push(next);
    }
    for router in &world.routers {
        let status = routers::status(router, snapshot, &now);
        planned.push(Planned::new(router, router.status.as_ref(), &status, &status.conditions));
    }
    for shift in &world.shifts {
        let status = shifts::status(shift, shifts.get(&shift.name_any()), snapshot, at);
        planned.push(Planned::new(shift, shift.status.as_ref(), &status, &status.conditions));
    }
    for destination in &world.destinations {
        let verdict = destinations.get(&destination.name_any());
        let status = destinations::status(destination, verdict, world, &now);
        planned.push(Planned::new(destination, destination.status.as_ref(), &status, &status.conditions));
    }
    planned
}

/// As an Event on the Cell, which is where its owner looks.
async fn tell_forbidden(context: &Context, world: &World, asked: &Asked) {
    let Some(cell) = world.cells.iter().find(|cell| cell.name() == asked.cell) else { return };
    let destination = ObjectRef::<Guard<Destination>>::new(&asked.destination);
    let exists = context.stores.destinations.get(&destination).is_some();
    let note = forbidden::note(asked, cell, exists);
    let reason = Reason::DestinationForbidden.as_str();
    context.writer.event(true, reason, note, &context.about(cell)).await;
}

/// A cell that leaves traffic, or comes back to it, is watched closely.
fn is_moving(cell: &Cell, world: &World, now: Timestamp) -> bool {
    let traffic = world.snapshot.cell(cell.name(), None);
    let weight = shift::weight(cell, &world.shifts, now);
    let leaves = weight == 0 || cell.metadata.deletion_timestamp.is_some();
    if leaves { !traffic.is_drained() } else { traffic.sending > 0 && !traffic.has_full(weight) }
}

/// An object, and the status that it should have.
struct Planned<'a> {
    resource: ApiResource,
    namespace: Option<&'a str>,
    name: &'a str,
    uid: &'a str,
    version: Option<&'a str>,
    generation: i64,
    status: Value,
    /// It has that status.
    same: bool,
    /// Something in it still waits for routers.
    waits: bool,
}

impl<'a> Planned<'a> {
    fn new<'c, K, S>(
        object: &'a K,
        last: Option<&S>,
        next: &S,
        conditions: impl IntoIterator<Item = &'c Condition>,
    ) -> Self
    where
        K: Resource<DynamicType = ()>,
        S: Serialize + PartialEq,
    {
        let meta = object.meta();
        Self {
            resource: kinds::resource(names::GROUP, names::VERSION, &K::kind(&()), &K::plural(&())),
            namespace: meta.namespace.as_deref(),
            name: meta.name.as_deref().unwrap_or_default(),
            uid: meta.uid.as_deref().unwrap_or_default(),
            version: meta.resource_version.as_deref(),
            generation: meta.generation.unwrap_or_default(),
            status: json!(next),
            same: last == Some(next),
            waits: conditions.into_iter().any(|condition| condition.reason == "Pending"),
        }
    }
}

async fn write(context: &Context, planned: Planned<'_>, written: &mut Written) -> Result<(), Error> {
    let Planned { resource, namespace, name, uid, version, status, .. } = planned;
    let version = version.map(ToOwned::to_owned);
    if written.get(uid).is_some_and(|(at, last)| *at == version && *last == status) {
        return Ok(());
    }
    match context.writer.status(&resource, namespace, name, &status).await {
        // It is gone; its status needs no writing.
        Err(error) if error.code() == Some(404) => Ok(()),
        Err(error) => Err(error),
        Ok(()) => {
            written.insert(uid.to_owned(), (version, status));
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
        let snapshot = Arc::new(Snapshot { asked: true, routers: vec![pod] });
        let world = World { shifts: shift.into_iter().collect(), snapshot, ..World::default() };
        let cell = Cell::new("a", CellSpec { weight: 100, ..CellSpec::default() });
        let now = "2030-01-01T00:00:00Z".parse().expect("a time");
        assert_eq!(is_moving(&cell, &world, now), expected, "{effective} % under {:?}", world.shifts);
    }

    #[tokio::test]
    async fn a_status_is_written_once_and_a_cell_that_asks_for_what_it_may_not_reach_is_told_once() {
        let (client, requests) = fixture::api_server(|_| None);
        let context = fixture::context(client);
        let spec = json!({"http": {}, "endpoints": ["visa:443"], "duplicateCheck": {"type": "None"}});
        let mut destination = Destination::new("visa", serde_json::from_value(spec).expect("is one"));
        let mut memory = Memory::default();
        let written = "PATCH /apis/bulkhead.dev/v1alpha1/destinations/visa/status";
        for (count, events) in [(3, 0), (4, 1), (4, 1)] {
            let forbidden = [("a/visa".to_owned(), count), ("gone/visa".to_owned(), count)].into();
            let pod = fixture::router_pod("r-0", Serving { forbidden, ..Serving::default() });
            let world = World {
                cells: vec![fixture::cell()],
                destinations: vec![destination.clone()],
                snapshot: Arc::new(Snapshot { asked: true, routers: vec![pod] }),
                ..World::default()
            };
            assert_eq!(pass(&context, &world, &mut memory, 0).await, Look::default());
            assert_eq!(requests.events(), vec!["DestinationForbidden"; events]);
            destination.status =
                serde_json::from_value(requests.body(written)["status"].clone()).expect("is one");
        }
        assert_eq!(requests.writes(), [written]);
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
