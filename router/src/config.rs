//! What a router process is started with. What it serves comes from its source.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use ipnet::IpNet;
use prometheus::Registry;

/// Flags of a router.
#[derive(Args, Clone, Debug)]
pub struct Config {
    /// Name of the Router object to serve.
    #[arg(long, env = "BULKHEAD_ROUTER")]
    pub router: String,
    /// Where objects come from: `kubernetes`, or a folder of YAML files, which is watched.
    #[arg(long, env = "BULKHEAD_SOURCE", default_value = "kubernetes")]
    pub source: Source,
    /// Kubeconfig of the cluster, where it is not the one that the process runs in.
    #[arg(long, env = "BULKHEAD_KUBECONFIG")]
    pub kubeconfig: Option<PathBuf>,
    /// File for the last good table, from which the router starts while the API server does not answer.
    #[arg(long, env = "BULKHEAD_TABLE_FILE")]
    pub table_file: Option<PathBuf>,
    /// Folder of the ledger, this process's alone. Without it the record of effects is in memory, and a restart forgets it.
    #[arg(long, env = "BULKHEAD_LEDGER_DIR")]
    pub ledger_dir: Option<PathBuf>,
    /// How long a transaction with an effect is remembered after its end, so that its key is not run again.
    #[arg(long, env = "BULKHEAD_LEDGER_WINDOW", default_value = "1h", value_parser = duration)]
    pub ledger_window: Duration,
    /// Address of probes, metrics and `/v1/serving`.
    #[arg(long, env = "BULKHEAD_ADMIN_ADDRESS", default_value = "0.0.0.0:9090")]
    pub admin_address: SocketAddr,
    /// Address at which cells ask for tunnels to `connect` Destinations. Without one there are none.
    #[arg(long, env = "BULKHEAD_CONNECT_ADDRESS")]
    pub connect_address: Option<SocketAddr>,
    /// Worker threads. By default one for each core that the process may use.
    #[arg(long, env = "BULKHEAD_THREADS")]
    pub threads: Option<NonZeroUsize>,
    /// Name of this process's pod, as the operator knows it.
    #[arg(long, env = "POD_NAME", default_value = "router")]
    pub pod_name: String,
    /// Address that listeners are opened on; their ports are the Router object's.
    #[arg(long, env = "BULKHEAD_LISTEN_IP", default_value_t = IpAddr::V4(Ipv4Addr::UNSPECIFIED))]
    pub listen_ip: IpAddr,
    /// Port of a listener in the place of the Router object's, as `NAME=PORT`; 0 takes a free one.
    #[arg(long = "listen-port", value_name = "NAME=PORT")]
    pub listen_ports: Vec<ListenPort>,
    /// How long a router that was asked to stop goes on accepting, so that those who send to it notice that it is no
    /// longer ready.
    #[arg(long, env = "BULKHEAD_DRAIN_DELAY", default_value = "2s", value_parser = duration)]
    pub drain_delay: Duration,
    /// Directory with a folder for each Secret that Destinations and listeners name: `ca.crt`, or `tls.crt` and `tls.key`.
    /// Changed files are taken without a restart.
    #[arg(long, env = "BULKHEAD_TLS_DIR")]
    pub tls_dir: Option<PathBuf>,
    /// Networks of the cluster (pods, services, nodes), to which no name of a Destination may lead unless its
    /// `allowedNetworks` says so. Separated by commas; private networks need not be named.
    #[arg(long, env = "BULKHEAD_CLUSTER_NETWORKS", value_delimiter = ',')]
    pub cluster_networks: Vec<IpNet>,
    /// Where metrics are registered.
    #[arg(skip)]
    pub registry: Registry,
    /// Run on the worker's thread when a message is on record and not yet sent.
    #[cfg(feature = "failpoints")]
    #[arg(skip)]
    pub before_send: BeforeSend,
}

/// What a test does to a router in the worst moment.
#[cfg(feature = "failpoints")]
#[derive(Clone, Default)]
pub struct BeforeSend(pub Option<std::sync::Arc<dyn Fn() + Send + Sync>>);

#[cfg(feature = "failpoints")]
impl BeforeSend {
    pub(crate) fn run(&self) {
        if let Some(run) = &self.0 {
            run();
        }
    }
}

#[cfg(feature = "failpoints")]
impl std::fmt::Debug for BeforeSend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("BeforeSend")
    }
}

impl Config {
    /// For processes that embed a router: loopback, free ports for admin and the listener of that name, no waiting.
    pub fn local(router: &str, listener: &str, source: Source) -> Self {
        let loopback = IpAddr::V4(Ipv4Addr::LOCALHOST);
        Self {
            router: router.to_owned(),
            source,
            kubeconfig: None,
            table_file: None,
            ledger_dir: None,
            ledger_window: Duration::from_secs(3600),
            admin_address: SocketAddr::new(loopback, 0),
            connect_address: None,
            threads: None,
            pod_name: "router".to_owned(),
            listen_ip: loopback,
            listen_ports: vec![ListenPort { name: listener.to_owned(), port: 0 }],
            drain_delay: Duration::ZERO,
            tls_dir: None,
            cluster_networks: Vec::new(),
            registry: Registry::new(),
            #[cfg(feature = "failpoints")]
            before_send: BeforeSend::default(),
        }
    }

    pub(crate) fn thread_count(&self) -> usize {
        match self.threads {
            Some(threads) => threads.get(),
            None => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
        }
    }

    pub(crate) fn port(&self, listener: &str, port: u16) -> u16 {
        let own = self.listen_ports.iter().find(|own| own.name == listener);
        own.map_or(port, |own| own.port)
    }
}

/// Where objects come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    Kubernetes,
    Folder(PathBuf),
}

impl FromStr for Source {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == "kubernetes" { Self::Kubernetes } else { Self::Folder(text.into()) })
    }
}

/// A listener's port on this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenPort {
    pub name: String,
    pub port: u16,
}

impl FromStr for ListenPort {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, port) = text.split_once('=').ok_or("write NAME=PORT, such as http=8080")?;
        let port = port.parse().map_err(|_| format!("{port:?} is not a port from 0 to 65535"))?;
        Ok(Self { name: name.to_owned(), port })
    }
}

fn duration(text: &str) -> Result<Duration, bulkhead_crds::duration::InvalidDuration> {
    text.parse::<bulkhead_crds::Duration>().map(bulkhead_crds::Duration::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_the_cluster_or_a_folder() {
        assert_eq!("kubernetes".parse(), Ok(Source::Kubernetes));
        assert_eq!("./yaml".parse(), Ok(Source::Folder("./yaml".into())));
    }

    #[test]
    fn a_port_belongs_to_a_listener() {
        assert_eq!("http=0".parse(), Ok(ListenPort { name: "http".to_owned(), port: 0 }));
        assert!("8080".parse::<ListenPort>().is_err());
        assert!("http=x".parse::<ListenPort>().is_err());
    }
}
