//! What a router does for the course of a transaction, in the simulated world: the hands that `transaction::run` is given.

use std::rc::Rc;
use std::time::Duration;

use bulkhead_protocol::{EgressStatus, Reason};
use bulkhead_routing::Refusal;
use bulkhead_routing::transaction::restart::{self, Next};
use bulkhead_routing::transaction::{Asked, Back, Delivered, Failure, Hands, Reply, Sent, Situation, Stage};
use tokio::sync::mpsc;
use tokio::task::spawn_local;
use tokio::time::timeout;

use crate::cell::{Ask, Continuation, Order, Word, work};
use crate::destination::{self, DESTINATIONS, ENDPOINTS, Parcel};
use crate::faults::{Fault, Flaw};
use crate::history::{Claims, Id, Question, Sending};
use crate::router::{InFlight, Router};
use crate::tried::Tried;
use crate::world::World;

const PER_ATTEMPT: u64 = 800;
const MAX_ATTEMPTS: u32 = 3;
/// Milliseconds that a destination is waited for.
const PATIENCE: u64 = 1_000;
/// Milliseconds that must be left when a message is sent.
const MIN_TIME: u64 = 100;

pub(crate) struct RouterHands {
    router: Rc<Router>,
    id: Id,
    transaction: Rc<InFlight>,
    pub(crate) tried: Tried,
    /// The pod that was asked last, and which question that was.
    asked: Option<(usize, Question)>,
    /// The number that the next egress has to have.
    due: u32,
    /// The question whose egress is being delivered, and the endpoints that failed it.
    failed_endpoints: (Question, Vec<usize>),
    /// An intent on its way to the disk of which nothing was sent.
    unsent: Option<u32>,
    /// Whether a message with effects went out.
    sent: bool,
    /// Only in flawed hands: lines of questions that are over, and what is added to numbers.
    old_lines: Vec<mpsc::Receiver<Word>>,
    offset: u32,
}

impl RouterHands {
    pub(crate) fn new(router: &Rc<Router>, id: Id, transaction: &Rc<InFlight>) -> Self {
        Self {
            router: Rc::clone(router),
            id,
            transaction: Rc::clone(transaction),
            tried: Tried::nowhere(&router.world, id),
            asked: None,
            due: 1,
            failed_endpoints: (0, Vec::new()),
            unsent: None,
            sent: false,
            old_lines: Vec::new(),
            offset: 0,
        }
    }

    fn world(&self) -> &Rc<World> {
        &self.router.world
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.world().has(flaw)
    }

    fn left(&self) -> u64 {
        self.transaction.deadline.saturating_sub(self.world().now())
    }

    /// Asks one pod, from the original bytes or from a context.
    async fn ask(&mut self, pod: usize, from: Option<Continuation>, limit: u64) -> Reply<Claims, Ask> {
        let world = Rc::clone(self.world());
        self.router.step(world.dice.between(0..=3)).await;
        if world.strikes(Fault::TableChanges) {
            return Reply::Again;
        }
        let question = {
            let mut history = world.history();
            history.questions += 1;
            history.runs[self.transaction.run].questions += 1;
            history.questions
        };
        self.asked = Some((pod, question));
        if !world.pods[pod].is_up(world.now()) || world.strikes(Fault::PodRefuses) {
            let reason = world.dice.pick(&[Reason::ConnectFailed, Reason::WrongCell]);
            return Reply::Failed(Failure::NotProcessed(reason));
        }
        if from.is_none() {
            let began = &mut world.history().runs[self.transaction.run].began_in;
            began.push(world.pods[pod].cell);
        }
        let order = Order { id: self.id, question, from };
        let (line, mut words) = mpsc::channel(2);
        spawn_local(work(Rc::clone(&world), pod, order, line));
        let word = if self.has(Flaw::TakesLateReplies) {
            self.hear_any(words, limit).await
        } else {
            timeout(Duration::from_millis(limit), words.recv()).await.map_err(|_| Reason::Timeout)
        };
        self.router.step(0).await;
        match word {
            Err(reason) => Reply::Failed(Failure::Unknown(reason)),
            Ok(None) => Reply::Failed(Failure::Unknown(Reason::UpstreamReset)),
            Ok(Some(word)) => self.reply(word, question),
        }
    }

    fn reply(&self, word: Word, question: Question) -> Reply<Claims, Ask> {
        match word {
            Word::Answer(of, claims) => {
                if of != question {
                    self.world().history().late_answers += 1;
                }
                Reply::Answer(claims)
            }
            Word::GivenBack(reason) => Reply::Failed(Failure::GivenBack(reason)),
            Word::Egress(message) => Reply::Egress(Asked {
                number: message.number,
                effects: DESTINATIONS[message.destination].effects,
                has_context: message.has_context,
                message,
            }),
        }
    }

    /// A flaw: whatever any pod says that was ever asked.
    async fn hear_any(&mut self, line: mpsc::Receiver<Word>, limit: u64) -> Result<Option<Word>, Reason> {
        self.old_lines.push(line);
        for _ in 0..limit {
            self.world().pass(1).await;
            for line in &mut self.old_lines {
                if let Ok(word) = line.try_recv() {
                    return Ok(Some(word));
                }
            }
        }
        Err(Reason::Timeout)
    }

    fn note_sending(&self, asked: &Asked<Ask>, number: u32) {
        let awaited = self.sent || self.is_awaited();
        let mut history = self.world().history();
        history.sendings.push(Sending {
            run: self.transaction.run,
            router: self.router.index,
            id: self.id,
            number,
            effects: asked.effects,
            due: self.due,
            on_record: !asked.effects || self.router.ledger.is_on_disk((self.id, number)),
            awaited,
            current: self.asked.is_some_and(|(_, question)| question == asked.message.question),
            settled: false,
        });
    }

    /// Whether a caller waits, and what is left of its time is enough for a message.
    fn is_awaited(&self) -> bool {
        self.transaction.state.get().callers > 0 && self.left() >= MIN_TIME
    }

    /// The course is over. An intent of which nothing was sent shall not read as unknown.
    pub(crate) fn withdraw(&mut self) {
        if let Some(number) = self.unsent.take()
            && !self.has(Flaw::KeepsIntentsOfLeavers)
        {
            self.router.ledger.settle((self.id, number), EgressStatus::NotSent);
        }
    }
}

impl Hands for RouterHands {
    type Answer = Claims;
    type Message = Ask;
    /// The endpoint.
    type Connection = usize;
    type Returned = ();

    async fn attempt(&mut self) -> Result<Reply<Claims, Ask>, Refusal> {
        if self.has(Flaw::CarriesNumbersOver) {
            self.offset += self.due - 1;
        }
        self.due = 1;
        if self.left() == 0 {
            return Err(self.tried.refusal(Reason::Timeout));
        }
        let pod = self.tried.choose(None)?;
        let cell = self.world().pods[pod].cell;
        self.tried.attempt(cell);
        Ok(self.ask(pod, None, self.left().min(PER_ATTEMPT)).await)
    }

    async fn go_on(&mut self, back: &Back<Ask, ()>, stage: Stage) -> Result<Reply<Claims, Ask>, Refusal> {
        let message = &back.asked.message;
        self.due = back.asked.number + 1;
        let pod = if self.has(Flaw::CarriesContextsOver) {
            self.tried.choose(None)?
        } else if !self.tried.has_tried(message.pod) {
            message.pod
        } else if back.asked.has_context && !self.has(Flaw::IgnoresContexts) {
            let last = self.asked.map(|(pod, _)| self.world().pods[pod].cell);
            self.tried.choose(last)?
        } else {
            return Err(self.tried.refusal(Reason::NoHealthyCell));
        };
        if pod != message.pod && !self.sent {
            self.world().history().runs[self.transaction.run].carried_over = true;
        }
        let limit = match stage {
            Stage::Restartable => self.left().min(PER_ATTEMPT),
            Stage::Committed => PER_ATTEMPT,
        };
        let mut claims = message.claims.clone();
        claims.push(back.delivered.status());
        let memory_of = (!back.asked.has_context).then_some(message.life);
        Ok(self.ask(pod, Some(Continuation { claims, memory_of }), limit).await)
    }

    fn failed(&mut self, failure: Failure, stage: Stage) -> Result<(), Refusal> {
        if self.has(Flaw::AsksForEver) {
            return Ok(());
        }
        let (pod, _) = self.asked.expect("a pod was asked before it failed");
        let cell = self.world().pods[pod].cell;
        self.tried.pod(pod);
        let next = restart::decide(&Situation {
            failure,
            stage,
            owner: self.world().owner,
            policy: self.world().policy,
            idempotent: false,
            repeatable: true,
            attempts: self.tried.attempts(),
            max_attempts: MAX_ATTEMPTS,
            left_ms: self.left(),
            other_pods: !self.tried.untried(cell).is_empty(),
            budget: self.router.budget.borrow().has_token(),
        });
        if next == Next::AnotherPod || self.has(Flaw::AsksACellTwice) && next == Next::AnotherCell {
            return Ok(());
        }
        self.tried.failed(cell, failure);
        if next == Next::Answer {
            return Err(self.tried.refusal(Reason::Internal));
        }
        if !matches!(failure, Failure::NotProcessed(_)) {
            self.router.budget.borrow_mut().take();
        }
        Ok(())
    }

    async fn connect(&mut self, asked: &Asked<Ask>) -> Result<usize, Reason> {
        if self.failed_endpoints.0 != asked.message.question {
            self.failed_endpoints = (asked.message.question, Vec::new());
        }
        for endpoint in 0..ENDPOINTS {
            if self.failed_endpoints.1.contains(&endpoint) {
                continue;
            }
            self.router.step(self.world().dice.between(0..=5)).await;
            if !self.world().strikes(Fault::EndpointRefuses) {
                return Ok(endpoint);
            }
            self.failed_endpoints.1.push(endpoint);
        }
        Err(Reason::DestinationUnavailable)
    }

    async fn record(&mut self, asked: &Asked<Ask>) -> Result<(), Reason> {
        if self.has(Flaw::RecordsAfterSending) {
            return Ok(());
        }
        let number = asked.number + self.offset;
        self.unsent = Some(number);
        let recorded = self.router.ledger.record((self.id, number)).await;
        if recorded.is_err() {
            self.unsent = None;
        }
        self.router.step(0).await;
        recorded
    }

    fn may_send(&self, _: &Asked<Ask>, stage: Stage) -> Result<(), Reason> {
        let allowed = stage == Stage::Committed || self.is_awaited() || self.has(Flaw::SendsWithoutAsking);
        if allowed { Ok(()) } else { Err(Reason::Timeout) }
    }

    fn enter(&mut self, stage: Stage) {
        self.transaction.state.change(|state| state.committed = stage == Stage::Committed);
    }

    async fn send(&mut self, endpoint: usize, asked: &Asked<Ask>) -> Sent<()> {
        if self.world().strikes(Fault::ConnectionIsStale) {
            self.failed_endpoints.1.push(endpoint);
            return Sent::NotSent(Reason::DestinationUnavailable);
        }
        let number = asked.number + self.offset;
        self.note_sending(asked, number);
        if asked.effects {
            self.sent = true;
            self.unsent = None;
        }
        // Nothing keeps a machine from standing still or losing power here, between the fence and the first byte.
        self.router.step(0).await;
        let (id, run, router) = (self.id, self.transaction.run, self.router.index);
        let salt = if self.has(Flaw::KeysByAttempt) { asked.message.question } else { 0 };
        let destination = asked.message.destination;
        let key = (id, number, salt);
        let line = destination::receive(self.world(), Parcel { destination, key, id, number, run, router });
        if asked.effects && self.has(Flaw::RecordsAfterSending) {
            // That it fails is part of the flaw.
            let _ = self.router.ledger.record((id, number)).await;
        }
        let answer = timeout(Duration::from_millis(PATIENCE), line).await;
        self.router.step(0).await;
        let reason = match answer {
            Ok(Ok(())) => return Sent::Answered(()),
            Ok(Err(_)) => Reason::UpstreamReset,
            Err(_) => Reason::Timeout,
        };
        if self.has(Flaw::TakesUnknownForNotSent) {
            self.failed_endpoints.1.push(endpoint);
            return Sent::NotSent(reason);
        }
        if self.has(Flaw::TakesUnknownForAnswered) { Sent::Answered(()) } else { Sent::Unknown(reason) }
    }

    fn settle(&mut self, asked: &Asked<Ask>, delivered: &Delivered<()>) {
        let number = asked.number + self.offset;
        self.unsent = None;
        self.router.ledger.settle((self.id, number), delivered.status());
        for sending in &mut self.world().history().sendings {
            if sending.run == self.transaction.run && sending.number == number {
                sending.settled = true;
            }
        }
    }
}
