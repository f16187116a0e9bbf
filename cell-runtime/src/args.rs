//! The flags, and how they become a configuration: all by themselves outside Kubernetes, beside a file within.

use std::collections::BTreeMap;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use bulkhead_crds::cell::Capacity;
use bulkhead_crds::template::{Entry, EntryProtocol, Service, Step};
use bulkhead_process::LogArgs;
use clap::Parser;
use prometheus::Registry;

use crate::config::{CellConfig, Config, Connect, DEFAULT_BODY_LIMIT, DEFAULT_PROBE_TIMEOUT, Discovery};
use crate::discovery;

/// The orchestrator of a cell.
#[derive(Parser, Clone, Debug)]
#[command(name = "bulkhead-cell-runtime", version)]
pub struct Args {
    /// Name of the cell; default: the file's.
    #[arg(long, env = "BULKHEAD_CELL")]
    cell: Option<String>,
    /// What this pod calls itself.
    #[arg(long, env = "POD_NAME", default_value = "cell-runtime")]
    pod_name: String,
    /// Where routers send transactions.
    #[arg(long, default_value = "0.0.0.0:8080")]
    listen: SocketAddr,
    /// Where routers read the health stream; default: the port after `--listen`'s.
    #[arg(long)]
    health_listen: Option<SocketAddr>,
    #[arg(long, default_value = "0.0.0.0:9090")]
    admin_address: SocketAddr,
    /// The cell's services, entry, steps and capacity, as YAML. Flags of the same meaning win.
    #[arg(long)]
    config: Option<PathBuf>,
    /// `NAME=HOST:PORT[/READINESS-PATH]`; once for each pod of each service.
    #[arg(long = "service")]
    services: Vec<String>,
    /// The service that takes whole transactions.
    #[arg(long)]
    entry: Option<String>,
    /// `http1`, or `bulkhead` for an entry that gives transactions back and reaches destinations itself.
    #[arg(long, value_parser = parse_protocol)]
    entry_protocol: Option<EntryProtocol>,
    /// A version of contexts that such an entry can go on from; once for each.
    #[arg(long = "context-version")]
    context_versions: Vec<String>,
    /// `NAME:/PATH` for a service that is called, `destination:NAME` for a destination; in this order.
    #[arg(long = "step")]
    steps: Vec<String>,
    /// A destination that steps may name; once for each. What is let through, the router says.
    #[arg(long = "destination")]
    destinations: Vec<String>,
    /// Health addresses of the cell's other orchestrators, outside Kubernetes.
    #[arg(long = "peer")]
    peers: Vec<SocketAddr>,
    /// Where the cell's services ask for tunnels to `connect` Destinations, as HTTPS_PROXY says.
    #[arg(long)]
    connect_listen: Option<SocketAddr>,
    /// `HOST:PORT` of the routers' `--connect-address`; separated by commas.
    #[arg(long, value_delimiter = ',')]
    router_connect: Vec<String>,
    /// Find the pods of services, and peers, by EndpointSlices in this pod's own namespace.
    #[arg(long)]
    kubernetes: bool,
    /// The namespace; default: this pod's own.
    #[arg(long, env = "POD_NAMESPACE")]
    namespace: Option<String>,
    /// Transactions that the whole cell may have under way.
    #[arg(long)]
    capacity_in_flight: Option<u32>,
    /// Transactions that may begin each second in the whole cell.
    #[arg(long)]
    capacity_requests_per_second: Option<u32>,
    /// Largest body that steps pass on, in bytes.
    #[arg(long, default_value_t = DEFAULT_BODY_LIMIT)]
    body_limit: usize,
    /// How long to go on serving at most once asked to stop.
    #[arg(long, default_value = "25s")]
    drain_timeout: bulkhead_crds::Duration,
    #[command(flatten)]
    pub log: LogArgs,
}

/// One `--service`.
#[derive(Debug, PartialEq, Eq)]
struct ServiceFlag {
    name: String,
    host: String,
    readiness_path: String,
}

impl Args {
    /// Reads the file, resolves hosts, and connects to Kubernetes where that is wanted.
    ///
    /// # Errors
    /// When the file or a flag is malformed, with which.
    pub async fn into_config(self, registry: Registry) -> anyhow::Result<Config> {
        let (cell, fixed) = self.cell_config()?;
        let discovery = if self.kubernetes {
            ensure!(fixed.is_empty(), "--kubernetes finds the pods of services itself; leave out --service");
            let client = discovery::client().await.context("cannot reach Kubernetes")?;
            let namespace = self.namespace.unwrap_or_else(|| client.default_namespace().to_owned());
            Discovery::Kubernetes { client, namespace }
        } else {
            Discovery::Fixed { services: fixed, peers: self.peers }
        };
        Ok(Config {
            cell,
            pod: self.pod_name,
            listen: self.listen,
            health_listen: self.health_listen,
            admin_listen: Some(self.admin_address),
            discovery,
            body_limit: self.body_limit,
            drain_timeout: Duration::from(self.drain_timeout),
            probe_timeout: DEFAULT_PROBE_TIMEOUT,
            registry,
        })
    }

    fn cell_config(&self) -> anyhow::Result<(CellConfig, BTreeMap<String, Vec<SocketAddr>>)> {
        let mut cell = match &self.config {
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .with_context(|| format!("cannot read the configuration {}", path.display()))?;
                serde_yaml::from_str(&text)
                    .with_context(|| format!("the configuration {} is malformed", path.display()))?
            }
            None => CellConfig::default(),
        };
        if let Some(name) = &self.cell {
            cell.cell.clone_from(name);
        }
        let mut fixed: BTreeMap<String, Vec<SocketAddr>> = BTreeMap::new();
        for text in &self.services {
            let flag = parse_service(text)?;
            let addresses = flag.host.to_socket_addrs().with_context(|| format!("--service {text}"))?;
            fixed.entry(flag.name.clone()).or_default().extend(addresses);
            if !cell.services.iter().any(|service| service.name == flag.name) {
                cell.services.push(flag.service());
            }
        }
        self.set_entry(&mut cell)?;
        if !self.destinations.is_empty() {
            cell.destinations.clone_from(&self.destinations);
        }
        if !self.steps.is_empty() {
            cell.steps = self.steps.iter().map(|text| parse_step(text)).collect::<anyhow::Result<_>>()?;
        }
        self.set_connect(&mut cell)?;
        if self.capacity_in_flight.is_some() || self.capacity_requests_per_second.is_some() {
            cell.capacity = Some(Capacity {
                in_flight: self.capacity_in_flight,
                requests_per_second: self.capacity_requests_per_second,
            });
        }
        Ok((cell, fixed))
    }

    fn set_entry(&self, cell: &mut CellConfig) -> anyhow::Result<()> {
        if let Some(service) = &self.entry {
            cell.entry = Some(Entry { service: service.clone(), ..Entry::default() });
        }
        if self.entry_protocol.is_none() && self.context_versions.is_empty() {
            return Ok(());
        }
        let entry = cell.entry.as_mut();
        let entry =
            entry.context("--entry-protocol and --context-version need an entry; name it with --entry")?;
        if let Some(protocol) = self.entry_protocol {
            entry.protocol = protocol;
        }
        if !self.context_versions.is_empty() {
            entry.context_versions.clone_from(&self.context_versions);
        }
        Ok(())
    }

    fn set_connect(&self, cell: &mut CellConfig) -> anyhow::Result<()> {
        if let Some(listen) = self.connect_listen {
            cell.connect = Some(Connect { listen, routers: self.router_connect.clone() });
        } else if !self.router_connect.is_empty() {
            let connect = cell.connect.as_mut();
            let connect =
                connect.context("--router-connect needs --connect-listen, or connect in the file")?;
            connect.routers.clone_from(&self.router_connect);
        }
        Ok(())
    }
}

impl ServiceFlag {
    fn service(&self) -> Service {
        Service {
            name: self.name.clone(),
            readiness_path: self.readiness_path.clone(),
            min_ready: 1,
            required: true,
            ..Service::default()
        }
    }
}

fn parse_service(text: &str) -> anyhow::Result<ServiceFlag> {
    let malformed = || format!("--service {text:?} is not NAME=HOST:PORT[/READINESS-PATH]");
    let (name, rest) = text.split_once('=').with_context(malformed)?;
    let (host, path) = match rest.find('/') {
        Some(slash) => rest.split_at(slash),
        None => (rest, "/readyz"),
    };
    ensure!(!name.is_empty() && host.contains(':'), malformed());
    Ok(ServiceFlag { name: name.to_owned(), host: host.to_owned(), readiness_path: path.to_owned() })
}

fn parse_protocol(text: &str) -> Result<EntryProtocol, String> {
    serde_json::from_value(text.into()).map_err(|_| "not one of http1, h2c and bulkhead".to_owned())
}

/// Steps by flag have the time-out that steps have by default. A path begins with `/`, which the name of no destination
/// does, so that a service may be called `destination` too.
pub(crate) fn parse_step(text: &str) -> anyhow::Result<Step> {
    let step = match text.split_once(':') {
        Some((service, path)) if path.starts_with('/') => {
            serde_json::json!({"service": service, "path": path})
        }
        Some(("destination", name)) if !name.is_empty() => serde_json::json!({"destination": name}),
        _ => bail!("--step {text:?} is neither NAME:/PATH nor destination:NAME"),
    };
    serde_json::from_value(step).with_context(|| format!("--step {text:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(flags: &[&str]) -> anyhow::Result<(CellConfig, BTreeMap<String, Vec<SocketAddr>>)> {
        Args::parse_from([&["bulkhead-cell-runtime"], flags].concat()).cell_config()
    }

    #[test]
    fn flags_alone_make_a_cell() {
        let (cell, fixed) = parse(&[
            "--cell=a",
            "--service=web=127.0.0.1:81",
            "--service=web=127.0.0.1:82",
            "--service=db=127.0.0.1:83/health",
            "--entry=web",
        ])
        .expect("parses");
        assert_eq!(cell.validate().err(), None);
        assert_eq!((fixed["web"].len(), fixed["db"].len(), cell.services.len()), (2, 1, 2));
        assert_eq!(cell.services[1].readiness_path, "/health");
    }

    #[test]
    fn steps_keep_their_order_and_have_a_time_out() {
        let (cell, _) =
            parse(&["--service=x=127.0.0.1:81", "--step=x:/one", "--step=x:/two"]).expect("parses");
        let paths: Vec<&str> =
            cell.steps.iter().map(|step| step.path.as_deref().unwrap_or_default()).collect();
        assert_eq!(paths, ["/one", "/two"]);
        assert_eq!(cell.steps[0].timeout, bulkhead_crds::Duration::from_secs(5));
    }

    #[test]
    fn a_step_may_be_a_destination() {
        let (cell, _) = parse(&[
            "--cell=a",
            "--service=destination=127.0.0.1:81",
            "--step=destination:/choose",
            "--step=destination:visa",
            "--destination=visa",
        ])
        .expect("parses");
        assert_eq!(cell.validate().err(), None);
        assert_eq!(cell.steps[0].service.as_deref(), Some("destination"));
        assert_eq!((&cell.steps[1].service, cell.steps[1].destination.as_deref()), (&None, Some("visa")));
    }

    #[test]
    fn an_entry_that_speaks_for_itself_says_what_it_can_go_on_from() {
        let flags = ["--cell=a", "--service=web=127.0.0.1:81", "--entry=web", "--entry-protocol=bulkhead"];
        let (cell, _) = parse(&[&flags[..], &["--context-version=1"]].concat()).expect("parses");
        assert_eq!(cell.validate().err(), None);
        let entry = cell.entry.expect("an entry");
        assert_eq!(
            (entry.protocol, &entry.context_versions[..]),
            (EntryProtocol::Bulkhead, &["1".to_owned()][..])
        );
        let error = parse(&["--context-version=1"]).expect_err("whose?");
        assert!(error.to_string().contains("--entry"), "{error}");
    }

    #[test]
    fn tunnels_need_an_address_and_a_router() {
        let (cell, _) = parse(&["--connect-listen=127.0.0.1:3128", "--router-connect=r-0:8082,r-1:8082"])
            .expect("parses");
        let connect = cell.connect.expect("there are tunnels");
        assert_eq!(
            (connect.listen.port(), connect.routers.join(" ")),
            (3128, "r-0:8082 r-1:8082".to_owned())
        );
        let error = parse(&["--router-connect=r-0:8082"]).expect_err("has no address");
        assert!(error.to_string().contains("--connect-listen"), "{error}");
    }

    #[test]
    fn malformed_flags_are_named() {
        for flags in [
            ["--service=web"],
            ["--service=web=nohost"],
            ["--step=x"],
            ["--step=x:path"],
            ["--step=destination:"],
        ] {
            let error = parse(&flags).expect_err(flags[0]);
            assert!(format!("{error:#}").contains(flags[0].split('=').next().expect("a flag")), "{error:#}");
        }
    }
}
