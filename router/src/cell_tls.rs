//! How cells outside this cluster are connected to, as the Router says: in the clear, or by TLS with the Cell's name.

use std::path::PathBuf;

use bulkhead_process::Connector;
use bulkhead_process::tls::Client;
use bulkhead_routing::table::{Table, TableCell};

use crate::certificates::{Certificates, Folders};
use crate::egress::ClientFolders;

/// What is remembered between tables.
#[derive(Default)]
pub(crate) struct CellCertificates {
    certificates: Certificates<ClientFolders>,
    /// As connections were made by the table before.
    last: Option<Link>,
}

/// How connections to all of these cells are made.
#[derive(Clone)]
enum Link {
    Plain,
    Tls(Client),
    Closed(String),
}

/// How connections to cells are made by one table.
pub(crate) struct CellLinks {
    link: Link,
    /// What is wrong with the certificates that are there now.
    pub(crate) wrong: Option<String>,
}

impl CellCertificates {
    pub(crate) fn new(tls_dir: Option<PathBuf>) -> Self {
        Self { certificates: Certificates::new(Folders::of(tls_dir)), last: None }
    }

    /// Whether certificates have changed since the last table.
    pub(crate) fn refresh(&mut self, now_ms: u64) -> bool {
        self.certificates.refresh(now_ms)
    }

    /// A router goes on as it was while other certificates are not there yet: a Secret comes with the pod that mounts it,
    /// and its Router before. One that starts without them connects to no such cell.
    pub(crate) async fn of_table(&mut self, table: &Table) -> CellLinks {
        let spec = table.cell_tls.as_ref();
        let folders = spec.map(|tls| ClientFolders::new(&tls.ca_secret, tls.certificate_secret.as_ref()));
        self.certificates.want(folders.clone().into_iter()).await;
        let (link, wrong) = match &folders {
            None => (Link::Plain, None),
            Some(folders) => {
                let (client, wrong) = self.certificates.get(folders);
                let wrong = match (client, wrong) {
                    (None, None) => Some("certificates are not read yet".to_owned()),
                    (_, wrong) => wrong.map(str::to_owned),
                };
                let wrong = wrong.map(|wrong| format!("cellTls: {wrong}"));
                let before = || self.last.clone().filter(|last| !matches!(last, Link::Closed(_)));
                let link = client.cloned().map(Link::Tls).or_else(before);
                (link.unwrap_or_else(|| Link::Closed(wrong.clone().unwrap_or_default())), wrong)
            }
        };
        self.last = Some(link.clone());
        CellLinks { link, wrong }
    }
}

impl CellLinks {
    /// Equal to that of the table before where nothing changed.
    pub(crate) fn connector(&self, cell: &TableCell) -> Connector {
        if cell.endpoints.is_empty() {
            return Connector::plain();
        }
        match &self.link {
            Link::Plain => Connector::plain(),
            Link::Closed(why) => Connector::closed(why),
            Link::Tls(client) => match cell.name.to_string().try_into() {
                Ok(name) => Connector::tls(client.clone(), name),
                Err(_) => Connector::closed("no certificate can carry the name of that Cell"),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bulkhead_routing::table::{Inputs, build};
    use serde_json::{Value, json};

    use super::*;
    use crate::egress::fixture::{Authority, eventually};

    /// Cell `far` has endpoints of its own, and `near` a template.
    fn table(cell_tls: &Value) -> Table {
        let object = |kind: &str, name: &str, spec: &Value| json!({"apiVersion": "bulkhead.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        let cell = |name, spec| serde_json::from_value(object("Cell", name, &spec)).expect("is a Cell");
        let router = json!({"listeners": [{"name": "http", "port": 8080}], "cellTls": cell_tls});
        build(&Inputs {
            router: &serde_json::from_value(object("Router", "main", &router)).expect("is a Router"),
            cells: vec![
                &cell("far", json!({"endpoints": ["127.0.0.1:1"]})),
                &cell("near", json!({"template": "t"})),
            ],
            policies: Vec::new(),
            shifts: Vec::new(),
            destinations: Vec::new(),
        })
        .table
    }

    /// Connectors to `far` and `near`, and what is wrong.
    async fn made(known: &mut CellCertificates, cell_tls: Value) -> (Connector, Connector, String) {
        let table = table(&cell_tls);
        let links = known.of_table(&table).await;
        let mut connectors = table.cells().map(|(_, cell)| links.connector(cell));
        let mut next = || connectors.next().expect("there are two");
        (next(), next(), links.wrong.unwrap_or_default())
    }

    fn known(directory: &Path) -> CellCertificates {
        CellCertificates::new(Some(directory.to_owned()))
    }

    #[tokio::test]
    async fn a_router_goes_on_as_it_was_until_certificates_come_and_never_starts_in_the_clear() {
        let directory = tempfile::tempdir().expect("makes a folder");
        let mut running = known(directory.path());
        let plain = Connector::plain();
        let (far, near, wrong) = made(&mut running, Value::Null).await;
        assert_eq!((far, near, &*wrong), (plain.clone(), plain.clone(), ""));
        let (far, _, wrong) = made(&mut running, json!({"caSecret": "ca"})).await;
        assert!(far == plain && wrong.contains("cellTls: ") && wrong.contains("ca/ca.crt"), "{wrong}");

        let mut starting = known(directory.path());
        let (far, near, wrong) = made(&mut starting, json!({"caSecret": "ca"})).await;
        assert_eq!((far, near), (Connector::closed(&wrong), plain.clone()));

        Authority::new().write(directory.path(), "ca");
        for known in [&mut running, &mut starting] {
            let mut now_ms = 0;
            eventually(|| {
                now_ms += 2_000;
                known.refresh(now_ms)
            })
            .await;
            let (far, near, wrong) = made(known, json!({"caSecret": "ca"})).await;
            assert!(
                far != plain && far != Connector::closed("") && near == plain && wrong.is_empty(),
                "{wrong}"
            );
            let same = made(known, json!({"caSecret": "ca"})).await;
            assert!(far == same.0, "nothing changed");
            let other = made(known, json!({"caSecret": "other"})).await;
            assert!(far == other.0 && other.2.contains("other/ca.crt"), "{}", other.2);
        }
    }
}
