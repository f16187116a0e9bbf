//! What one thread writes goes out at the end of its turn: when all who are ready now have been heard. Each write costs a
//! wake-up where the other side is on this machine and sleeps; written one behind the other, the first wakes it for all.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// Something with bytes to write.
pub(super) trait Flush {
    fn flush(&self);
}

/// One thread's.
struct Turn {
    flushes: RefCell<Vec<Rc<dyn Flush>>>,
    /// Wakes who ends turns, where anybody does.
    ends: RefCell<Option<Waker>>,
    is_ending: Cell<bool>,
}

thread_local! {
    static TURN: Turn = const {
        Turn { flushes: RefCell::new(Vec::new()), ends: RefCell::new(None), is_ending: Cell::new(false) }
    };
}

/// Has it flushed at the end of the turn. False where nobody ends turns on this thread.
pub(super) fn at_end(flush: Rc<dyn Flush>) -> bool {
    TURN.with(|turn| {
        let ends = turn.ends.borrow();
        let Some(ends) = &*ends else { return false };
        turn.flushes.borrow_mut().push(flush);
        if !turn.is_ending.replace(true) {
            ends.wake_by_ref();
        }
        true
    })
}

/// Ends the turns of this thread for as long as it is polled, behind whoever was woken before.
pub(crate) async fn end_turns() {
    /// Without it things are flushed at once.
    struct Release;
    impl Drop for Release {
        fn drop(&mut self) {
            TURN.with(|turn| {
                turn.ends.take();
                turn.flushes.take().iter().for_each(|flush| flush.flush());
            });
        }
    }
    let _release = Release;
    let mut due = Vec::new();
    poll_fn(|context| {
        TURN.with(|turn| {
            turn.ends.borrow_mut().get_or_insert_with(|| context.waker().clone());
            turn.is_ending.set(false);
            std::mem::swap(&mut due, &mut turn.flushes.borrow_mut());
        });
        due.drain(..).for_each(|flush: Rc<dyn Flush>| flush.flush());
        Poll::<()>::Pending
    })
    .await;
}
