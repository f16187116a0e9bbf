//! The systems outside: one with effects that knows repetitions, one with effects that does not, and one without. What
//! reaches them is executed, soon or late, whatever becomes of the router that sent it.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use tokio::sync::oneshot;
use tokio::task::spawn_local;

use crate::faults::Fault;
use crate::history::{Execution, Id, RunId};
use crate::world::World;

/// What a destination promises.
pub(crate) struct Kind {
    pub(crate) effects: bool,
    pub(crate) checked: bool,
}

pub(crate) const DESTINATIONS: [Kind; 3] = [
    Kind { effects: true, checked: true },
    Kind { effects: true, checked: false },
    Kind { effects: false, checked: false },
];
/// Endpoints of each.
pub(crate) const ENDPOINTS: usize = 2;

/// What a duplicate check compares. The last part is 0 but where a router is flawed.
pub(crate) type Key = (Id, u32, u32);

#[derive(Default)]
pub(crate) struct Destination {
    seen: RefCell<BTreeSet<Key>>,
}

/// The destinations that a transaction calls, in order: the same in every attempt, since they follow from its bytes.
pub(crate) fn plan(id: Id) -> Vec<usize> {
    let mixed = id.wrapping_mul(0x9e37_79b9) >> 8;
    (0..mixed % 4).map(|step| (mixed >> (4 + 4 * step)) as usize % DESTINATIONS.len()).collect()
}

pub(crate) struct Parcel {
    pub(crate) destination: usize,
    pub(crate) key: Key,
    pub(crate) id: Id,
    pub(crate) number: u32,
    pub(crate) run: RunId,
    pub(crate) router: usize,
}

/// Takes the message and gives the line on which it answers, or which it closes.
pub(crate) fn receive(world: &Rc<World>, parcel: Parcel) -> oneshot::Receiver<()> {
    let (answer, line) = oneshot::channel();
    let world = Rc::clone(world);
    spawn_local(async move {
        world.pass(world.dice.between(1..=20)).await;
        if world.strikes(Fault::DestinationClosesBefore) {
            return;
        }
        if world.strikes(Fault::DestinationIsSlow) {
            world.pass(world.dice.between(100..=5_000)).await;
        }
        execute(&world, &parcel);
        if world.strikes(Fault::DestinationClosesAfter) {
            return;
        }
        if world.strikes(Fault::DestinationIsSilent) {
            world.pass(60_000).await;
            return;
        }
        world.pass(world.dice.between(0..=5)).await;
        // Whoever asked may be gone.
        let _ = answer.send(());
    });
    line
}

fn execute(world: &World, parcel: &Parcel) {
    let kind = &DESTINATIONS[parcel.destination];
    let is_new = world.destinations[parcel.destination].seen.borrow_mut().insert(parcel.key);
    if !kind.effects || (kind.checked && !is_new) {
        return;
    }
    let &Parcel { id, number, run, router, .. } = parcel;
    world.note(|| format!("effect {id}/{number} through router {router}, run {run}"));
    let at = world.now();
    world.history().executions.push(Execution { id, number, run, router, at, checked: kind.checked });
}
