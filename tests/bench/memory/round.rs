//! One round: everything is sent at once, what does not fit is refused while the cells hang, then they answer; and the
//! router's memory all the while.

use std::io;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bulkhead_process::Monotonic;
use bulkhead_protocol::Reason;
use bulkhead_samples::load::histogram::Histogram;
use nix::unistd::Pid;
use serde::Deserialize;
use tokio::task::JoinSet;

use crate::lab::Lab;
use crate::lab::cell::Behaviour;
use crate::lab::client::Client;
use crate::lab::kernel::resident;
use crate::lab::wire::{Message, Request};

/// Between two looks at the router's memory.
const SAMPLE: Duration = Duration::from_millis(20);
/// Looks while nothing happens: memory has to be flat then.
const QUIET_SAMPLES: u32 = 50;
/// How long it may take until every transaction is held or refused, and then until all are answered.
const PATIENCE: Duration = Duration::from_secs(60);

/// What came of one round. Memory is in bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct Round {
    /// The most that the router had.
    pub(super) peak: u64,
    /// Least and most while everything was held and nothing happened.
    pub(super) quiet: [u64; 2],
    /// Refused with 503 and `RouterOverloaded` while the cells hung.
    pub(super) shed: u64,
    /// Answered with 200 once they did not.
    pub(super) answered: u64,
    /// Neither.
    pub(super) strays: u64,
    /// One of these.
    pub(super) stray: Option<String>,
    /// Microseconds to a refusal, from the first byte sent.
    pub(super) refusals: Histogram,
}

struct Ended {
    client: Client,
    answer: io::Result<Message>,
    micros: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind {
    Answered,
    Shed,
    Stray(String),
}

/// A round that runs.
struct Play<'l> {
    lab: &'l Lab<1>,
    router: Pid,
    under_way: JoinSet<Ended>,
    clients: Vec<Client>,
    round: Round,
}

/// Plays a round with these clients, whose bodies have `length` bytes, and gives them back.
///
/// # Errors
/// When the router is gone, or something is neither held nor refused in time.
pub(super) async fn play(
    lab: &Lab<1>,
    mut clients: Vec<Client>,
    length: usize,
) -> Result<(Round, Vec<Client>)> {
    let (count, before) = (clients.len() as u64, lab.cells.requests());
    for client in &mut clients {
        client.connect().await.context("a client cannot connect again")?;
    }
    lab.cells.all_behave(Behaviour::Hang);
    let mut play = Play {
        lab,
        router: lab.pid()?,
        under_way: send(clients, &Request::post("/", length)),
        clients: Vec::new(),
        round: Round::default(),
    };
    play.until(|play| {
        let held = play.lab.cells.requests() - before;
        held + play.clients.len() as u64 == count
    })
    .await
    .context("not every transaction was held or refused")?;
    play.stay_quiet().await?;
    let shed = play.round.shed;
    ensure!(play.round.answered == 0, "something was answered while the cells hung");
    lab.cells.all_behave(Behaviour::Answer);
    play.until(|play| play.under_way.is_empty()).await.context("not every transaction was answered")?;
    // Who waited for the cells and is refused then was not refused at once.
    play.round.strays += play.round.shed - shed;
    play.round.shed = shed;
    Ok((play.round, play.clients))
}

/// Everybody at once.
fn send(clients: Vec<Client>, request: &Request) -> JoinSet<Ended> {
    let clock = Monotonic::start();
    let mut under_way = JoinSet::new();
    for (number, mut client) in (0..).zip(clients) {
        let request = request.clone();
        under_way.spawn(async move {
            let before = clock.micros();
            let answer = client.exchange(&request, number).await;
            Ended { client, answer, micros: clock.micros() - before }
        });
    }
    under_way
}

impl Play<'_> {
    /// Takes what ends, and looks at the memory, until it is as wanted.
    async fn until(&mut self, wanted: impl Fn(&Self) -> bool) -> Result<()> {
        let (clock, mut samples) = (Monotonic::start(), tokio::time::interval(SAMPLE));
        while !wanted(self) {
            tokio::select! {
                Some(ended) = self.under_way.join_next() => self.take(ended.context("a client broke")?),
                _ = samples.tick() => { self.sample()?; }
            }
            ensure!(
                clock.elapsed() < PATIENCE,
                "{} are under way after {PATIENCE:?}, {} were refused, {} answered; {:?}",
                self.under_way.len(),
                self.round.shed,
                self.round.answered,
                self.round.stray
            );
        }
        Ok(())
    }

    async fn stay_quiet(&mut self) -> Result<()> {
        let mut samples = tokio::time::interval(SAMPLE);
        self.round.quiet = [u64::MAX, 0];
        for _ in 0..QUIET_SAMPLES {
            samples.tick().await;
            let now = self.sample()?;
            let [least, most] = self.round.quiet;
            self.round.quiet = [least.min(now), most.max(now)];
        }
        Ok(())
    }

    fn sample(&mut self) -> Result<u64> {
        let now = resident(self.router)?;
        self.round.peak = self.round.peak.max(now);
        Ok(now)
    }

    fn take(&mut self, ended: Ended) {
        match kind(&ended.answer) {
            Kind::Answered => self.round.answered += 1,
            Kind::Shed => {
                self.round.shed += 1;
                self.round.refusals.record(ended.micros);
            }
            Kind::Stray(what) => {
                self.round.strays += 1;
                self.round.stray = Some(what);
            }
        }
        self.clients.push(ended.client);
    }
}

fn kind(answer: &io::Result<Message>) -> Kind {
    /// Of a problem document (RFC 9457).
    #[derive(Deserialize)]
    struct Problem {
        reason: String,
    }
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return Kind::Stray(error.to_string()),
    };
    let overloaded = || {
        let problem = serde_json::from_slice::<Problem>(&answer.body);
        problem.is_ok_and(|problem| problem.reason == Reason::RouterOverloaded.as_str())
    };
    match answer.status() {
        Some(200) => Kind::Answered,
        Some(503) if overloaded() => Kind::Shed,
        _ => Kind::Stray(answer.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_503_that_says_why_is_a_refusal() {
        let check = |status: &str, body: &'static str, expected: Kind| {
            let head = format!("HTTP/1.1 {status}\r\n\r\n").into();
            assert_eq!(kind(&Ok(Message { head, body: body.into() })), expected, "{status} {body}");
        };
        let stray = |text: &str| Kind::Stray(text.to_owned());
        check("200 OK", "ok", Kind::Answered);
        check("503 Service Unavailable", r#"{"reason":"RouterOverloaded"}"#, Kind::Shed);
        check("503 Busy", r#"{"reason":"NoCell"}"#, stray(r#"HTTP/1.1 503 Busy {"reason":"NoCell"}"#));
        check("503 Busy", "", stray("HTTP/1.1 503 Busy "));
        assert!(matches!(kind(&Err(io::ErrorKind::ConnectionReset.into())), Kind::Stray(_)));
    }
}
