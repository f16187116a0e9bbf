//! A router around the course of its transactions: what it says at the door, whose caller still waits, and how it
//! crashes, stops and comes back. How a course is driven is as a router has to do it: cancelled with its caller before
//! the point of no return, finished in the background after it.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use bulkhead_protocol::Reason;
use bulkhead_routing::Refusal;
use bulkhead_routing::transaction::{Budget, run};
use tokio::task::spawn_local;

use crate::faults::{Fault, Flaw};
use crate::hands::RouterHands;
use crate::history::{Claims, End, Id, Run, RunId, Told};
use crate::ledger::Ledger;
use crate::watched::Watched;
use crate::world::World;

/// Milliseconds that a transaction may take until the point of no return.
pub(crate) const DEADLINE: u64 = 2_000;

pub(crate) struct Router {
    pub(crate) world: Rc<World>,
    pub(crate) index: usize,
    pub(crate) ledger: Rc<Ledger>,
    pub(crate) budget: RefCell<Budget>,
    /// How often it has crashed, and whether it is up.
    crashes: Watched<u32>,
    is_up: Cell<bool>,
    stopped_until: Cell<u64>,
    in_flight: RefCell<BTreeMap<Id, Rc<InFlight>>>,
}

/// What callers and course of one transaction know of each other.
pub(crate) struct InFlight {
    pub(crate) run: RunId,
    pub(crate) deadline: u64,
    pub(crate) state: Watched<State>,
    told: Watched<Option<Told>>,
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) callers: u32,
    pub(crate) committed: bool,
}

/// A caller that waits. Dropped, it has left.
struct Waiting(Rc<InFlight>);

impl Waiting {
    fn on(transaction: &Rc<InFlight>) -> Self {
        transaction.state.change(|state| state.callers += 1);
        Self(Rc::clone(transaction))
    }

    async fn told(&self) -> Told {
        self.0.told.until(Option::is_some).await;
        self.0.told.get().clone().unwrap_or(Told::Nothing)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.state.change(|state| state.callers -= 1);
    }
}

impl Router {
    pub(crate) fn new(world: &Rc<World>, index: usize) -> Rc<Self> {
        Rc::new(Self {
            world: Rc::clone(world),
            index,
            ledger: Ledger::new(Rc::clone(world)),
            budget: RefCell::default(),
            crashes: Watched::default(),
            is_up: Cell::new(true),
            stopped_until: Cell::new(0),
            in_flight: RefCell::default(),
        })
    }

    /// A step of its work, at whose end it may have stopped for a while or crashed.
    pub(crate) async fn step(self: &Rc<Self>, ms: u64) {
        self.world.pass(ms).await;
        if self.world.strikes(Fault::RouterStops) {
            self.stopped_until.set(self.world.now() + self.world.dice.between(50..=3_000));
        }
        self.runs().await;
        if self.world.strikes(Fault::RouterCrashes) {
            self.crash();
            // What it had in flight is dropped where it stands.
            std::future::pending::<()>().await;
        }
    }

    /// Until it is not stopped.
    pub(crate) async fn runs(&self) {
        while self.world.now() < self.stopped_until.get() {
            self.world.pass(self.stopped_until.get() - self.world.now()).await;
        }
    }

    fn crash(self: &Rc<Self>) {
        self.is_up.set(false);
        self.crashes.change(|crashes| *crashes += 1);
        self.world.history().crashes.push(self.index);
        self.ledger.lose_power();
        self.in_flight.borrow_mut().clear();
        let router = Rc::clone(self);
        spawn_local(async move {
            router.world.pass(router.world.dice.between(20..=1_000)).await;
            router.ledger.read();
            router.is_up.set(true);
        });
    }

    /// One request, dropped where its caller leaves. Gives what the caller is told.
    pub(crate) async fn request(self: &Rc<Self>, request: usize) -> Told {
        self.runs().await;
        let id = self.world.history().requests[request].id;
        match self.admit(id) {
            Err(told) => told,
            Ok(waiting) => {
                self.world.history().requests[request].run = Some(waiting.0.run);
                waiting.told().await
            }
        }
    }

    /// What is known of an id goes before everything else: being at a limit is no reason to say that nothing happened.
    fn admit(self: &Rc<Self>, id: Id) -> Result<Waiting, Told> {
        if !self.is_up.get() {
            return Err(Told::Nothing);
        }
        if let Some(transaction) = self.in_flight.borrow().get(&id)
            && !self.world.has(Flaw::RunsAnIdTwiceAtOnce)
        {
            return if self.world.joins { Ok(Waiting::on(transaction)) } else { Err(Told::InFlight) };
        }
        let sheds = !self.ledger.takes_records();
        if let Some(told) = self.ledger.standing(id)
            && !(sheds && self.world.has(Flaw::ShedsBeforeItAsksTheLedger))
        {
            return Err(told);
        }
        if sheds {
            return Err(Told::Refused(Reason::LedgerUnavailable));
        }
        let transaction = Rc::new(InFlight {
            run: {
                let mut history = self.world.history();
                history.runs.push(Run::default());
                history.runs.len() - 1
            },
            deadline: self.world.now() + DEADLINE,
            state: Watched::default(),
            told: Watched::default(),
        });
        let waiting = Waiting::on(&transaction);
        self.in_flight.borrow_mut().insert(id, Rc::clone(&transaction));
        spawn_local(Rc::clone(self).drive(id, transaction, *self.crashes.get()));
        Ok(waiting)
    }

    async fn drive(self: Rc<Self>, id: Id, transaction: Rc<InFlight>, life: u32) {
        self.budget.borrow_mut().begin();
        let mut hands = RouterHands::new(&self, id, &transaction);
        let result = tokio::select! {
            biased;
            () = self.crashes.until(|crashes| *crashes != life) => Err(End::Lost),
            () = self.deserted(&transaction) => Err(End::Cancelled),
            result = run(&mut hands) => Ok(result),
        };
        let run = transaction.run;
        let end = match result {
            Err(end) => end,
            Ok(Ok(_)) => End::Answered,
            Ok(Err(Refusal { reason, .. })) => End::Refused(reason),
        };
        self.world.note(|| format!("run {run} of {id} at router {}: {end:?}", self.index));
        {
            let mut history = self.world.history();
            history.runs[run].end = Some(end);
            history.runs[run].pods_left = hands.tried.pods_left();
        }
        if end == End::Lost {
            return transaction.told.change(|told| *told = Some(Told::Nothing));
        }
        hands.withdraw();
        self.in_flight.borrow_mut().remove(&id);
        self.budget.borrow_mut().end(self.world.now());
        if let Ok(result) = result {
            transaction.told.change(|told| *told = Some(self.told(result)));
        }
    }

    /// Until nobody waits for what nobody outside has heard of.
    async fn deserted(&self, transaction: &InFlight) {
        let keeps = |state: &State| state.committed && !self.world.has(Flaw::LeavesWithTheCaller);
        let is_deserted = |state: &State| state.callers == 0 && !keeps(state);
        loop {
            transaction.state.until(is_deserted).await;
            self.runs().await;
            // A course may come to its next step before its router reads that the caller left.
            self.world.pass(self.world.dice.between(0..=3)).await;
            if is_deserted(&transaction.state.get()) {
                return;
            }
        }
    }

    fn told(&self, result: Result<Claims, Refusal>) -> Told {
        match result {
            Ok(claims) => Told::Answer(claims),
            Err(refusal) if refusal.reason == Reason::OutcomeUnknown => {
                if self.world.has(Flaw::PromisesThatNothingHappened) {
                    return Told::Refused(Reason::ConnectFailed);
                }
                Told::Unknown
            }
            Err(refusal) => Told::Refused(refusal.reason),
        }
    }

    /// The last loss of power, after which its disk is all that speaks for it.
    pub(crate) fn end(&self) {
        self.ledger.lose_power();
        self.world.history().ledgers.push(self.ledger.effects().into_iter().collect());
    }
}
