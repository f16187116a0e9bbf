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
            Sent::NotSent(reason) => {
                *stage = before;
                hands.enter(before);
                if reason == Reason::Timeout {
                    break Delivered::NotSent(reason);
                }
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

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::VecDeque;

    use super::*;

    /// Hands that reply by a script and write down what they are told.
    struct Script {
        replies: VecDeque<Reply<(), ()>>,
        sent: VecDeque<Sent<()>>,
        lines: RefCell<Vec<String>>,
    }

    impl Script {
        fn line(&self, line: impl Into<String>) {
            self.lines.borrow_mut().push(line.into());
        }

        fn reply(&mut self) -> Result<Reply<(), ()>, Refusal> {
            let refusal = || Refusal::new(Reason::NoHealthyCell, "the script is over");
            self.replies.pop_front().ok_or_else(refusal)
        }
    }

    impl Hands for Script {
        type Answer = ();
        type Message = ();
        type Connection = ();
        type Returned = ();

        async fn attempt(&mut self) -> Result<Reply<(), ()>, Refusal> {
            self.line("attempt");
            self.reply()
        }

        async fn go_on(&mut self, back: &Back<(), ()>, _: Stage) -> Result<Reply<(), ()>, Refusal> {
            self.line(format!("go on from {} {}", back.asked.number, back.delivered.status().as_str()));
            self.reply()
        }

        fn failed(&mut self, failure: Failure, stage: Stage) -> Result<(), Refusal> {
            self.line(format!("{failure:?} {stage:?}"));
            Ok(())
        }

        async fn connect(&mut self, _: &Asked<()>) -> Result<(), Reason> {
            self.line("connect");
            Ok(())
        }

        async fn record(&mut self, asked: &Asked<()>) -> Result<(), Reason> {
            self.line(format!("record {}", asked.number));
            Ok(())
        }

        fn may_send(&self, _: &Asked<()>, stage: Stage) -> Result<(), Reason> {
            self.line(format!("may send {stage:?}"));
            Ok(())
        }

        fn enter(&mut self, stage: Stage) {
            self.line(format!("enter {stage:?}"));
        }

        async fn send(&mut self, (): (), asked: &Asked<()>) -> Sent<()> {
            self.line(format!("send {}", asked.number));
            self.sent.pop_front().unwrap_or(Sent::Answered(()))
        }

        fn settle(&mut self, asked: &Asked<()>, delivered: &Delivered<()>) {
            self.line(format!("settle {} {}", asked.number, delivered.status().as_str()));
        }
    }

    fn egress(number: u32, effects: bool, has_context: bool) -> Reply<(), ()> {
        Reply::Egress(Asked { number, effects, has_context, message: () })
    }

    const REFUSED: Reply<(), ()> = Reply::Failed(Failure::NotProcessed(Reason::ConnectFailed));
    const SENT_ONCE: [&str; 7] = [
        "attempt",
        "connect",
        "record 1",
        "may send Restartable",
        "enter Committed",
        "send 1",
        "settle 1 answered",
    ];

    #[track_caller]
    fn check<const N: usize>(
        replies: [Reply<(), ()>; N],
        sent: Vec<Sent<()>>,
        expected: &[&str],
    ) -> Result<(), Reason> {
        let mut script = Script { replies: replies.into(), sent: sent.into(), lines: RefCell::default() };
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("needs nothing");
        let result = runtime.block_on(run(&mut script));
        assert_eq!(script.lines.into_inner(), expected);
        result.map_err(|refusal| refusal.reason)
    }

    #[test]
    fn a_message_with_effects_is_on_record_and_allowed_before_it_is_sent() {
        let expected = [&SENT_ONCE[..], &["go on from 1 answered"]].concat();
        assert_eq!(check([egress(1, true, true), Reply::Answer(())], vec![], &expected), Ok(()));
    }

    #[test]
    fn where_nothing_was_handed_over_another_connection_is_taken_and_the_fence_asked_again() {
        let stale = Sent::NotSent(Reason::DestinationUnavailable);
        let expected = [
            &SENT_ONCE[..6],
            &["enter Restartable", "connect", "may send Restartable", "enter Committed", "send 1"],
            &["settle 1 answered", "go on from 1 answered"],
        ];
        let replies = [egress(1, true, true), Reply::Answer(())];
        assert_eq!(check(replies, vec![stale], &expected.concat()), Ok(()));
    }

    #[test]
    fn numbers_out_of_order_and_effects_without_a_context_are_failures_of_the_cell() {
        for wrong in [egress(0, true, true), egress(2, true, true), egress(1, true, false)] {
            let expected = ["attempt", "Unknown(UpstreamProtocol) Restartable", "attempt"];
            assert_eq!(check([wrong, Reply::Answer(())], vec![], &expected), Ok(()));
        }
    }

    #[test]
    fn a_cell_whose_pod_is_gone_after_it_asked_had_begun() {
        let expected = [
            "attempt",
            "connect",
            "may send Restartable",
            "send 1",
            "go on from 1 answered",
            "Unknown(UpstreamReset) Restartable",
            "attempt",
        ];
        let replies = [egress(1, false, true), REFUSED, Reply::Answer(())];
        assert_eq!(check(replies, vec![], &expected), Ok(()));
    }

    #[test]
    fn past_the_point_of_no_return_the_last_context_is_what_others_go_on_from() {
        let expected = [
            &SENT_ONCE[..],
            &["go on from 1 answered", "connect", "may send Committed", "send 2", "go on from 2 answered"],
            &["Unknown(UpstreamReset) Committed", "go on from 1 answered"],
        ];
        let replies = [egress(1, true, true), egress(2, false, false), REFUSED, Reply::Answer(())];
        assert_eq!(check(replies, vec![], &expected.concat()), Ok(()));
    }

    #[test]
    fn what_was_sent_and_cannot_be_finished_is_unknown_whatever_the_last_failure_said() {
        let expected = [&SENT_ONCE[..], &["go on from 1 answered"]].concat();
        assert_eq!(check([egress(1, true, true)], vec![], &expected), Err(Reason::OutcomeUnknown));
    }
}
