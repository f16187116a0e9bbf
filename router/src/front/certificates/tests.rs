//! Servers as tables make them: what is missing, what changes, and what stays meanwhile.

use std::fs;
use std::path::Path;

use bulkhead_routing::table::{Inputs, build};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::egress::fixture::{Authority, eventually};

struct World {
    directory: TempDir,
    authority: Authority,
    certificates: ListenerCertificates,
    now_ms: u64,
}

fn table(tls: &str) -> Table {
    let tls: Value = serde_yaml::from_str(tls).expect("is YAML");
    let router = json!({
        "apiVersion": "bulkhead.dev/v1alpha1", "kind": "Router", "metadata": {"name": "main"},
        "spec": {"listeners": [{"name": "https", "port": 8443, "tls": tls}, {"name": "http", "port": 8080}]},
    });
    build(&Inputs {
        router: &serde_json::from_value(router).expect("is a Router"),
        cells: Vec::new(),
        policies: Vec::new(),
        shifts: Vec::new(),
        destinations: Vec::new(),
    })
    .table
}

impl World {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("makes a folder");
        let certificates = ListenerCertificates::new(Some(directory.path().to_owned()));
        Self { directory, authority: Authority::new(), certificates, now_ms: 0 }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn certify(&self, folder: &str) {
        self.authority.certify("shop.example").write(self.path(), folder);
    }

    async fn served(&mut self, tls: &str) -> Served {
        let servers = self.certificates.of_table(&table(tls)).await;
        assert_eq!(servers.len(), 1, "the other has no TLS");
        servers["https"].clone()
    }

    /// Looks as often as the builder does, until what the files say has arrived.
    async fn refresh(&mut self) {
        let (certificates, now_ms) = (&mut self.certificates, &mut self.now_ms);
        eventually(|| {
            *now_ms += 2_000;
            certificates.refresh(*now_ms)
        })
        .await;
    }
}

fn wrong(served: &Served) -> &str {
    served.wrong.as_deref().unwrap_or_default()
}

const ONE: &str = "{certificates: [{secret: one}]}";
const TWO: &str = "{certificates: [{secret: one}, {secret: two}]}";
const CLIENTS: &str = "{certificates: [{secret: one}], clientAuthority: {secret: ca}}";

#[tokio::test]
async fn without_a_certificate_there_is_no_server_until_it_comes() {
    let mut world = World::new();
    let served = world.served(ONE).await;
    assert!(served.server.is_none() && wrong(&served).contains("one/tls.crt cannot be read"), "{served:?}");
    world.certify("one");
    world.refresh().await;
    let served = world.served(ONE).await;
    assert!(served.server.is_some() && served.wrong.is_none(), "{served:?}");
}

#[tokio::test]
async fn what_did_not_change_is_the_same_server_and_what_did_is_another() {
    let mut world = World::new();
    world.certify("one");
    let first = world.served(ONE).await;
    assert_eq!(world.served(ONE).await, first);
    world.certify("one");
    world.refresh().await;
    let second = world.served(ONE).await;
    assert!(second.server.is_some() && second != first);
    assert_ne!(world.served("{certificates: [{secret: one}], minVersion: '1.3'}").await, second);
}

#[tokio::test]
async fn a_certificate_that_breaks_stays_as_it_was_and_is_told() {
    let mut world = World::new();
    world.certify("one");
    let good = world.served(ONE).await;
    fs::write(world.path().join("one/tls.key"), "no PEM").expect("writes");
    world.refresh().await;
    let served = world.served(ONE).await;
    assert_eq!(served.server, good.server);
    assert!(
        wrong(&served).starts_with("listener https: certificate of one: the PEM of our key"),
        "{served:?}"
    );
}

#[tokio::test]
async fn a_certificate_that_is_missing_takes_no_other_with_it() {
    let mut world = World::new();
    world.certify("two");
    let served = world.served(TWO).await;
    assert!(served.server.is_some() && wrong(&served).contains("one/tls.crt cannot be read"), "{served:?}");
}

#[tokio::test]
async fn another_secret_that_is_not_there_yet_leaves_the_server_before() {
    let mut world = World::new();
    world.certify("one");
    let before = world.served(ONE).await;
    let served = world.served("{certificates: [{secret: two}]}").await;
    assert_eq!(served.server, before.server);
    assert!(wrong(&served).contains("two/tls.crt cannot be read"), "{served:?}");
}

#[tokio::test]
async fn whoever_would_be_refused_is_let_in_by_no_server_before() {
    let mut world = World::new();
    world.certify("one");
    assert!(world.served(ONE).await.server.is_some());
    let served = world.served(CLIENTS).await;
    assert!(served.server.is_none() && wrong(&served).contains("ca/ca.crt cannot be read"), "{served:?}");
    world.authority.write(world.path(), "ca");
    world.refresh().await;
    assert!(world.served(CLIENTS).await.server.is_some());
    let served =
        world.served("{certificates: [{secret: two}], clientAuthority: {secret: ca, optional: true}}").await;
    assert!(served.server.is_none(), "it let in nobody without a certificate");
}
