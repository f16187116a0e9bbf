//! What a cell-runtime is told: by flags outside Kubernetes, by the file that the operator renders inside. Read once;
//! the operator starts new pods for a new revision.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use bulkhead_crds::cell::Capacity;
use bulkhead_crds::template::{Entry, EntryProtocol, Service, Step};
use bulkhead_protocol::egress::{MAX_EGRESSES, MAX_VERSION};
use prometheus::Registry;
use serde::{Deserialize, Serialize};

use crate::workflow::{Stop, Workflow};

/// Largest body that steps pass on; a passing entry streams and has no such limit.
pub const DEFAULT_BODY_LIMIT: usize = 16 * 1024 * 1024;
/// How long a stopping cell-runtime goes on serving at most.
pub const DEFAULT_DRAIN_TIMEOUT: Duration = Duration::from_secs(25);
/// A pod that says nothing to a probe for so long is not ready. Longer than the time between two probes, because a slow
/// answer is an answer.
pub const DEFAULT_PROBE_TIMEOUT: Duration = Duration::from_millis(500);

/// Everything that one process needs.
#[derive(Clone)]
pub struct Config {
    pub cell: CellConfig,
    /// Name of this pod, as the routers hear it.
    pub pod: String,
    pub listen: SocketAddr,
    /// Without one: the port after `listen`'s.
    pub health_listen: Option<SocketAddr>,
    /// Without one there is no admin server.
    pub admin_listen: Option<SocketAddr>,
    pub discovery: Discovery,
    pub body_limit: usize,
    pub drain_timeout: Duration,
    pub probe_timeout: Duration,
    pub registry: Registry,
}

/// Where the pods of services, and the other cell-runtimes of this cell, are found.
#[derive(Clone)]
pub enum Discovery {
    /// Addresses that never change: pods by service, and the health addresses of peers.
    Fixed { services: BTreeMap<String, Vec<SocketAddr>>, peers: Vec<SocketAddr> },
    /// EndpointSlices in one namespace, and a peer's name to leave out: this pod's own.
    Kubernetes { client: kube::Client, namespace: String },
}

/// The file that the operator renders: the cell's name and the parts of its template that concern the orchestrator.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CellConfig {
    pub cell: String,
    /// Revision of the template.
    #[serde(default)]
    pub revision: String,
    #[serde(default)]
    pub services: Vec<Service>,
    /// The service that takes whole transactions; this or `steps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entry: Option<Entry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<Step>,
    /// The Destinations of this cell. Steps are held against them at the start; what is let through is the router's to say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub destinations: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<Capacity>,
    /// Tunnels for the cell's services; without it there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect: Option<Connect>,
}

/// Where the cell's services ask for tunnels, as the variable HTTPS_PROXY says, and who makes them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Connect {
    pub listen: SocketAddr,
    /// `host:port` of routers' `--connect-address`. One that is not reached is passed over for the next.
    pub routers: Vec<String>,
}

/// Why a configuration cannot be run.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("the cell has no name; give one with --cell or in the file's `cell`")]
    NoName,
    #[error(
        "neither an entry nor steps; name the service that takes transactions with --entry, or steps with --step"
    )]
    NothingToRun,
    #[error("both an entry and steps; leave one out")]
    Both,
    #[error("{user} names the service {name:?}, which is not among the services; add it there")]
    UnknownService { user: &'static str, name: String },
    #[error("tunnels need a router that makes them; name one with --router-connect or in connect.routers")]
    NoRouter,
    #[error("the service {0:?} is given twice; names must differ")]
    Twice(String),
    #[error("step {0} is to name either a service with a path or a destination, and nothing else")]
    Step(usize),
    #[error("a step's path is {0:?}; give it as it goes on the wire, beginning with /")]
    Path(String),
    #[error(
        "a step names the destination {0:?}, which is not among those of this cell; add it to the Cell's spec.destinations, or with --destination"
    )]
    ForbiddenDestination(String),
    #[error("{0} steps have a destination; at most {MAX_EGRESSES} may")]
    TooManyEgresses(u32),
    #[error("contextVersions belong to an entry of protocol bulkhead; set it, or leave them out")]
    VersionsOfNobody,
    #[error("the context version {0:?} is no word of 1 to {MAX_VERSION} visible ASCII characters")]
    Version(String),
}

impl CellConfig {
    /// The workflow, where all of it can be run; without stops where there is an entry.
    ///
    /// # Errors
    /// When there is nothing to run, something names a service or a destination that is not there, or a step is none.
    pub(crate) fn validate(&self) -> Result<Workflow, Invalid> {
        if self.cell.is_empty() {
            return Err(Invalid::NoName);
        }
        match (&self.entry, self.steps.is_empty()) {
            (None, true) => return Err(Invalid::NothingToRun),
            (Some(_), false) => return Err(Invalid::Both),
            _ => {}
        }
        if self.connect.as_ref().is_some_and(|connect| connect.routers.is_empty()) {
            return Err(Invalid::NoRouter);
        }
        for (index, service) in self.services.iter().enumerate() {
            if self.services[..index].iter().any(|other| other.name == service.name) {
                return Err(Invalid::Twice(service.name.clone()));
            }
        }
        let workflow = Workflow::new(&self.steps)?;
        for stop in workflow.stops() {
            match stop {
                Stop::Call { service, .. } => self.knows("a step", service)?,
                Stop::Egress { destination, .. } if !self.destinations.contains(destination) => {
                    return Err(Invalid::ForbiddenDestination(destination.clone()));
                }
                Stop::Egress { .. } => {}
            }
        }
        if let Some(entry) = &self.entry {
            self.knows("the entry", &entry.service)?;
            versions(entry)?;
        }
        Ok(workflow)
    }

    fn knows(&self, user: &'static str, name: &str) -> Result<(), Invalid> {
        match self.services.iter().any(|service| service.name == name) {
            true => Ok(()),
            false => Err(Invalid::UnknownService { user, name: name.to_owned() }),
        }
    }
}

fn versions(entry: &Entry) -> Result<(), Invalid> {
    if entry.protocol != EntryProtocol::Bulkhead && !entry.context_versions.is_empty() {
        return Err(Invalid::VersionsOfNobody);
    }
    let is_word = |version: &&String| {
        (1..=MAX_VERSION).contains(&version.len()) && version.bytes().all(|byte| byte.is_ascii_graphic())
    };
    match entry.context_versions.iter().find(|version| !is_word(version)) {
        Some(version) => Err(Invalid::Version(version.clone())),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflow::plan::tests::steps;

    fn service(name: &str) -> Service {
        Service { name: name.to_owned(), ..Service::default() }
    }

    fn valid() -> CellConfig {
        CellConfig {
            cell: "a".to_owned(),
            services: vec![service("web")],
            entry: Some(Entry { service: "web".to_owned(), ..Entry::default() }),
            ..CellConfig::default()
        }
    }

    /// Of steps in the place of the entry.
    fn check_steps(texts: &[&str], invalid: &Option<Invalid>) {
        let change = |config: &mut CellConfig| {
            config.entry = None;
            config.steps = steps(texts);
            config.destinations = vec!["visa".to_owned()];
        };
        check(change, invalid);
    }

    fn check_versions(protocol: EntryProtocol, versions: &[&str], invalid: &Option<Invalid>) {
        let context_versions = versions.iter().map(|version| (*version).to_owned()).collect();
        let entry = Entry { service: "web".to_owned(), protocol, context_versions };
        check(|config| config.entry = Some(entry), invalid);
    }

    fn check(change: impl FnOnce(&mut CellConfig), invalid: &Option<Invalid>) {
        let mut config = valid();
        change(&mut config);
        assert_eq!(config.validate().err(), *invalid);
    }

    #[test]
    fn what_cannot_run_is_refused_with_what_to_do() {
        check(|_| {}, &None);
        check(|config| config.cell.clear(), &Some(Invalid::NoName));
        check(|config| config.entry = None, &Some(Invalid::NothingToRun));
        check(|config| config.steps = steps(&["web:/"]), &Some(Invalid::Both));
        check(|config| config.services.push(service("web")), &Some(Invalid::Twice("web".to_owned())));
        check(
            |config| config.services.clear(),
            &Some(Invalid::UnknownService { user: "the entry", name: "web".to_owned() }),
        );
    }

    #[test]
    fn steps_may_only_reach_what_the_cell_may_and_has() {
        check_steps(&["web:/", "destination:visa", "web:/"], &None);
        check_steps(&["destination:visa"], &None);
        check_steps(&["web:/", "destination:amex"], &Some(Invalid::ForbiddenDestination("amex".to_owned())));
        let unknown = Invalid::UnknownService { user: "a step", name: "db".to_owned() };
        check_steps(&["destination:visa", "db:/"], &Some(unknown));
        check(|config| (config.entry, config.steps) = (None, vec![Step::default()]), &Some(Invalid::Step(1)));
    }

    #[test]
    fn context_versions_are_words_of_an_entry_that_speaks_for_itself() {
        check_versions(EntryProtocol::Bulkhead, &["1", "2"], &None);
        check_versions(EntryProtocol::Http1, &["1"], &Some(Invalid::VersionsOfNobody));
        check_versions(EntryProtocol::Bulkhead, &["a b"], &Some(Invalid::Version("a b".to_owned())));
        check_versions(EntryProtocol::Bulkhead, &[""], &Some(Invalid::Version(String::new())));
    }

    #[test]
    fn reads_what_the_operator_renders() {
        let text = "
cell: payments-a
revision: payments-1
entry: {service: web}
services:
- {name: web, port: 8080, readinessPath: /readyz, minReady: 2, required: true}
- {name: audit, port: 8080, required: false}
capacity: {inFlight: 200}
connect: {listen: '0.0.0.0:8083', routers: ['10.96.0.9:8082']}
";
        let config: CellConfig = serde_yaml::from_str(text).expect("parses");
        assert_eq!(config.validate().err(), None);
        assert_eq!((config.services[0].min_ready, config.services[1].min_ready), (2, 1));
        assert_eq!(config.services[1].readiness_path, "/readyz");
        assert_eq!(config.capacity.and_then(|capacity| capacity.in_flight), Some(200));
        let connect =
            Connect { listen: ([0, 0, 0, 0], 8083).into(), routers: vec!["10.96.0.9:8082".to_owned()] };
        assert_eq!(config.connect, Some(connect));
    }
}
