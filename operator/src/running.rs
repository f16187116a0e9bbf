//! Joins the parts of the operator: admin server, lease, watches and loops, in the order in which they start and stop.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use bulkhead_process::admin::{self, Admin};
use bulkhead_process::clock::{Monotonic, now_unix_millis};
use bulkhead_process::readiness::Gate;
use bulkhead_process::shutdown::Shutdown;
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client};
use prometheus::{IntCounterVec, IntGauge, Opts, Registry};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

use crate::cell::{self, Context, Others};
use crate::config::Config;
use crate::kinds::Kinds;
use crate::lease::{self, Candidate, Leadership};
use crate::orchestrators;
use crate::routing_status;
use crate::routing_status::snapshot::Snapshot;
use crate::stores::{Changes, Stores};
use crate::writer::Writer;
use crate::{client, template, unreadable};

/// Names of Cells that may wait for a look; past it, watches wait.
const QUEUE: usize = 1024;

/// Runs until the shutdown. An API server that is away, or a lease that is lost, is waited for.
///
/// # Errors
/// What keeps it from starting.
pub async fn run(config: Config, registry: Registry, shutdown: Shutdown) -> anyhow::Result<()> {
    let clock = Monotonic::start();
    let listener = TcpListener::bind(config.admin_address)
        .await
        .with_context(|| format!("the admin port {} cannot be opened", config.admin_address))?;
    let admin = Admin { registry: registry.clone(), ..Admin::default() };
    let api_server = admin.readiness.gate("api-server");
    tokio::spawn(admin::serve(listener, admin, shutdown.clone()));

    let client = client::connect(client::PATIENCE).await?;
    let leader = leader_gauge(&registry)?;
    let leadership = Leadership::none(clock);
    let writer = Writer::new(client.clone(), leadership.clone(), &config.pod_name, &registry)?;
    let failures = reconcile_failures(&registry)?;
    // On connections of its own, so that requests that hang, however many, never keep it from the lease.
    let own = client::connect(lease::PATIENCE).await?;
    let mut candidate = candidate(own, &config, leadership, api_server);
    while !shutdown.is_requested() {
        tracing::info!(lease = config.lease_name, "waiting for the lease");
        tokio::select! {
            () = candidate.acquire() => {}
            () = shutdown.requested() => break,
        }
        tracing::info!(lease = config.lease_name, "leading");
        leader.set(1);
        // Boxed, because it holds every loop.
        let work = Box::pin(lead(client.clone(), config.clone(), writer.clone(), failures.clone(), clock));
        tokio::select! {
            () = candidate.keep() => tracing::warn!(lease = config.lease_name, "the lease was lost"),
            () = shutdown.requested() => {}
            () = work => bail!("a part of the operator ended, which it never should"),
        }
        // What was known is dropped with the watches: the next time begins with whole lists.
        leader.set(0);
    }
    candidate.release().await;
    Ok(())
}

fn reconcile_failures(registry: &Registry) -> anyhow::Result<IntCounterVec> {
    let counter = IntCounterVec::new(
        Opts::new(
            "bulkhead_operator_reconcile_failures_total",
            "Reconciles of Cells that ended with an error and are tried again, by reason.",
        ),
        &["reason"],
    )?;
    registry.register(Box::new(counter.clone()))?;
    Ok(counter)
}

fn leader_gauge(registry: &Registry) -> anyhow::Result<IntGauge> {
    let gauge = IntGauge::new("bulkhead_operator_leader", "1 while this process holds the lease.")?;
    registry.register(Box::new(gauge.clone()))?;
    Ok(gauge)
}

/// The identity is one of this very process: a restarted container of the same pod is another candidate.
fn candidate(client: Client, config: &Config, leadership: Leadership, reached: Gate) -> Candidate {
    let api = Api::<Lease>::namespaced(client, &config.namespace);
    let identity = format!("{}_{}_{}", config.pod_name, std::process::id(), now_unix_millis());
    Candidate::new(api, config.lease_name.clone(), identity, leadership, reached)
}

/// Watches, and runs every loop; none of them ever ends.
async fn lead(client: Client, config: Config, writer: Writer, failures: IntCounterVec, clock: Monotonic) {
    let kinds = Kinds::new(&config.extra_kinds);
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
    let heard = Others { stores: Arc::clone(&stores), snapshot: snapshots, voices };
    let context = Arc::new(Context::new(client, config, kinds, writer, heard, failures));
    let (routing, templates) = (changes.routing.subscribe(), changes.templates.subscribe());
    let any = (routing.clone(), templates.clone());
    tokio::select! {
        () = cell::run(Arc::clone(&context), cells, looked) => {}
        () = template::controller::run(Arc::clone(&context), templates) => {}
        () = routing_status::run(Arc::clone(&context), routing, pending, clock) => {}
        () = unreadable::run(Arc::clone(&context), any) => {}
        () = orchestrators::run(Arc::clone(&stores), changes.clone(), hear) => {}
        () = routing_status::poll::run(stores, changes, publish, is_pending, clock) => {}
    }
}
