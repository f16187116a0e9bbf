//! Bulkhead's side of the stage: routers that read a folder of YAML, which a variant may edit.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::member::Member;
use crate::process::sibling;
use crate::router;

/// As it is called in [`ROUTER`].
const LISTENER: &str = "http";

/// Of what `bulkhead ledger list --json` prints.
#[derive(Deserialize)]
struct List {
    transactions: Vec<Listed>,
}

#[derive(Deserialize)]
struct Listed {
    transaction: String,
}

/// One router, and where it takes requests.
pub(super) fn router(name: &str, folder: &Path) -> Result<(Member, SocketAddr)> {
    let router::Router { member, listeners: [address], .. } =
        router::start(name, folder, [LISTENER], &[], None)?;
    Ok((member, address))
}

/// Writes all that the routers serve.
pub(super) fn write_objects(folder: &Path, issuer: SocketAddr, cells: &[(String, SocketAddr)]) -> Result<()> {
    for (name, endpoint) in cells {
        write_cell(folder, name, *endpoint, 100)?;
    }
    router::write(folder, "router", ROUTER)?;
    router::write(folder, "destination", &destination_yaml(issuer))?;
    router::write(folder, "policy", &policy_yaml(cells))
}

/// As a person does with an editor, or a GitOps tool with a commit.
pub(super) fn write_cell(folder: &Path, name: &str, endpoint: SocketAddr, weight: u32) -> Result<()> {
    router::write(
        folder,
        name,
        &format!(
            "apiVersion: bulkhead.dev/v1alpha1
kind: Cell
metadata: {{name: {name}}}
spec:
  weight: {weight}
  endpoints: [\"{endpoint}\"]
  destinations: [visa]
"
        ),
    )
}

/// The ids that a router's ledger knows, whether the router lives or not.
pub(super) fn known_to_ledger(name: &str, folder: &Path) -> Result<BTreeSet<String>> {
    let output = Command::new(sibling("bulkhead")?)
        .args(["ledger", "list", "--json", "--limit", &u32::MAX.to_string(), "--dir"])
        .arg(router::ledger(name, folder))
        .output()
        .context("`bulkhead ledger list` does not start")?;
    // 1 is for a ledger in which nothing is found, and that is an answer too.
    ensure!(
        matches!(output.status.code(), Some(0 | 1)),
        "`bulkhead ledger list` failed ({}): {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    let list: List = serde_json::from_slice(&output.stdout).context("the ledger's list is no JSON")?;
    Ok(list.transactions.into_iter().map(|listed| listed.transaction).collect())
}

const ROUTER: &str = "\
apiVersion: bulkhead.dev/v1alpha1
kind: Router
metadata: {name: main}
spec:
  drainTimeout: 5s
  listeners:
  - name: http
    port: 8080
    explain: true
    idempotency: {header: idempotency-key}
";

fn destination_yaml(issuer: SocketAddr) -> String {
    format!(
        "\
apiVersion: bulkhead.dev/v1alpha1
kind: Destination
metadata: {{name: visa}}
spec:
  http: {{path: /authorise}}
  endpoints: [\"{issuer}\"]
  pointOfNoReturn: true
  duplicateCheck: {{type: Header, header: idempotency-key, window: 1h}}
  timeout: 5s
"
    )
}

fn policy_yaml(cells: &[(String, SocketAddr)]) -> String {
    let cells: String =
        cells.iter().map(|(name, _)| format!("      - {{name: {name}, weight: 100}}\n")).collect();
    format!(
        "\
apiVersion: bulkhead.dev/v1alpha1
kind: RoutingPolicy
metadata: {{name: payments, namespace: default}}
spec:
  parentRefs:
  - {{router: main, listener: http}}
  rules:
  - name: everything
    groups:
    - cells:
{cells}    restart: {{policy: UntilPointOfNoReturn, maxAttempts: 3, perAttempt: 1s, deadline: 5s}}
    failback: {{holdDown: 1s, steps: [25, 100], interval: 1s}}
"
    )
}
