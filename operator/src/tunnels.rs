//! Where cells find the routers that open tunnels: purely, from the Services of the routers' namespace. Which cells may have
//! tunnels, and where to, is the routers' to judge.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bulkhead_crds::{Cell, Destination, names};
use k8s_openapi::api::core::v1::Service;
use kube::ResourceExt;

/// The address of the Service through which routers open tunnels: it stays when routers come and go, and nobody's DNS has to
/// know it. Its port is that of the routers' pods too, which is what walls see. None where routers open no tunnels; of several
/// Services the first by name.
pub(crate) fn address(services: &[Arc<Service>]) -> Option<SocketAddr> {
    let usable = services.iter().filter_map(|service| Some((service.name_any(), address_of(service)?)));
    usable.min().map(|(_, address)| address)
}

fn address_of(service: &Service) -> Option<SocketAddr> {
    let spec = service.spec.as_ref()?;
    // A headless one says "None", which is no address.
    let ip: IpAddr = spec.cluster_ip.as_deref()?.parse().ok()?;
    let port = spec.ports.iter().flatten().find(|port| port.name.as_deref() == Some(names::PORT_CONNECT))?;
    Some(SocketAddr::new(ip, u16::try_from(port.port).ok()?))
}

/// Whether the Cell may have tunnels at all: it names a Destination that is reached by them.
pub(crate) fn may_have(cell: &Cell, destinations: &[Destination]) -> bool {
    let is_named = |destination: &&Destination| cell.spec.destinations.contains(&destination.name_any());
    destinations.iter().filter(is_named).any(|destination| destination.spec.connect.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixture;

    #[test]
    fn the_address_is_that_of_the_first_service_that_has_one() {
        let check = |services: &[(&str, &str, &str)], expected: Option<&str>| {
            let service = |(name, ip, port): &(&str, &str, &str)| {
                let spec = json!({"clusterIP": ip, "ports": [{"name": "other", "port": 1}, {"name": port, "port": 8082}]});
                let service = json!({"metadata": {"name": name}, "spec": spec});
                Arc::new(serde_json::from_value(service).expect("is one"))
            };
            let services: Vec<Arc<Service>> = services.iter().map(service).collect();
            assert_eq!(address(&services).map(|address| address.to_string()).as_deref(), expected);
        };
        check(&[("b", "10.0.0.2", "connect"), ("a", "10.0.0.1", "connect")], Some("10.0.0.1:8082"));
        check(&[("a", "None", "connect"), ("b", "fd00::2", "connect")], Some("[fd00::2]:8082"));
        check(&[("a", "10.0.0.1", "http")], None);
        check(&[], None);
    }

    #[test]
    fn a_cell_may_have_tunnels_once_a_destination_that_it_names_is_reached_by_them() {
        let destination = |name: &str, kind: &str| {
            let spec = json!({kind: {}, "endpoints": ["there:443"]});
            Destination::new(name, serde_json::from_value(spec).expect("is one"))
        };
        let destinations = [destination("visa", "http"), destination("keys", "connect")];
        let check = |named: &[&str], expected: bool| {
            let mut cell = fixture::cell();
            cell.spec.destinations = named.iter().map(|name| (*name).to_owned()).collect();
            assert_eq!(may_have(&cell, &destinations), expected, "{named:?}");
        };
        check(&["visa", "keys"], true);
        check(&["visa"], false);
        check(&["time"], false);
        check(&[], false);
    }
}
