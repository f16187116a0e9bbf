//! Destinations as routers use them, read and checked by themselves: what the API server would refuse is refused here
//! again, because tables are built from files too.

use std::sync::Arc;
use std::time::Duration;

use bulkhead_crds::destination::{self as spec, DestinationTls, DuplicateCheckType};
use ipnet::IpNet;

use super::{CellIndex, DestinationVerdict, Outcome, Table, bytes};

/// A system outside every cell.
#[derive(Clone, Debug, PartialEq)]
pub struct Destination {
    pub name: Arc<str>,
    pub kind: Kind,
    /// `host:port` of each server, in the order in which they are tried.
    pub endpoints: Vec<String>,
    pub tls: Option<DestinationTls>,
    /// Whether a message that may have reached it is a point of no return.
    pub effects: bool,
    /// Header field that gets `ID/N`.
    pub duplicate_header: Option<String>,
    /// Time that must be left to the caller's deadline.
    pub min_time: Duration,
    pub connect_timeout: Duration,
    /// For the whole answer.
    pub timeout: Duration,
    /// Messages or tunnels under way of one router process.
    pub in_flight: u32,
    /// Bytes of an answer's body.
    pub answer_bytes: u64,
    /// Networks in which names may lie although they are no public ones.
    pub allowed_networks: Vec<IpNet>,
}

/// How it is spoken to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    Http { path: String, host: Option<String> },
    Connect { idle_timeout: Duration },
}

impl Table {
    /// Whether transactions in that cell may have effects that the ledger records.
    pub(crate) fn has_effects(&self, cell: CellIndex) -> bool {
        self.destinations_of(cell)
            .any(|destination| destination.effects && matches!(destination.kind, Kind::Http { .. }))
    }

    /// The cell and a Destination that it may have effects at past every fence.
    pub(crate) fn unfenced(&self, cell: CellIndex) -> Option<(String, String)> {
        let tunnel = self
            .destinations_of(cell)
            .find(|destination| destination.effects && matches!(destination.kind, Kind::Connect { .. }))?;
        Some((self.cell(cell).name.as_ref().to_owned(), tunnel.name.as_ref().to_owned()))
    }

    fn destinations_of(&self, cell: CellIndex) -> impl Iterator<Item = &Arc<Destination>> {
        self.cell(cell).destinations.iter().filter_map(|name| self.destinations.get(name.as_str()))
    }
}

/// Adds every Destination that can serve, and says what became of each, in the order of names.
pub(super) fn add(
    table: &mut Table,
    destinations: &[&bulkhead_crds::Destination],
) -> Vec<DestinationVerdict> {
    let mut verdicts: Vec<DestinationVerdict> = destinations
        .iter()
        .map(|object| {
            let name = object.metadata.name.clone().unwrap_or_default();
            let accepted = match read(&name, &object.spec) {
                Ok(destination) => {
                    table.destinations.insert(Arc::clone(&destination.name), Arc::new(destination));
                    Outcome::accepted()
                }
                Err(error) => Outcome::refused(
                    "InvalidDestination",
                    format!(
                        "Destination {name:?} is not served, and whoever asks for it is refused: {error}"
                    ),
                ),
            };
            DestinationVerdict { name, accepted }
        })
        .collect();
    verdicts.sort_by(|a, b| a.name.cmp(&b.name));
    verdicts
}

fn read(name: &str, spec: &spec::DestinationSpec) -> Result<Destination, String> {
    let kind = match (&spec.http, &spec.connect) {
        (Some(http), None) => {
            check_http(http)?;
            Kind::Http { path: http.path.clone(), host: http.host.clone() }
        }
        (None, Some(connect)) => Kind::Connect { idle_timeout: connect.idle_timeout.get() },
        _ => return Err("set either http or connect".to_owned()),
    };
    if spec.endpoints.is_empty() {
        return Err("it needs at least one endpoint".to_owned());
    }
    let check = spec.duplicate_check.as_ref();
    if check.is_none() && spec.point_of_no_return && matches!(kind, Kind::Http { .. }) {
        return Err("duplicateCheck must be written where there are effects".to_owned());
    }
    let duplicate_header = match check.map(|check| (check.r#type, &check.header)) {
        Some((DuplicateCheckType::Header, Some(header))) => Some(header.to_ascii_lowercase()),
        Some((DuplicateCheckType::Header, None)) => {
            return Err("duplicateCheck of type Header needs header".to_owned());
        }
        Some((DuplicateCheckType::None, _)) | None => None,
    };
    if let Some(name) = &duplicate_header {
        check_duplicate_header(name)?;
    }
    let timeout = spec.timeout.get();
    if timeout.is_zero() || spec.connect_timeout.get().is_zero() {
        return Err("timeout and connectTimeout must be above 0s".to_owned());
    }
    let network = |text: &String| {
        text.parse::<IpNet>()
            .map_err(|_| format!("allowedNetworks: {text:?} is no network such as 10.0.0.0/8"))
    };
    Ok(Destination {
        name: name.into(),
        kind,
        endpoints: spec.endpoints.clone(),
        tls: spec.tls.clone(),
        effects: spec.point_of_no_return,
        duplicate_header,
        min_time: spec.min_time.get(),
        connect_timeout: spec.connect_timeout.get(),
        timeout,
        in_flight: spec.limits.in_flight,
        answer_bytes: bytes(&spec.limits.answer_bytes)
            .ok_or_else(|| format!("limits.answerBytes {:?} is no size", spec.limits.answer_bytes))?,
        allowed_networks: spec.allowed_networks.iter().map(network).collect::<Result<_, _>>()?,
    })
}

fn check_http(http: &spec::HttpDestination) -> Result<(), String> {
    let is_origin =
        http.path.starts_with('/') && http.path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
    if !is_origin {
        return Err(format!("http.path {:?} is no path such as /authorise", http.path));
    }
    match &http.host {
        Some(host) if http::HeaderValue::try_from(host).is_err() => {
            Err(format!("http.host {host:?} is no value of a header field"))
        }
        _ => Ok(()),
    }
}

/// Fields that say how the message itself is read, in which nobody could look for an id.
const FRAMING: [http::HeaderName; 6] = [
    http::header::CONNECTION,
    http::header::CONTENT_LENGTH,
    http::header::HOST,
    http::header::TE,
    http::header::TRANSFER_ENCODING,
    http::header::UPGRADE,
];

fn check_duplicate_header(name: &str) -> Result<(), String> {
    let header = http::HeaderName::try_from(name)
        .map_err(|_| "duplicateCheck.header is no name of a header field".to_owned())?;
    if FRAMING.contains(&header) {
        return Err(format!("duplicateCheck.header cannot be {name}, which says how a message is read"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bulkhead_crds::policy::RestartPolicy;
    use serde_json::{Value, json};

    use crate::fixture::{World, cell, destination, policy};
    use crate::table::Build;

    fn effects() -> Value {
        json!({"http": {}, "duplicateCheck": {"type": "Header", "header": "Idempotency-Key"}})
    }

    /// Cell a may reach `visa`, b nothing, and one rule sends to both.
    fn built(spec: Value) -> Build {
        let mut world = World::new(&["b"]);
        world.cells.push(cell("a", json!({"destinations": ["visa", "absent"]})));
        world.destinations.push(destination("visa", spec));
        let groups = json!([{"cells": [{"name": "a"}, {"name": "b"}]}]);
        let restart = json!({"policy": "UntilPointOfNoReturn"});
        world.policies =
            vec![policy("ns/p", 0, 100, json!([{"name": "all", "groups": groups, "restart": restart}]))];
        world.build()
    }

    #[test]
    fn a_cell_reaches_what_it_names_and_what_exists() {
        let table = built(effects()).table;
        let reaches = |cell: &str, name: &str| {
            let cell = table.cell(table.cell_named(cell).expect("is in the table"));
            table.reaches(cell, name).map(|destination| destination.name.as_ref().to_owned())
        };
        assert_eq!(reaches("a", "visa").as_deref(), Some("visa"));
        assert_eq!((reaches("b", "visa"), reaches("a", "absent"), reaches("a", "vis")), (None, None, None));
        let visa = table.destinations().next().expect("is in the table");
        assert_eq!(visa.duplicate_header.as_deref(), Some("idempotency-key"));
    }

    #[track_caller]
    fn check(spec: Value, policy: RestartPolicy, effects: bool, reason: &str) {
        let build = built(spec);
        let rule = &build.table.rules()[0];
        let said = build.verdicts[0].resolved_refs.reason;
        assert_eq!((rule.restart.policy, rule.effects, said), (policy, effects, reason));
    }

    #[test]
    fn tunnels_with_effects_leave_no_restart_but_the_safe_one() {
        let (until, safe) = (RestartPolicy::UntilPointOfNoReturn, RestartPolicy::SafeOnly);
        check(effects(), until, true, "ResolvedRefs");
        check(json!({"http": {}, "pointOfNoReturn": false}), until, false, "ResolvedRefs");
        check(json!({"connect": {}}), safe, false, "UnsafeRestart");
        check(json!({"connect": {}, "pointOfNoReturn": false}), until, false, "ResolvedRefs");
    }

    #[test]
    fn what_the_api_would_refuse_is_refused_with_what_to_do() {
        for (spec, words) in [
            (json!({"http": {}}), "duplicateCheck must be written"),
            (json!({}), "either http or connect"),
            (json!({"http": {}, "pointOfNoReturn": false, "endpoints": []}), "at least one endpoint"),
            (json!({"http": {}, "pointOfNoReturn": false, "allowedNetworks": ["10.0.0.0/99"]}), "no network"),
            (json!({"http": {}, "pointOfNoReturn": false, "timeout": "0s"}), "above 0s"),
            (
                json!({"http": {}, "duplicateCheck": {"type": "Header", "header": "a b"}}),
                "no name of a header",
            ),
            (
                json!({"http": {}, "duplicateCheck": {"type": "Header", "header": "Content-Length"}}),
                "how a message is read",
            ),
            (json!({"http": {"path": "/a b"}, "pointOfNoReturn": false}), "no path such as"),
            (json!({"http": {"host": "a\nb"}, "pointOfNoReturn": false}), "no value of a header"),
        ] {
            let verdict = &built(spec).destinations[0].accepted;
            assert_eq!(verdict.reason, "InvalidDestination");
            assert!(verdict.message.contains(words), "{}", verdict.message);
        }
    }
}
