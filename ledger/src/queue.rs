//! The way to the writer's thread: one queue, so that records of an effect are written in the order in which they came.
//! Only intents are bounded by it. Outcomes are never refused: each belongs to an intent that was taken, so that they are
//! no more than the effects under way.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::record::{Intent, Record};
use crate::refusal::Refusal;

/// What the writer is asked to do.
pub(crate) enum Job {
    /// Write this and say when it is on the disk.
    Intent { intent: Intent, at_ms: u64, serial: u64, reply: Reply },
    /// Write this; nobody waits.
    Outcome(Record),
    /// Write this, say when it is on the disk, and let it take effect then.
    Resolution { record: Record, reply: Reply },
}

pub(crate) type Reply = oneshot::Sender<Result<(), Refusal>>;

pub(crate) struct Queue {
    state: Mutex<State>,
    filled: Condvar,
    /// Intents that may wait.
    limit: usize,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    intents: usize,
    closed: bool,
    writer_waits: bool,
}

/// What the writer got.
pub(crate) enum Taken {
    /// At most as many as it asked for; none when its time was over.
    Jobs(Vec<Job>),
    /// Nothing is left, and nothing will come.
    Closed,
}

impl Queue {
    pub(crate) fn new(limit: usize) -> Self {
        Self { state: Mutex::default(), filled: Condvar::new(), limit }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// # Errors
    /// When too many intents wait already, or the queue is closed.
    pub(crate) fn push(&self, job: Job) -> Result<(), Refusal> {
        let mut state = self.lock();
        if state.closed {
            return Err(Refusal::Closed);
        }
        if matches!(job, Job::Intent { .. }) {
            if state.intents >= self.limit {
                return Err(Refusal::Overloaded { waiting: state.intents });
            }
            state.intents += 1;
        }
        state.jobs.push_back(job);
        if std::mem::take(&mut state.writer_waits) {
            drop(state);
            self.filled.notify_one();
        }
        Ok(())
    }

    /// Waits for jobs, but no longer than `wait`.
    pub(crate) fn take(&self, most: usize, wait: Duration) -> Taken {
        let mut state = self.lock();
        if state.jobs.is_empty() && !state.closed {
            state.writer_waits = true;
            let waited =
                self.filled.wait_timeout_while(state, wait, |state| state.jobs.is_empty() && !state.closed);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            state.writer_waits = false;
        }
        if state.jobs.is_empty() && state.closed {
            return Taken::Closed;
        }
        let most = most.min(state.jobs.len());
        let jobs: Vec<_> = state.jobs.drain(..most).collect();
        state.intents -= jobs.iter().filter(|job| matches!(job, Job::Intent { .. })).count();
        Taken::Jobs(jobs)
    }

    /// Nothing more is taken in; what is there is still given out.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.filled.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_protocol::TransactionId;

    use super::*;

    fn intent() -> Job {
        let id = TransactionId::from_bytes([1; 16]);
        let intent = Intent { id, n: 1, attempt: 1, cell: "a".into(), destination: "visa".into() };
        Job::Intent { intent, at_ms: 0, serial: 0, reply: oneshot::channel().0 }
    }

    fn outcome() -> Job {
        Job::Outcome(Record::Compacted { through: 1 })
    }

    fn taken(queue: &Queue, most: usize) -> Option<usize> {
        match queue.take(most, Duration::ZERO) {
            Taken::Jobs(jobs) => Some(jobs.len()),
            Taken::Closed => None,
        }
    }

    #[test]
    fn intents_are_bounded_and_outcomes_are_not() {
        let queue = Queue::new(2);
        queue.push(intent()).expect("the first");
        queue.push(intent()).expect("the second");
        assert_eq!(queue.push(intent()), Err(Refusal::Overloaded { waiting: 2 }));
        queue.push(outcome()).expect("has its place");
        assert_eq!(taken(&queue, 1), Some(1));
        queue.push(intent()).expect("there is room again");
        assert_eq!(taken(&queue, 10), Some(3));
        assert_eq!(taken(&queue, 10), Some(0), "the time is over");
    }

    #[test]
    fn what_waits_when_the_queue_is_closed_is_still_given_out() {
        let queue = Queue::new(2);
        queue.push(intent()).expect("is open");
        queue.close();
        assert_eq!(queue.push(outcome()), Err(Refusal::Closed));
        assert_eq!(taken(&queue, 10), Some(1));
        assert_eq!(taken(&queue, 10), None);
    }

    #[test]
    fn a_writer_that_waits_is_woken() {
        let queue = Queue::new(2);
        std::thread::scope(|scope| {
            let writer =
                scope.spawn(|| matches!(queue.take(10, Duration::MAX), Taken::Jobs(jobs) if jobs.len() == 1));
            queue.push(intent()).expect("is open");
            assert!(writer.join().expect("ends"));
        });
    }
}
