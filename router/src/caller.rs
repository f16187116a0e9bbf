//! Between a client's request and its transaction: who leaves before the point of no return takes the transaction along;
//! past it the transaction goes on without its client, and a client whose deadline comes first is told the truth.

use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use bulkhead_protocol::Reason;
use bulkhead_routing::Refusal;
use bulkhead_routing::transaction::run;
use futures::future::LocalBoxFuture;

use crate::answer::Life;
use crate::held::{Ready, ReadyBody};
use crate::listener::Permit;
use crate::message::{Held, Holds};
use crate::transaction::{Standing, Transaction};
use crate::under_way::{Claim, Ended};
use crate::worker::Worker;

/// An answer with what its request holds until it is written.
type Outcome = Result<(Ready, Holds), Refusal>;

/// How long after the deadline a course that has not ended by itself is given up, or its client told that it goes on.
const SLACK: Duration = Duration::from_millis(100);

/// Runs the transaction to its answer, in the caller's own task for as long as that lasts.
///
/// # Errors
/// Why there is no answer: `Timeout` when the deadline is over, `OutcomeUnknown` when it is and an effect under way.
pub(crate) async fn accompany(
    mut transaction: Box<Transaction>,
    permit: Permit,
    claim: Option<Claim>,
) -> Outcome {
    let worker = Rc::clone(&transaction.worker);
    let life = Rc::clone(&transaction.life);
    let shared = Rc::clone(&transaction.shared);
    let course = async move {
        let ran = run(&mut *transaction).await;
        let ran = ran.map(|ready| {
            transaction.rests();
            let holds = Holds {
                _permit: permit,
                _in_rule: transaction.in_rule.take(),
                _room: Rc::clone(&transaction.room),
                _owned: transaction.owned.take(),
            };
            (ready, holds)
        });
        if let Some(claim) = claim {
            claim.end(ended(&ran));
        }
        ran
    };
    let mut accompanied = Accompanied {
        worker: Rc::clone(&worker),
        course: Some(Box::pin(course)),
        shared: Rc::clone(&shared),
    };
    tokio::select! {
        biased;
        outcome = &mut accompanied => outcome,
        () = overdue(&worker, &life) => Err(if shared.committed.get() {
            Refusal {
                reason: Reason::OutcomeUnknown,
                detail: "the deadline is over (restart.deadline) and a message with effects is under way; it is finished, and its id says what came of it".to_owned(),
            }
        } else {
            Refusal { reason: Reason::Timeout, detail: "the rule's deadline is over (restart.deadline)".to_owned() }
        }),
    }
}

/// What those that joined are told.
fn ended(outcome: &Outcome) -> Ended {
    match outcome {
        Err(refusal) => Ended::Refused(refusal.clone()),
        Ok((Ready { status, fields, body: ReadyBody::Whole { data, trailers }, .. }, _)) => {
            Ended::Answered(std::sync::Arc::new(Held {
                status: *status,
                fields: fields.clone(),
                data: data.clone(),
                trailers: trailers.clone(),
            }))
        }
        Ok(_) => Ended::NotKept,
    }
}

/// Comes back when the deadline is over, which each choice may move.
async fn overdue(worker: &Worker, life: &Life) {
    loop {
        // Before there is a rule there is no deadline.
        let left = life.time_left(worker).min(LONGEST_LOOK);
        worker.timers().sleep(left + SLACK).await;
        if life.time_left(worker).is_zero() {
            return;
        }
    }
}

const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// A course that its caller waits for. Dropped once committed, it goes on as an orphan of its thread.
struct Accompanied {
    worker: Rc<Worker>,
    course: Option<LocalBoxFuture<'static, Outcome>>,
    shared: Rc<Standing>,
}

impl Future for Accompanied {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Outcome> {
        let Some(course) = &mut self.course else { return Poll::Pending };
        let polled = course.as_mut().poll(context);
        if polled.is_ready() {
            self.course = None;
        }
        polled
    }
}

impl Drop for Accompanied {
    fn drop(&mut self) {
        let Some(course) = self.course.take() else { return };
        self.shared.abandoned.set(true);
        if self.shared.committed.get() {
            self.worker.orphans().adopt(Box::pin(async move { drop(course.await) }));
        }
    }
}
