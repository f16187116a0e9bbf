//! Whether a cell may have a tunnel, and through which Destination. Pure: the snapshot, the peer and its words in, the
//! Destination or a refusal out.

use std::net::IpAddr;
use std::sync::Arc;

use bulkhead_routing::table::{DestinationKind, TableCell};
use http::HeaderMap;

use crate::egress::DestinationLive;
use crate::snapshot::Snapshot;

/// Who asks, and for what.
pub(super) struct Asked<'a> {
    pub(super) peer: IpAddr,
    pub(super) headers: &'a HeaderMap,
    /// `host:port`.
    pub(super) target: &'a str,
}

/// Why there is no tunnel, and what of it the operator is told.
#[derive(Debug)]
pub(super) struct Denied {
    pub(super) detail: String,
    /// The cell, where it is certain who asked, and the Destination, or the target where no Destination has it.
    pub(super) forbidden: Option<(Arc<str>, String)>,
}

/// The Destination with exactly that endpoint that the cell may reach.
pub(super) fn decide<'s>(
    snapshot: &'s Snapshot,
    asked: &Asked<'_>,
) -> Result<&'s Arc<DestinationLive>, Denied> {
    let cell = who(snapshot, asked)?;
    let is_asked_for = |live: &&Arc<DestinationLive>| {
        let has = |endpoint: &String| endpoint.eq_ignore_ascii_case(asked.target);
        matches!(live.spec.kind, DestinationKind::Connect { .. }) && live.spec.endpoints.iter().any(has)
    };
    let reaches = |live: &&Arc<DestinationLive>| snapshot.table.reaches(cell, &live.spec.name).is_some();
    let mut all: Vec<_> = snapshot.destinations.values().filter(is_asked_for).collect();
    all.sort_by(|one, other| one.spec.name.cmp(&other.spec.name));
    if let Some(live) = all.iter().copied().find(reaches) {
        return Ok(live);
    }
    let destination = all.first().map_or(asked.target, |live| &live.spec.name).to_owned();
    let detail = if all.is_empty() {
        format!("no Destination of kind connect has the endpoint {}", asked.target)
    } else {
        format!(
            "name the Destination {destination} in spec.destinations of the Cell {} if it is meant",
            cell.name
        )
    };
    let forbidden = Some((Arc::clone(&cell.name), destination));
    Err(Denied { detail, forbidden })
}

/// The cell that asks: it says so, and it does so from an address of its orchestrators.
fn who<'s>(snapshot: &'s Snapshot, asked: &Asked<'_>) -> Result<&'s TableCell, Denied> {
    let denied = |detail: String| Denied { detail, forbidden: None };
    let mut names = asked.headers.get_all(bulkhead_protocol::fields::CELL).iter();
    let (Some(name), None) = (names.next().and_then(|name| name.to_str().ok()), names.next()) else {
        return Err(denied("bulkhead-cell has to say once which cell asks".to_owned()));
    };
    let peer = asked.peer.to_canonical();
    let is_its = |index| snapshot.pods(index).iter().any(|pod| pod.at.traffic.ip().to_canonical() == peer);
    match snapshot.table.cell_named(name).filter(|index| is_its(*index)) {
        Some(index) => Ok(snapshot.table.cell(index)),
        None => Err(denied(format!("{peer} is no orchestrator of a cell {name:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tunnel::fixture::snapshot;

    /// Cell a, at 127.0.0.1, may reach `time`; cell b, at 127.0.0.2, nothing.
    async fn check(
        peer: [u8; 4],
        cells: &[&str],
        target: &str,
        expected: Result<&str, (&str, Option<&str>)>,
    ) {
        let snapshot = snapshot().await;
        let mut fields = HeaderMap::new();
        for cell in cells {
            fields.append("bulkhead-cell", cell.parse().expect("a value"));
        }
        let asked = Asked { peer: peer.into(), headers: &fields, target };
        match (decide(&snapshot, &asked), expected) {
            (Ok(live), Ok(name)) => assert_eq!(&*live.spec.name, name),
            (Err(denied), Err((words, forbidden))) => {
                assert!(denied.detail.contains(words), "{}", denied.detail);
                let told = denied.forbidden.map(|(cell, destination)| format!("{cell}/{destination}"));
                assert_eq!(told.as_deref(), forbidden);
            }
            (Ok(live), Err(_)) => panic!("{} is reached", live.spec.name),
            (Err(denied), Ok(_)) => panic!("{}", denied.detail),
        }
    }

    const A: [u8; 4] = [127, 0, 0, 1];
    const B: [u8; 4] = [127, 0, 0, 2];

    #[tokio::test]
    async fn a_cell_reaches_the_endpoints_that_it_is_allowed_and_no_other() {
        check(A, &["a"], "time.example:123", Ok("time")).await;
        check(A, &["a"], "TIME.example:123", Ok("time")).await;
        check(A, &["a"], "time.example:124", Err(("no Destination", Some("a/time.example:124")))).await;
        check(A, &["a"], "xtime.example:123", Err(("no Destination", Some("a/xtime.example:123")))).await;
        check(A, &["a"], "keys.example:443", Err(("spec.destinations of the Cell a", Some("a/keys")))).await;
        check(B, &["b"], "time.example:123", Err(("spec.destinations of the Cell b", Some("b/time")))).await;
    }

    #[tokio::test]
    async fn messages_are_for_no_tunnel() {
        check(A, &["a"], "issuer.example:80", Err(("no Destination", Some("a/issuer.example:80")))).await;
    }

    #[tokio::test]
    async fn nobody_asks_in_the_name_of_a_cell_from_elsewhere() {
        check(B, &["a"], "time.example:123", Err(("127.0.0.2 is no orchestrator", None))).await;
        check(A, &["c"], "time.example:123", Err(("no orchestrator of a cell \"c\"", None))).await;
        check(A, &[], "time.example:123", Err(("has to say once", None))).await;
        check(A, &["a", "a"], "time.example:123", Err(("has to say once", None))).await;
    }
}
