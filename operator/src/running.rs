//! Joins the parts of the operator: admin server, lease, watches and loops, in the order in which they start and stop.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use bulkhead_process::admin::{self, Admin};
use bulkhead_process::clock::{Monotonic, now_unix_millis};
use bulkhead_process::shutdown::Shutdown;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use prometheus::{IntGauge, Registry};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::cell::{self, Context};
use crate::config::Config;
use crate::kinds::Kinds;
use crate::lease::{Candidate, Leadership};
use crate::orchestrators;
use crate::routing_status;
use crate::routing_status::snapshot::Snapshot;
use crate::stores::{Changes, Stores};
use crate::template;
use crate::writer::Writer;

/// Names of Cells that may wait for a look; past it, watches wait.
const QUEUE: usize = 1024;

/// Runs until the shutdown, or until the lease is lost.
///
/// # Errors
/// What keeps it from starting; and the loss of the lease, so that the process ends and begins anew.
pub async fn run(config: Config, registry: Registry, shutdown: Shutdown) -> anyhow::Result<()> {
    let clock = Monotonic::start();
    let listener = TcpListener::bind(config.admin_address)
        .await
        .with_context(|| format!("the admin port {} cannot be opened", config.admin_address))?;
    let admin = Admin { registry: registry.clone(), ..Admin::default() };
    let api_server = admin.readiness.gate("api-server");
    tokio::spawn(admin::serve(listener, admin, shutdown.clone()));

    let client = Client::try_default().await.context("no way to the Kubernetes API is configured")?;
    // One look, so that a wrong address or a lack of rights shows at once. Standbys are ready too.
    client.apiserver_version().await.context("the API server does not answer")?;
    api_server.open();

    let leadership = Leadership::none(clock);
    let leader = leader_gauge(&registry)?;
    let mut candidate = candidate(&client, &config, leadership.clone());
    tracing::info!(lease = config.lease_name, "waiting for the lease");
    tokio::select! {
        () = candidate.acquire() => {}
        () = shutdown.requested() => return Ok(()),
    }
    tracing::info!(lease = config.lease_name, "leading");
    leader.set(1);
    let work = lead(client, config, leadership, &registry, clock)?;
    let lost = tokio::select! {
        () = candidate.keep() => true,
        () = shutdown.requested() => false,
        () = work => bail!("a part of the operator ended, which it never should"),
    };
    leader.set(0);
    if lost {
        bail!("the lease was lost; another operator may lead now");
    }
    candidate.release().await;
    Ok(())
}

fn leader_gauge(registry: &Registry) -> anyhow::Result<IntGauge> {
    let gauge = IntGauge::new("bulkhead_operator_leader", "1 while this process holds the lease.")?;
    registry.register(Box::new(gauge.clone()))?;
    Ok(gauge)
}

/// The identity is one of this very process: a restarted container of the same pod is another candidate.
fn candidate(client: &Client, config: &Config, leadership: Leadership) -> Candidate {
    let api = Api::<Lease>::namespaced(client.clone(), &config.namespace);
    let identity = format!("{}_{}_{}", config.pod_name, std::process::id(), now_unix_millis());
    Candidate::new(api, config.lease_name.clone(), identity, leadership)
}

/// Starts the watches, and gives the future that runs every loop and never ends.
fn lead(
    client: Client,
    config: Config,
    leadership: Leadership,
    registry: &Registry,
    clock: Monotonic,
) -> anyhow::Result<impl Future<Output = ()>> {
    let kinds = Kinds::new(&config.extra_kinds);
    let writer = Writer::new(client.clone(), leadership, &config.pod_name, registry)?;
    let (look, looked) = mpsc::channel(QUEUE);
    let changes = Changes {
        cells: look,
        routing: Arc::new(watch::Sender::new(0)),
        templates: Arc::new(watch::Sender::new(0)),
    };
    let (stores, cells) = Stores::start(&client, &config, &kinds, &changes);
    let (publish, snapshots) = watch::channel(Arc::new(Snapshot::default()));
    let (hear, voices) = watch::channel(Arc::default());
    let (pending, is_pending) = watch::channel(true);
    let context =
        Arc::new(Context::new(client, config, kinds, writer, Arc::clone(&stores), snapshots, voices));
    let (routing, templates) = (changes.routing.subscribe(), changes.templates.subscribe());
    Ok(async move {
        tokio::select! {
            () = cell::run(Arc::clone(&context), cells, looked) => {}
            () = template::controller::run(Arc::clone(&context), templates) => {}
            () = routing_status::run(Arc::clone(&context), routing, pending) => {}
            () = orchestrators::run(Arc::clone(&stores), changes.clone(), hear) => {}
            () = routing_status::poll::run(stores, changes, publish, is_pending, clock) => {}
        }
    })
}
