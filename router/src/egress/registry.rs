//! Destinations of a table, with the addresses of their names and their certificates. The builder of tables has it; what it
//! makes is handed to the request path whole.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use bulkhead_process::Connector;
use bulkhead_process::tls::Client;
use bulkhead_routing::table::{Destination, Table};
use http::HeaderValue;

use super::address::{self, Bounds};
use super::certificates::ClientFolders;
use super::destination::{DestinationLive, Endpoint};
use crate::certificates::{Certificates, Folders};
use crate::names::Names;

/// Every Destination by its name.
pub(crate) type Destinations = HashMap<Arc<str>, Arc<DestinationLive>>;

/// What is remembered between tables.
#[derive(Default)]
pub(crate) struct Registry {
    bounds: Bounds,
    certificates: Certificates<ClientFolders>,
    known: Arc<Destinations>,
}

impl Registry {
    pub(crate) fn new(tls_dir: Option<PathBuf>, bounds: Bounds) -> Self {
        Self { bounds, certificates: Certificates::new(Folders::of(tls_dir)), known: Arc::default() }
    }

    /// Whether certificates have changed since the last table.
    pub(crate) fn refresh(&mut self, now_ms: u64) -> bool {
        self.certificates.refresh(now_ms)
    }

    /// The Destinations of that table. One that is as it was is the same object, with its connections.
    pub(crate) async fn of_table(&mut self, table: &Table, names: &Names) -> Arc<Destinations> {
        let wanted = table.destinations().filter_map(|spec| spec.tls.as_ref()).map(ClientFolders::of);
        self.certificates.want(wanted).await;
        let all = table.destinations().map(|spec| (Arc::clone(&spec.name), self.live(spec, names)));
        self.known = Arc::new(all.collect());
        Arc::clone(&self.known)
    }

    fn live(&self, spec: &Arc<Destination>, names: &Names) -> Arc<DestinationLive> {
        let known = self.known.get(&spec.name);
        let (client, wrong) = match &spec.tls {
            Some(tls) => self.certificates.get(&ClientFolders::of(tls)),
            None => (None, None),
        };
        let mut live = DestinationLive {
            spec: Arc::clone(spec),
            endpoints: Vec::new(),
            refused: Vec::new(),
            certificates: wrong.map(str::to_owned),
            load: known.map(|known| Arc::clone(&known.load)).unwrap_or_default(),
        };
        // What may not be spoken to in the clear is not spoken to at all while there are no certificates.
        if spec.tls.is_none() || client.is_some() {
            for endpoint in &spec.endpoints {
                self.add(&mut live, endpoint, client, names);
            }
        }
        match known {
            Some(known) if known.same_as(&live) => Arc::clone(known),
            _ => Arc::new(live),
        }
    }

    fn add(&self, live: &mut DestinationLive, endpoint: &str, client: Option<&Client>, names: &Names) {
        let spec = Arc::clone(&live.spec);
        let parts = connector(&spec, endpoint, client)
            .and_then(|connector| Some((connector, HeaderValue::try_from(endpoint).ok()?)));
        let Some((connector, authority)) = parts else {
            return live.refused.push(format!("{endpoint}: no certificate can carry that name"));
        };
        let addresses = names.addresses(endpoint);
        if addresses.is_empty() {
            live.refused.push(format!("{endpoint}: the name has no address"));
        }
        let is_name = endpoint.parse::<SocketAddr>().is_err();
        let allowed = is_name.then_some(spec.allowed_networks.as_slice());
        for address in addresses {
            match address::judge(address.ip(), allowed, &self.bounds) {
                Err(refused) => live.refused.push(format!("{endpoint}: {} is {refused}", address.ip())),
                Ok(()) => live.endpoints.push(Arc::new(Endpoint {
                    address,
                    authority: authority.clone(),
                    connector: connector.clone(),
                })),
            }
        }
    }
}

fn connector(spec: &Destination, endpoint: &str, client: Option<&Client>) -> Option<Connector> {
    let (Some(tls), Some(client)) = (&spec.tls, client) else { return Some(Connector::plain()) };
    let host = endpoint.rsplit_once(':').map_or(endpoint, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let name = tls.server_name.as_deref().unwrap_or(host).to_owned();
    Some(Connector::tls(client.clone(), name.try_into().ok()?))
}

#[cfg(test)]
mod tests;
