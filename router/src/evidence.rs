//! What attempts say of their cells. Each thread counts for itself and hands in a few times a second; the health thread
//! takes it from there, and `routing` says what it means.
//!
//! A sample is one attempt that ended: answered, or failed by the cell's fault. What a destination did is no fault of the
//! cell that asked for it, nor is what was given back for want of room, called back, or ran out of time that others had used.

use std::cell::{Cell, RefCell};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bulkhead_protocol::Reason;
use bulkhead_routing::health::Samples;
use bulkhead_routing::transaction::{Delivered, Failure};
use http::StatusCode;

use crate::hands::Brought;

/// What all threads have handed in of one cell.
#[derive(Debug, Default)]
pub(crate) struct Said(Mutex<Samples>);

impl Said {
    fn add(&self, samples: &Samples) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).add(samples);
    }

    /// Takes what was said since the last time.
    pub(crate) fn take(&self) -> Samples {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// One thread's samples of one cell that are not handed in yet.
#[derive(Debug, Default)]
pub(crate) struct Tally(RefCell<Samples>);

impl Tally {
    pub(crate) fn hand_in(&self, to: &Said) {
        let samples = self.0.take();
        if !samples.is_empty() {
            to.add(&samples);
        }
    }
}

/// What one transaction may say of the cells that it comes to.
#[derive(Debug)]
pub(crate) struct Witness {
    speaks: Cell<bool>,
    /// When the attempt under way began, by the process's clock. Getting a connection is part of it.
    began: Cell<Duration>,
}

impl Witness {
    /// One whose body comes while it is sent has nothing to say: the time is its client's.
    pub(crate) fn new(is_whole: bool) -> Self {
        Self { speaks: Cell::new(is_whole), began: Cell::default() }
    }

    pub(crate) fn begins(&self, now: Duration) {
        self.began.set(now);
    }

    /// What became of an egress is brought to a cell. From one that went wrong on, what cells say may be of that.
    pub(crate) fn brings(&self, delivered: &Delivered<Brought>) {
        let well = match delivered {
            Delivered::Answered(brought) => brought.returned.status < 500,
            Delivered::NotSent(_) | Delivered::Unknown(_) => false,
        };
        self.speaks.set(self.speaks.get() && well);
    }

    /// A cell answered with that status. An egress that it asks for is an answer like another.
    pub(crate) fn answered(&self, tally: &Tally, status: StatusCode, took: Duration) {
        if !self.speaks.get() {
            return;
        }
        let mut samples = tally.0.borrow_mut();
        if status.is_server_error() {
            samples.fail();
        } else {
            samples.answer(u64::try_from(took.as_micros()).unwrap_or(u64::MAX));
        }
    }

    /// How long the attempt under way takes so far.
    pub(crate) fn took(&self, now: Duration) -> Duration {
        now.saturating_sub(self.began.get())
    }

    /// An attempt failed that might have taken so long.
    pub(crate) fn failed(&self, tally: &Tally, failure: Failure, now: Duration, per_attempt: Duration) {
        // What was left to it of its caller's time may be no measure.
        let cut_short = failure.reason() == Reason::Timeout && self.took(now) < per_attempt / 2;
        if self.speaks.get() && is_the_cells(failure) && !cut_short {
            tally.0.borrow_mut().fail();
        }
    }
}

fn is_the_cells(failure: Failure) -> bool {
    match failure {
        Failure::NotProcessed(reason) => reason == Reason::ConnectFailed,
        Failure::GivenBack(reason) | Failure::Unknown(reason) => matches!(
            reason,
            Reason::CellRestart
                | Reason::ServiceNotReady
                | Reason::ServiceFailed
                | Reason::ConnectFailed
                | Reason::UpstreamReset
                | Reason::UpstreamProtocol
                | Reason::Timeout
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// What a witness adds to a tally, as failures and answers.
    #[track_caller]
    fn check(said: impl FnOnce(&Tally), failed: u32, answered: u32) {
        let (tally, handed_in) = (Tally::default(), Said::default());
        said(&tally);
        tally.hand_in(&handed_in);
        let mut expected = Samples::default();
        (0..failed).for_each(|_| expected.fail());
        (0..answered).for_each(|_| expected.answer(1_000_000));
        assert_eq!(handed_in.take(), expected);
        tally.hand_in(&handed_in);
        assert!(handed_in.take().is_empty(), "it is handed in once");
    }

    #[test]
    fn answers_of_5xx_are_failures_and_others_have_a_time() {
        for (status, failed) in [(200, 0), (204, 0), (404, 0), (429, 0), (500, 1), (503, 1)] {
            let status = StatusCode::from_u16(status).expect("a status");
            check(|tally| Witness::new(true).answered(tally, status, SECOND), failed, 1 - failed);
        }
    }

    #[test]
    fn only_what_is_the_cells_fault_is_held_against_it() {
        use Failure::{GivenBack, NotProcessed, Unknown};
        for (failure, failed) in [
            (NotProcessed(Reason::ConnectFailed), 1),
            (NotProcessed(Reason::WrongCell), 0),
            (GivenBack(Reason::ServiceFailed), 1),
            (GivenBack(Reason::ServiceNotReady), 1),
            (GivenBack(Reason::Capacity), 0),
            (GivenBack(Reason::Draining), 0),
            (GivenBack(Reason::DestinationUnavailable), 0),
            (GivenBack(Reason::DestinationForbidden), 0),
            (GivenBack(Reason::LedgerUnavailable), 0),
            (Unknown(Reason::UpstreamReset), 1),
            (Unknown(Reason::UpstreamProtocol), 1),
            (Unknown(Reason::Timeout), 1),
            (Unknown(Reason::CellDisabled), 0),
            (Unknown(Reason::PodGone), 0),
            (Unknown(Reason::Internal), 0),
        ] {
            check(|tally| Witness::new(true).failed(tally, failure, SECOND, SECOND), failed, 0);
        }
    }

    #[test]
    fn an_attempt_that_had_little_time_is_no_measure_of_the_cell() {
        let witness = Witness::new(true);
        witness.begins(SECOND);
        let late = Failure::Unknown(Reason::Timeout);
        check(|tally| witness.failed(tally, late, SECOND * 3 / 2, SECOND), 1, 0);
        check(|tally| witness.failed(tally, late, SECOND * 5 / 4, SECOND), 0, 0);
    }

    #[test]
    fn after_a_fault_of_a_destination_nothing_is_said_of_cells() {
        for delivered in
            [Delivered::NotSent(Reason::DestinationUnavailable), Delivered::Unknown(Reason::Timeout)]
        {
            let witness = Witness::new(true);
            witness.brings(&delivered);
            check(|tally| witness.answered(tally, StatusCode::BAD_GATEWAY, SECOND), 0, 0);
            check(
                |tally| witness.failed(tally, Failure::GivenBack(Reason::ServiceFailed), SECOND, SECOND),
                0,
                0,
            );
        }
        check(|tally| Witness::new(false).answered(tally, StatusCode::OK, SECOND), 0, 0);
    }
}
