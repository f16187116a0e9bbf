//! What a worker sees of a client's connection, and how it ends it. It costs a request a few stores: no timer, no lock.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Between requests, or before the first.
    Idle,
    /// Part of a head has arrived.
    Head,
    /// A request is under way, or the connection has left HTTP.
    Busy,
}

/// What the worker may tell a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kick {
    None,
    /// Finish what is under way, then close.
    Graceful,
    /// Close now.
    Abort,
}

pub(crate) struct Watch {
    /// The worker's time in milliseconds, as of its last look at its connections.
    now: Rc<Cell<u64>>,
    phase: Cell<Phase>,
    since: Cell<u64>,
    /// Since when the client takes no bytes.
    blocked_since: Cell<Option<u64>>,
    kick: Cell<Kick>,
    task: RefCell<Option<Waker>>,
}

impl Watch {
    /// `now` is the worker's to set.
    pub(crate) fn new(now: &Rc<Cell<u64>>) -> Rc<Self> {
        Rc::new(Self {
            now: Rc::clone(now),
            phase: Cell::new(Phase::Idle),
            since: Cell::new(now.get()),
            blocked_since: Cell::new(None),
            kick: Cell::new(Kick::None),
            task: RefCell::default(),
        })
    }

    /// The phase and for how many milliseconds it has lasted.
    pub(crate) fn phase(&self) -> (Phase, u64) {
        (self.phase.get(), self.now.get().saturating_sub(self.since.get()))
    }

    /// For how many milliseconds the client has taken none of the bytes that wait for it.
    pub(crate) fn blocked(&self) -> u64 {
        self.blocked_since.get().map_or(0, |since| self.now.get().saturating_sub(since))
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked_since.get().is_some()
    }

    /// The worker's time in milliseconds.
    pub(super) fn now(&self) -> u64 {
        self.now.get()
    }

    pub(crate) fn kick(&self, kick: Kick) {
        self.kick.set(self.kick.get().max(kick));
        if let Some(task) = self.task.borrow_mut().take() {
            task.wake();
        }
    }

    pub(super) fn kicked(&self) -> Kick {
        self.kick.get()
    }

    /// Has the task woken by the next kick.
    pub(super) fn attend(&self, context: &Context<'_>) {
        let mut task = self.task.borrow_mut();
        if !task.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            *task = Some(context.waker().clone());
        }
    }

    pub(super) fn wrote<T>(&self, polled: &Poll<T>) {
        match (polled.is_pending(), self.blocked_since.get()) {
            (true, None) => self.blocked_since.set(Some(self.now.get())),
            (false, Some(_)) => self.blocked_since.set(None),
            _ => {}
        }
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.since.set(self.now.get());
        self.phase.set(phase);
    }

    pub(super) fn bytes_arrived(&self) {
        if self.phase.get() == Phase::Idle {
            self.enter(Phase::Head);
        }
    }
}
