//! Transactions past the point of no return whose clients are gone: their thread sees them through.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use futures::future::LocalBoxFuture;
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct Orphans(Rc<State>);

#[derive(Default)]
struct State {
    /// Given up where no task can be begun, such as while another is dropped.
    waiting: RefCell<Vec<LocalBoxFuture<'static, ()>>>,
    under_way: Cell<usize>,
    adopted: Notify,
    ended: Notify,
}

/// One that is under way, however it ends.
struct One(Rc<State>);

impl Drop for One {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
        self.0.ended.notify_one();
    }
}

impl Orphans {
    pub(crate) fn adopt(&self, course: LocalBoxFuture<'static, ()>) {
        self.0.under_way.set(self.0.under_way.get() + 1);
        self.0.waiting.borrow_mut().push(course);
        self.0.adopted.notify_one();
    }

    /// Sees to whatever is adopted. Never ends by itself.
    pub(crate) async fn raise(&self) {
        loop {
            for course in self.0.waiting.take() {
                let one = One(Rc::clone(&self.0));
                tokio::task::spawn_local(async move {
                    course.await;
                    drop(one);
                });
            }
            self.0.adopted.notified().await;
        }
    }

    /// The thread ends: what nobody raises any more is let go, and its effects stay unknown.
    pub(crate) fn abandon(&self) {
        let waiting = self.0.waiting.take();
        self.0.under_way.set(self.0.under_way.get() - waiting.len());
    }

    /// Comes back when none is under way.
    pub(crate) async fn grown(&self) {
        while self.0.under_way.get() > 0 {
            self.0.ended.notified().await;
        }
    }
}
