//! What a drill is played on: an issuer, cells, and what stands before them, all of them processes. Which of them is
//! hit, and when, is the variants'.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bulkhead_process::{Monotonic, Port};
use bulkhead_samples::caller::Caller;
use bulkhead_samples::issuer::Entry;
use bulkhead_samples::payment::Payment;
use bytes::Bytes;
use http::{HeaderName, Method, StatusCode};
use serde_json::Value;
use tempfile::TempDir;

use super::namespace::Namespace;
use super::routers;
use super::traffic::PATH;
use crate::member::Member;
use crate::process::{Launch, sibling};

/// How long everything may take to be ready.
const PATIENCE: Duration = Duration::from_secs(30);
/// Answers in a row after which a stage is taken for ready: each of its cells has had its turn.
const WARM: usize = 20;

/// The one destination.
pub(crate) struct Issuer {
    member: Member,
    pub(crate) address: SocketAddr,
    control: Caller,
}

/// The processes and their folder; all of it is gone when this is dropped.
pub(crate) struct Stage {
    pub(crate) issuer: Issuer,
    pub(crate) cells: Vec<Member>,
    /// Where each cell takes transactions.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// Routers or a proxy, and where each takes requests.
    pub(crate) fronts: Vec<(Member, SocketAddr)>,
    /// The field in which clients send their key.
    pub(crate) key_header: HeaderName,
    /// In which one of the cells lives.
    pub(crate) namespace: Option<Namespace>,
    /// Last, because what is in it is used until the processes are gone.
    pub(crate) folder: TempDir,
}

impl Issuer {
    /// Starts one that behaves as `flags` say.
    pub(crate) fn start(flags: &[&str], folder: &Path) -> Result<Self> {
        let [port, control] = Port::free_pair().context("no free ports on loopback")?;
        let (address, control_address) = (port.address, control.address);
        let places =
            [format!("--listen={address}"), format!("--control={control_address}"), "--name=visa".to_owned()];
        let flags = flags.iter().map(|flag| (*flag).to_owned());
        let launch = Launch::new(
            sibling("bulkhead-samples")?,
            std::iter::once("issuer".to_owned()).chain(places).chain(flags),
        );
        let member = Member::start("issuer", vec![launch], vec![port, control], folder)?;
        Ok(Self { member, address, control: Caller::new(control_address) })
    }

    /// Changes what the fields of `change` name.
    pub(crate) async fn behave(&self, change: &Value) -> Result<()> {
        let (status, answer) =
            self.control.call(Method::PUT, "/control", &[], change.to_string().into()).await?;
        ensure!(
            status == StatusCode::OK,
            "the issuer does not take {change}: {}",
            String::from_utf8_lossy(&answer)
        );
        Ok(())
    }

    /// What it executed, by key.
    pub(crate) async fn executions(&self) -> Result<BTreeMap<String, Entry>> {
        let (_, body) = self.control.call(Method::GET, "/executions", &[], Bytes::new()).await?;
        serde_json::from_slice(&body).context("the issuer's executions are no JSON")
    }

    async fn forget(&self) -> Result<()> {
        self.control.call(Method::DELETE, "/stats", &[], Bytes::new()).await?;
        Ok(())
    }
}

impl Stage {
    /// Waits until every front answers one transaction after the other, and has the issuer forget those.
    ///
    /// # Errors
    /// When that does not come, with the last answer, or the last words of who ended.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        let callers: Vec<_> = self.fronts.iter().map(|(_, address)| Caller::new(*address)).collect();
        for (number, caller) in callers.iter().enumerate() {
            let clock = Monotonic::start();
            let (mut answered, mut tried) = (0, 0);
            while answered < WARM {
                self.all_live()?;
                let outcome = self.warm(caller, &format!("warm-{number}-{tried}")).await;
                tried += 1;
                match outcome {
                    Ok(()) => answered += 1,
                    Err(error) if clock.elapsed() < PATIENCE => {
                        tracing::debug!(%error, "not ready yet");
                        answered = 0;
                        tokio::time::sleep(Duration::from_millis(50)).await;
                    }
                    Err(error) => {
                        let name = &self.fronts[number].0.name;
                        return Err(error.context(format!("{name} is not ready after {PATIENCE:?}")));
                    }
                }
            }
        }
        self.issuer.forget().await
    }

    async fn warm(&self, caller: &Caller, key: &str) -> Result<()> {
        let fields = [(self.key_header.clone(), key)];
        let call = caller.call(Method::POST, PATH, &fields, payment(key));
        let Ok(answered) = tokio::time::timeout(Duration::from_secs(2), call).await else {
            bail!("no answer within 2 s");
        };
        let (status, body) = answered?;
        ensure!(status == StatusCode::OK, "{status}: {}", String::from_utf8_lossy(&body));
        Ok(())
    }

    /// Edits the weight of that cell in the routers' folder.
    pub(crate) fn weigh(&self, cell: usize, weight: u32) -> Result<()> {
        routers::write_cell(self.folder.path(), &self.cells[cell].name, self.endpoints[cell], weight)
    }

    pub(crate) fn namespace(&self) -> Result<&Namespace> {
        self.namespace.as_ref().context("no cell lives in a network namespace")
    }

    fn all_live(&mut self) -> Result<()> {
        self.issuer.member.lives()?;
        let fronts = self.fronts.iter_mut().map(|(member, _)| member);
        self.cells.iter_mut().chain(fronts).try_for_each(Member::lives)
    }
}

/// What a client sends.
pub(crate) fn payment(reference: &str) -> Bytes {
    let payment = serde_json::to_vec(&Payment::sample(reference)).expect("a payment is text and numbers");
    payment.into()
}
