//! Where pods are found: fixed addresses, or EndpointSlices. Whether a pod is any good is for the probes to say.

mod kubernetes;
mod slices;

use std::sync::Arc;

use crate::cell::Cell;
use crate::config::Discovery;

/// A client of the cluster that this pod runs in.
///
/// # Errors
/// When there is no configuration of one.
pub(crate) async fn client() -> anyhow::Result<kube::Client> {
    Ok(kubernetes::client(kube::Config::infer().await?, kubernetes::SILENCE)?)
}

/// Tells the cell of every list of pods; ends only where lists never change.
pub(crate) async fn run(cell: Arc<Cell>, discovery: Discovery) {
    match discovery {
        Discovery::Fixed { services, peers } => {
            for (name, addresses) in services {
                cell.set_pods(&name, &addresses);
            }
            cell.set_peers(peers);
        }
        Discovery::Kubernetes { client, namespace } => kubernetes::watch(cell, client, &namespace).await,
    }
}
