//! What the status of a Destination says, purely: whether every router can send to it, and what its owner should know
//! about messages that come twice.

use bulkhead_crds::destination::DuplicateCheckType;
use bulkhead_crds::{Destination, DestinationSpec, DestinationStatus, names};
use bulkhead_protocol::Reason;
use bulkhead_routing::table::{DestinationVerdict, Outcome};

use super::World;
use super::policies::{not_accepted, programmed};
use super::snapshot::Wanted;
use crate::conditions::{Statement, state, statement};

pub(super) fn status(
    destination: &Destination,
    verdict: Option<&DestinationVerdict>,
    world: &World,
    now: &str,
) -> DestinationStatus {
    let generation = destination.metadata.generation;
    let name = destination.metadata.name.as_deref().unwrap_or_default();
    let key = format!("Destination/{name}");
    let wanted = Wanted {
        key: &key,
        uid: destination.metadata.uid.as_deref().unwrap_or_default(),
        generation: generation.unwrap_or(0),
    };
    let accepted = match verdict.map(|verdict| &verdict.accepted) {
        Some(Outcome { ok, reason, message }) => statement("Accepted", *ok, *reason, message.clone()),
        None => statement("Accepted", false, "NoRouter", "there is no Router that could send to it"),
    };
    let programmed = if accepted.status == true.into() {
        programmed(&world.snapshot.progress(None, wanted), &[], wanted.generation)
    } else {
        not_accepted()
    };
    let first_open = [&accepted, &programmed].into_iter().find(|one| one.status != true.into());
    let unavailable = world.snapshot.unavailable(name);
    let ready = match first_open {
        Some(open) => statement("Ready", false, open.reason.clone(), open.message.clone()),
        None if !unavailable.is_empty() => {
            statement("Ready", false, Reason::DestinationUnavailable.as_str(), unavailable.join("; "))
        }
        None if destination.spec.connect.is_some() => ready_for_tunnels(world.tunnels),
        None => statement("Ready", true, "Ready", "every router sends to it for the cells that name it"),
    };
    let checked = duplicate_checked(&destination.spec);
    let statements = [ready, accepted, programmed].into_iter().chain(checked).collect();
    let last = destination.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    DestinationStatus {
        observed_generation: generation,
        conditions: state(last, statements, generation, now),
    }
}

/// Of one that every router serves: cells have to find the routers too.
fn ready_for_tunnels(found: bool) -> Statement {
    if found {
        return statement(
            "Ready",
            true,
            "Ready",
            "every router opens tunnels to it for the cells that name it",
        );
    }
    let text = format!(
        "no Service with {}={} leads cells to routers that open tunnels: set router.connect.enabled=true in the chart's values",
        names::LABEL_COMPONENT,
        names::COMPONENT_ROUTER_CONNECT
    );
    statement("Ready", false, "NoTunnels", text)
}

/// Whether a message that comes twice is executed once; not stated where messages have no effects. It is no part of
/// `Ready`: whoever writes type None knows it, and this reminds all others.
fn duplicate_checked(spec: &DestinationSpec) -> Option<Statement> {
    const TYPE: &str = "DuplicateChecked";
    const REASON: &str = "NoDuplicateCheck";
    if !spec.point_of_no_return {
        return None;
    }
    let check = spec.duplicate_check.as_ref().filter(|check| check.r#type == DuplicateCheckType::Header);
    Some(match check {
        Some(check) => {
            let header = check.header.as_deref().unwrap_or_default();
            let text = format!("it executes a message once for each value of {header}, which gets ID/N");
            statement(TYPE, true, "DuplicateCheck", text)
        }
        None if spec.connect.is_some() => statement(
            TYPE,
            false,
            REASON,
            "routers cannot read what cells send through a tunnel, so a transaction that is restarted sends it again: rules \
             whose cells may use it restart as SafeOnly; set pointOfNoReturn: false if nothing is changed there",
        ),
        None => statement(
            TYPE,
            false,
            REASON,
            "it executes whatever comes: a client that repeats its transaction through another router, or after a router \
             lost its ledger, may have its message executed twice; where it can recognise an id, set duplicateCheck: \
             {type: Header, header: NAME}",
        ),
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bulkhead_crds::condition::{find, is_true};
    use bulkhead_protocol::Serving;
    use bulkhead_protocol::serving::ObjectVersion;
    use serde_json::{Value, json};

    use super::super::snapshot::{RouterPod, Snapshot};
    use super::*;
    use crate::fixture;

    fn destination(spec: Value) -> Destination {
        let mut destination = Destination::new("visa", serde_json::from_value(spec).expect("is one"));
        (destination.metadata.uid, destination.metadata.generation) = (Some("u".to_owned()), Some(2));
        destination
    }

    fn router(pod: &str, generation: i64) -> RouterPod {
        let version = ObjectVersion { uid: "u".to_owned(), generation };
        let objects = [("Destination/visa".to_owned(), version)].into();
        fixture::router_pod(pod, Serving { objects, ..Serving::default() })
    }

    fn verdict(ok: bool) -> DestinationVerdict {
        let reason = if ok { "Accepted" } else { "InvalidDestination" };
        DestinationVerdict {
            name: "visa".to_owned(),
            accepted: Outcome { ok, reason, message: String::new() },
        }
    }

    /// The status under these routers, whose `Ready` has that reason.
    #[track_caller]
    fn check(
        verdict: Option<&DestinationVerdict>,
        routers: Vec<RouterPod>,
        expected: &str,
    ) -> DestinationStatus {
        let spec = json!({"http": {}, "endpoints": ["visa:443"], "duplicateCheck": {"type": "None"}});
        let world = World { snapshot: Arc::new(Snapshot { asked: true, routers }), ..World::default() };
        let status = status(&destination(spec), verdict, &world, "now");
        let ready = find(&status.conditions, "Ready").expect("is stated");
        assert_eq!(ready.reason, expected, "{status:?}");
        assert_eq!(ready.status, (expected == "Ready").into(), "{status:?}");
        assert_eq!(status.observed_generation, Some(2));
        status
    }

    #[test]
    fn it_is_ready_once_every_router_serves_this_generation() {
        let check = |verdict: Option<DestinationVerdict>, routers: Vec<RouterPod>, expected: &str| {
            let status = check(verdict.as_ref(), routers.clone(), expected);
            assert_eq!(is_true(&status.conditions, "Programmed"), expected == "Ready", "{status:?}");
            let connect = destination(json!({"connect": {}, "endpoints": ["visa:443"]}));
            let snapshot = Arc::new(Snapshot { asked: true, routers });
            let without = if expected == "Ready" { "NoTunnels" } else { expected };
            for (tunnels, expected) in [(true, expected), (false, without)] {
                let world = World { snapshot: Arc::clone(&snapshot), tunnels, ..World::default() };
                let status = super::status(&connect, verdict.as_ref(), &world, "now");
                let ready = find(&status.conditions, "Ready").expect("is stated");
                assert_eq!(ready.reason, expected, "{status:?}");
                assert_eq!(is_true(&status.conditions, "Ready"), expected == "Ready", "{status:?}");
            }
        };
        let accepted = || Some(verdict(true));
        check(accepted(), vec![router("r-0", 2), router("r-1", 3)], "Ready");
        check(accepted(), vec![router("r-0", 2), router("r-1", 1)], "Pending");
        check(accepted(), vec![router("r-0", 2), fixture::router_pod("r-1", Serving::default())], "Pending");
        check(accepted(), vec![], "NoRouter");
        check(None, vec![router("r-0", 2)], "NoRouter");
        check(Some(verdict(false)), vec![router("r-0", 2)], "InvalidDestination");
    }

    #[test]
    fn it_is_not_ready_while_a_router_has_no_way_to_it() {
        let cut_off = |pod, generation| {
            let mut router = router(pod, generation);
            let serving = Arc::make_mut(router.serving.as_mut().expect("has answered"));
            serving.unavailable.insert("visa".to_owned(), "visa:443: the name has no address".to_owned());
            router
        };
        let check = |routers, expected: &str| check(Some(&verdict(true)), routers, expected);
        let reason = "DestinationUnavailable";
        let status = check(vec![router("r-0", 2), cut_off("r-1", 2), cut_off("r-2", 2)], reason);
        assert!(is_true(&status.conditions, "Programmed"), "the tables have it: {status:?}");
        let ready = find(&status.conditions, "Ready").expect("is stated");
        let why = "r-1: visa:443: the name has no address; r-2: visa:443: the name has no address";
        assert_eq!(ready.message, why);

        check(vec![router("r-0", 2), cut_off("r-1", 1)], "Pending");
        check(vec![router("r-0", 2), RouterPod { silent: true, ..cut_off("r-1", 2) }], "Pending");
        check(vec![router("r-0", 2), RouterPod { gone: true, ..cut_off("r-1", 2) }], "Ready");
    }

    #[test]
    fn where_a_message_that_comes_twice_would_be_executed_twice_the_status_says_so() {
        let check = |spec: Value, expected: Option<(bool, &str)>| {
            let said = duplicate_checked(&destination(spec.clone()).spec);
            assert_eq!(
                said.as_ref().map(|said| said.status),
                expected.map(|(holds, _)| holds.into()),
                "{spec}"
            );
            let text = said.map(|said| said.message).unwrap_or_default();
            assert!(text.contains(expected.map_or("", |(_, words)| words)), "{text}");
        };
        let http = |effects: bool, check: Value| json!({"http": {}, "endpoints": ["visa:443"], "pointOfNoReturn": effects, "duplicateCheck": check});
        let none = json!({"type": "None"});
        check(http(true, json!({"type": "Header", "header": "x-id"})), Some((true, "value of x-id")));
        check(http(true, none.clone()), Some((false, "executed twice")));
        check(http(false, none), None);
        check(http(false, Value::Null), None);
        let tunnel =
            |effects: bool| json!({"connect": {}, "endpoints": ["kms:443"], "pointOfNoReturn": effects});
        check(tunnel(true), Some((false, "SafeOnly")));
        check(tunnel(false), None);
    }
}
