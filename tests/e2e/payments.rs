//! The payments of examples/payments on the cluster: installed, paid, counted and removed. What becomes of them is for the
//! tests to say.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_samples::issuer::Stats;
use bulkhead_samples::load::{Body, Plan};
use bulkhead_samples::payment::Payment;
use bulkhead_tests::pods::{Pod, routers, running};
use bulkhead_tests::traffic::{Answer, Load, Request, Seen, send};
use bulkhead_tests::{World, eventually};
use serde_json::Value;

const EXAMPLE: &str = "examples/payments/";
pub(crate) const CELLS: [&str; 2] = ["cards-a", "cards-b"];
/// Lets routers reach the issuer's namespace, as the example says.
const EGRESS: &str =
    r"networkPolicy.routerEgress[0].namespaceSelector.matchLabels.kubernetes\.io/metadata\.name=issuer";
/// Where the issuer says what it executed.
const CONTROL: u16 = 8_081;
/// A card of the example's second Destination; the sample's is of the first.
pub(crate) const MASTERCARD: &str = "5555555555554444";
/// A card of a network that the example knows nothing of.
pub(crate) const AMEX: &str = "378282246310005";
/// How long pods that are killed may take until their cell is back and has its whole share.
pub(crate) const RECOVERY: Duration = Duration::from_mins(3);

/// The example, and Destinations that a test adds, removed when this goes out of scope.
pub(crate) struct Payments<'a>(&'a World);

impl<'a> Payments<'a> {
    pub(crate) fn new(world: &'a World) -> Self {
        Self::with(world, &[])
    }

    /// With these values of the chart.
    pub(crate) fn with(world: &'a World, values: &[&str]) -> Self {
        let payments = Self(world);
        world.install_bulkhead_with(&[&[EGRESS], values].concat()).expect("the routers' way out is open");
        payments.apply().expect("stored");
        let wait = ["wait", "--for=condition=Ready", "destination/visa", "destination/mastercard"];
        world
            .kubectl(&[&wait[..], &["cell/cards-a", "cell/cards-b", "--timeout=120s"]].concat())
            .expect("Ready");
        eventually(RECOVERY, || payments.whole()).expect("both cells have their whole share");
        payments.issuer(&Request::delete("/stats")).expect("its book is empty");
        payments
    }

    pub(crate) fn apply(&self) -> Result<String> {
        self.0.kubectl(&["apply", "-f", EXAMPLE])
    }

    /// Whether both cells serve, with nothing taken off their weight.
    fn whole(&self) -> Result<()> {
        self.0.all_serving(&CELLS)?;
        for cell in CELLS {
            let weight = self.0.json(&["get", "cell", cell])?["status"]["effectiveWeight"].clone();
            ensure!(weight == 100, "{cell} has {weight} %");
        }
        Ok(())
    }

    pub(crate) fn issuer_pod(&self) -> Result<Pod> {
        running(self.0, "issuer", "app=issuer")?.pop().context("the issuer does not run")
    }

    /// Asks the issuer itself, which nothing keeps this machine from.
    fn issuer(&self, request: &Request) -> Result<Answer> {
        let answer = send(self.issuer_pod()?.at(CONTROL)?, request)?;
        ensure!(answer.status < 300, "the issuer answers {}: {}", answer.status, answer.body);
        Ok(answer)
    }

    pub(crate) fn stats(&self) -> Stats {
        let answer = self.issuer(&Request::get("/stats")).expect("the issuer counts");
        serde_json::from_str(&answer.body).expect("its counts are JSON")
    }

    /// Has the issuer execute whatever comes, so that a message that comes twice shows, and take its time, so that many are
    /// with it at any moment.
    pub(crate) fn unchecked_and_slow(&self) {
        let order = r#"{"duplicateCheck": false, "delayMs": 100}"#;
        self.issuer(&Request::put("/control", order)).expect("it takes the order");
    }

    /// One payment through the first router, with that card instead of the sample's.
    pub(crate) fn pay(&self, card: Option<&str>) -> Result<Answer> {
        send(routers(self.0)?[0], &payment(card)?)
    }

    /// Whether one of the cells, and not its namesake of an earlier test, was told of what it may not reach, in these words.
    pub(crate) fn told(&self, words: [&str; 2]) -> Result<()> {
        let cells =
            CELLS.iter().map(|cell| Ok(self.0.json(&["get", "cell", cell])?["metadata"]["uid"].clone()));
        let cells = cells.collect::<Result<Vec<_>>>()?;
        let reason = "reason=DestinationForbidden,type=Warning";
        let events = self.0.json(&["get", "events", "-n", "default", "--field-selector", reason])?;
        let of_ours = |event: &&Value| cells.contains(&event["involvedObject"]["uid"]);
        let events = events["items"].as_array().into_iter().flatten().filter(of_ours);
        let notes: Vec<_> = events.filter_map(|event| event["message"].as_str()).collect();
        ensure!(notes.iter().any(|note| words.iter().all(|word| note.contains(word))), "{notes:?}");
        Ok(())
    }

    /// Says that each payment of the load was answered and executed once, and no other was.
    #[track_caller]
    pub(crate) fn each_once(&self, seen: &Seen) {
        assert!(seen.failed.is_empty(), "{} failed: {:?}", seen.failed.len(), seen.failed.first());
        let stats = self.stats();
        assert_eq!(
            (stats.keys_executed_more_than_once, stats.ids_executed_more_than_once),
            (0, 0),
            "{stats:?}"
        );
        assert_eq!(
            (stats.executed, stats.received),
            (seen.hits.len() as u64, seen.hits.len() as u64),
            "{stats:?}"
        );
    }
}

impl Drop for Payments<'_> {
    fn drop(&mut self) {
        let _ = self.0.kubectl(&["delete", "-f", EXAMPLE, "--ignore-not-found", "--timeout=180s"]);
        let _ = self.0.kubectl(&["delete", "destinations", "--all", "--timeout=60s"]);
        let _ = self.0.install_bulkhead();
    }
}

/// A payment with that card instead of the sample's.
pub(crate) fn payment(card: Option<&str>) -> Result<Request> {
    let mut payment = serde_json::to_value(Payment::sample("alone"))?;
    if let Some(card) = card {
        payment["card"] = Value::from(card);
    }
    Ok(Request::post("/card-payments", payment.to_string()))
}

/// Payments at that rate through these routers, each with a reference of its own.
pub(crate) fn load(routers: Vec<SocketAddr>, rate: u32) -> Load {
    let payment =
        |reference: &str| serde_json::to_vec(&Payment::sample(reference)).unwrap_or_default().into();
    Load::of(Plan {
        targets: routers,
        method: http::Method::POST,
        path: "/card-payments".to_owned(),
        headers: vec![(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"))],
        keys: u64::MAX,
        body: Body::Of(std::sync::Arc::new(payment)),
        rate,
        connections: 64,
        duration: None,
        ..Plan::default()
    })
}
