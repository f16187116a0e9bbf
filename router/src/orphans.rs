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
                let state = Rc::clone(&self.0);
                tokio::task::spawn_local(async move {
                    course.await;
                    state.under_way.set(state.under_way.get() - 1);
                    state.ended.notify_one();
                });
            }
            self.0.adopted.notified().await;
        }
    }

    /// Comes back when none is under way.
    pub(crate) async fn grown(&self) {
        while self.0.under_way.get() > 0 {
            self.0.ended.notified().await;
        }
    }
}
