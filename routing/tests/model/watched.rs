//! A value that tasks wait on. Whoever waits is woken in the order of waiting: tokio's own `watch` wakes in a random
//! one, and every run has to follow from its seed.

use std::cell::{Ref, RefCell};

use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct Watched<T> {
    value: RefCell<T>,
    changed: Notify,
}

impl<T> Watched<T> {
    /// Not to be held over an await.
    pub(crate) fn get(&self) -> Ref<'_, T> {
        self.value.borrow()
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut T)) {
        change(&mut self.value.borrow_mut());
        self.changed.notify_waiters();
    }

    pub(crate) async fn until(&self, holds: impl Fn(&T) -> bool) {
        loop {
            let changed = self.changed.notified();
            if holds(&self.value.borrow()) {
                return;
            }
            changed.await;
        }
    }
}
