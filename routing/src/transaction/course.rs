//! The course of a transaction, told in order: attempts from the original bytes until one answers or asks for an egress;
//! each egress recorded before it is sent; what became of it brought back to a cell; and from the first effect on no way
//! but forward. What each step takes (pods, connections, the ledger) is done by [`Hands`]: a router's, or a model's.

use bulkhead_protocol::{EgressStatus, Reason};

use super::restart::{Failure, Stage};
use crate::decide::Refusal;

/// What came of sending a transaction to a cell.
pub enum Reply<A, M> {
    /// The answer for the client.
    Answer(A),
    /// A message for a destination.
    Egress(Asked<M>),
    Failed(Failure),
    /// Nothing was sent, and the cell is to be chosen anew: another table came into force meanwhile.
    Again,
}

/// An egress that a cell asks for.
pub struct Asked<M> {
    /// Place among the egresses of this run, from 1. With the transaction's id it names one effect.
    pub number: u32,
    /// Whether the destination's part is a point of no return.
    pub effects: bool,
    /// Whether a context comes with it, from which any pod can go on.
    pub has_context: bool,
    pub message: M,
}

/// An egress and what became of it, on the way back to a cell.
pub struct Back<M, R> {
    pub asked: Asked<M>,
    pub delivered: Delivered<R>,
}

/// What became of an egress.
pub enum Delivered<R> {
    Answered(R),
    /// Provably nothing reached the destination.
    NotSent(Reason),
    Unknown(Reason),
}

impl<R> Delivered<R> {
    pub fn status(&self) -> EgressStatus {
        match self {
            Self::Answered(_) => EgressStatus::Answered,
            Self::NotSent(_) => EgressStatus::NotSent,
            Self::Unknown(_) => EgressStatus::Unknown,
        }
    }
}

/// What came of writing a message to one connection.
pub enum Sent<R> {
    Answered(R),
    /// Nothing was handed to the kernel.
    NotSent(Reason),
    Unknown(Reason),
}

/// Everything that a transaction's course has done for it. One thread drives it, and each call is over before the next.
#[expect(async_fn_in_trait, reason = "a transaction stays on its thread")]
pub trait Hands {
    type Answer;
    type Message;
    type Connection;
    type Returned;

    /// One attempt from the original bytes, in a cell chosen now that was not asked before.
    async fn attempt(&mut self) -> Result<Reply<Self::Answer, Self::Message>, Refusal>;

    /// Brings back what became of an egress: to the pod that asked and, once committed, else to whoever reads its context.
    async fn go_on(
        &mut self,
        back: &Back<Self::Message, Self::Returned>,
        stage: Stage,
    ) -> Result<Reply<Self::Answer, Self::Message>, Refusal>;

    /// Takes note of a failure, and refuses when nothing may follow it ([`super::restart::decide`]).
    fn failed(&mut self, failure: Failure, stage: Stage) -> Result<(), Refusal>;

    /// A live connection to the destination, to an endpoint that did not fail this egress before.
    async fn connect(&mut self, asked: &Asked<Self::Message>) -> Result<Self::Connection, Reason>;

    /// Puts the intent on record. It is on the disk when this returns.
    async fn record(&mut self, asked: &Asked<Self::Message>) -> Result<(), Reason>;

    /// Whether it may still be sent: the caller waits, and there is time. Asked right before the first byte.
    fn may_send(&self, asked: &Asked<Self::Message>, stage: Stage) -> Result<(), Reason>;

    /// The stage that holds from now on: what is committed goes on though its caller leaves.
    fn enter(&mut self, stage: Stage);

    /// Writes the message and waits for the answer. The first byte goes out before it waits for anything.
    async fn send(
        &mut self,
        connection: Self::Connection,
        asked: &Asked<Self::Message>,
    ) -> Sent<Self::Returned>;

    /// Puts on record what became of an egress whose intent is.
    fn settle(&mut self, asked: &Asked<Self::Message>, delivered: &Delivered<Self::Returned>);
}

/// Runs a transaction to its answer.
///
/// # Errors
/// Why there is none.
pub async fn run<H: Hands>(hands: &mut H) -> Result<H::Answer, Refusal> {
    let mut stage = Stage::Restartable;
    let mut back: Option<Back<H::Message, H::Returned>> = None;
    // The last before it from which any pod can go on.
    let mut kept = None;
    loop {
        let reply = match &back {
            None => hands.attempt().await,
            Some(back) => hands.go_on(back, stage).await,
        };
        let reply = reply.map_err(|refusal| said(refusal, stage))?;
        let failure = match reply {
            Reply::Answer(answer) => return Ok(answer),
            Reply::Again => continue,
            Reply::Egress(asked) if in_order(&asked, back.as_ref()) => {
                let delivered = deliver(hands, &asked, &mut stage).await;
                let before = back.replace(Back { asked, delivered });
                kept = before.filter(|before| before.asked.has_context).or(kept);
                continue;
            }
            Reply::Egress(_) => Failure::Unknown(Reason::UpstreamProtocol),
            Reply::Failed(failure) if back.is_some() => begun(failure),
            Reply::Failed(failure) => failure,
        };
        hands.failed(failure, stage).map_err(|refusal| said(refusal, stage))?;
        match stage {
            // Nothing is carried over from a failed attempt, the numbers of its egresses included.
            Stage::Restartable => (back, kept) = (None, None),
            // What came without a context only the pod that asked can go on from. What had effects came with one.
            Stage::Committed if back.as_ref().is_some_and(|back| !back.asked.has_context) => {
                back = kept.take().or(back);
            }
            Stage::Committed => {}
        }
    }
}

/// A cell that asked for an egress has begun, although nothing may have processed what was brought back: another of its
/// pods would begin a second time.
fn begun(failure: Failure) -> Failure {
    match failure {
        Failure::NotProcessed(_) => Failure::Unknown(Reason::UpstreamReset),
        Failure::GivenBack(_) | Failure::Unknown(_) => failure,
    }
}

/// Past the point of no return there is one thing to say: what failed since then was no more than telling of it.
fn said(refusal: Refusal, stage: Stage) -> Refusal {
    match stage {
        Stage::Restartable => refusal,
        Stage::Committed => {
            let detail =
                format!("a message with effects was sent, and no cell could finish: {}", refusal.detail);
            Refusal::new(Reason::OutcomeUnknown, detail)
        }
    }
}

/// One is outstanding, always the last plus one; and what has effects can be finished by anybody.
fn in_order<M, R>(asked: &Asked<M>, back: Option<&Back<M, R>>) -> bool {
    let last = back.map_or(0, |back| back.asked.number);
    asked.number == last + 1 && (asked.has_context || !asked.effects)
}

/// In this order: a live connection, the intent on the disk, the fence once more, the first byte.
async fn deliver<H: Hands>(
    hands: &mut H,
    asked: &Asked<H::Message>,
    stage: &mut Stage,
) -> Delivered<H::Returned> {
    let mut connection = match hands.connect(asked).await {
        Ok(connection) => connection,
        Err(reason) => return Delivered::NotSent(reason),
    };
    if asked.effects
        && let Err(reason) = hands.record(asked).await
    {
        return Delivered::NotSent(reason);
    }
    let before = *stage;
    let delivered = loop {
        if let Err(reason) = hands.may_send(asked, before) {
            break Delivered::NotSent(reason);
        }
        if asked.effects {
            *stage = Stage::Committed;
            hands.enter(*stage);
        }
        match hands.send(connection, asked).await {
            Sent::Answered(returned) => break Delivered::Answered(returned),
            Sent::Unknown(reason) => break Delivered::Unknown(reason),
            Sent::NotSent(_) => {
                *stage = before;
                hands.enter(before);
            }
        }
        connection = match hands.connect(asked).await {
            Ok(connection) => connection,
            Err(reason) => break Delivered::NotSent(reason),
        };
    };
    if asked.effects {
        hands.settle(asked, &delivered);
    }
    delivered
}
