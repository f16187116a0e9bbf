//! Deadlines of one thread. Each request sets a few, and nearly all are let go of long before: setting one is a store in a
//! list, and one task looks the list through when the soonest may be due, to the millisecond.

use std::cell::{Cell, RefCell};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bulkhead_process::Monotonic;
use slab::Slab;
use tokio::sync::Notify;
use tokio::time::sleep_until;

/// Longer than anything is waited for.
pub(crate) const ENDLESS: Duration = Duration::from_secs(365 * 24 * 3600);

pub(crate) struct Timers {
    clock: Monotonic,
    set: RefCell<Slab<Timer>>,
    /// In milliseconds of the clock; no timer that is set is due before.
    soonest: Cell<u64>,
    /// Told of one that is due sooner than that.
    sooner: Notify,
}

struct Timer {
    due_ms: u64,
    waker: Option<Waker>,
    due: bool,
}

impl Timers {
    pub(crate) fn new(clock: Monotonic) -> Rc<Self> {
        Rc::new(Self { clock, set: RefCell::default(), soonest: Cell::new(u64::MAX), sooner: Notify::new() })
    }

    /// Wakes those that are due. Never ends by itself.
    pub(crate) async fn run(&self) {
        loop {
            match self.soonest.get() {
                u64::MAX => self.sooner.notified().await,
                soonest => {
                    tokio::select! {
                        () = sleep_until(self.clock.at_millis(soonest).into()) => {}
                        () = self.sooner.notified() => {}
                    }
                }
            }
            self.look(self.clock.millis());
        }
    }

    fn look(&self, now_ms: u64) {
        let mut soonest = u64::MAX;
        for (_, timer) in self.set.borrow_mut().iter_mut().filter(|(_, timer)| !timer.due) {
            timer.due = timer.due_ms <= now_ms;
            if !timer.due {
                soonest = soonest.min(timer.due_ms);
            } else if let Some(waker) = timer.waker.take() {
                waker.wake();
            }
        }
        self.soonest.set(soonest);
    }

    /// Wakes all that wait, to look at what else they wait for.
    pub(crate) fn stir(&self) {
        self.set.borrow().iter().filter_map(|(_, timer)| timer.waker.as_ref()).for_each(Waker::wake_by_ref);
    }

    /// Comes back after that time, or up to a millisecond later.
    pub(crate) fn sleep(self: &Rc<Self>, time: Duration) -> Sleep {
        Sleep { timers: Rc::clone(self), due: self.clock.elapsed().saturating_add(time), place: None }
    }

    /// What the work comes to; none where it takes longer than that.
    pub(crate) async fn within<T>(
        self: &Rc<Self>,
        time: Duration,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.sleep(time) => None,
        }
    }

    fn set(&self, due: Duration) -> usize {
        let part = u64::from(due.subsec_nanos().div_ceil(1_000_000));
        let due_ms = due.as_secs().saturating_mul(1_000).saturating_add(part).min(u64::MAX - 1);
        if due_ms < self.soonest.get() {
            self.soonest.set(due_ms);
            self.sooner.notify_one();
        }
        self.set.borrow_mut().insert(Timer { due_ms, waker: None, due: false })
    }
}

/// One deadline; it is set when it is first waited for.
pub(crate) struct Sleep {
    timers: Rc<Timers>,
    due: Duration,
    place: Option<usize>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let due = self.due;
        let timers = Rc::clone(&self.timers);
        let place = *self.place.get_or_insert_with(|| timers.set(due));
        let mut set = timers.set.borrow_mut();
        let Some(timer) = set.get_mut(place).filter(|timer| !timer.due) else { return Poll::Ready(()) };
        if !timer.waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
            timer.waker = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.timers.set.borrow_mut().try_remove(place);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs beside the timers.
    async fn beside<T>(timers: &Rc<Timers>, work: impl Future<Output = T>) -> T {
        tokio::select! {
            () = timers.run() => unreachable!("it never ends"),
            done = work => done,
        }
    }

    #[tokio::test]
    async fn the_soonest_comes_first_and_none_before_its_time() {
        let clock = Monotonic::start();
        let timers = Timers::new(clock);
        let order = RefCell::new(Vec::new());
        let wait = async |millis| {
            timers.sleep(Duration::from_millis(millis)).await;
            assert!(clock.elapsed() >= Duration::from_millis(millis));
            order.borrow_mut().push(millis);
        };
        beside(&timers, async { tokio::join!(wait(30), wait(10), wait(20), wait(0)) }).await;
        assert_eq!(order.take(), [0, 10, 20, 30]);
        assert!(timers.set.borrow().is_empty());
    }

    #[tokio::test]
    async fn work_is_given_its_time_and_no_more() {
        let timers = Timers::new(Monotonic::start());
        let within = beside(&timers, timers.within(Duration::from_secs(60), async { 7 })).await;
        assert_eq!(within, Some(7));
        let never = std::future::pending::<()>();
        assert_eq!(beside(&timers, timers.within(Duration::from_millis(1), never)).await, None);
        assert!(timers.set.borrow().is_empty(), "what is over is not kept");
    }
}
