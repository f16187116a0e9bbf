//! The pods of the cells: they work for a while, call the destinations that the transaction's plan names, and go wrong.
//! Any pod goes on from a context.

use std::cell::Cell;
use std::rc::Rc;

use bulkhead_protocol::{EgressStatus, Reason};
use tokio::sync::mpsc;

use crate::destination::{DESTINATIONS, plan};
use crate::faults::Fault;
use crate::history::{Claims, Id, Question};
use crate::world::World;

pub(crate) struct Pod {
    pub(crate) cell: usize,
    /// Counts its crashes.
    life: Cell<u32>,
    down_until: Cell<u64>,
    stopped_until: Cell<u64>,
}

impl Pod {
    pub(crate) fn new(cell: usize) -> Self {
        Self { cell, life: Cell::new(0), down_until: Cell::new(0), stopped_until: Cell::new(0) }
    }

    pub(crate) fn is_up(&self, now: u64) -> bool {
        now >= self.down_until.get()
    }
}

/// What a pod is asked.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) id: Id,
    pub(crate) question: Question,
    /// None: from the original bytes.
    pub(crate) from: Option<Continuation>,
}

/// What a pod goes on from.
#[derive(Clone, Debug)]
pub(crate) struct Continuation {
    pub(crate) claims: Claims,
    /// The life of the pod that knows the rest, where no context came with the egress.
    pub(crate) memory_of: Option<u32>,
}

/// A message for a destination.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) question: Question,
    pub(crate) number: u32,
    pub(crate) destination: usize,
    pub(crate) has_context: bool,
    pub(crate) claims: Claims,
    pub(crate) pod: usize,
    pub(crate) life: u32,
}

/// What a pod says.
#[derive(Clone, Debug)]
pub(crate) enum Word {
    Answer(Question, Claims),
    Egress(Ask),
    GivenBack(Reason),
}

/// Works on the order. It says its word on the line, or drops it, which is a reset.
pub(crate) async fn work(world: Rc<World>, index: usize, order: Order, line: mpsc::Sender<Word>) {
    let pod = &world.pods[index];
    let life = pod.life.get();
    world.pass(world.dice.between(1..=30)).await;
    if world.strikes(Fault::PodStops) {
        pod.stopped_until.set(world.now() + world.dice.between(500..=3_000));
    }
    while world.now() < pod.stopped_until.get() {
        world.pass(pod.stopped_until.get() - world.now()).await;
    }
    if world.strikes(Fault::PodCrashes) {
        pod.life.set(pod.life.get() + 1);
        pod.down_until.set(world.now() + world.dice.between(50..=1_500));
    }
    if pod.life.get() != life || world.strikes(Fault::PodResets) {
        return;
    }
    let times = if world.strikes(Fault::PodSpeaksTwice) { 2 } else { 1 };
    for _ in 0..times {
        let word = word(&world, index, life, &order);
        world.note(|| format!("pod {index} to question {}: {word:?}", order.question));
        // Whoever asked may have given it up.
        let _ = line.try_send(word);
    }
}

fn word(world: &World, pod: usize, life: u32, order: &Order) -> Word {
    let from = order.from.as_ref();
    if from.is_some_and(|from| from.memory_of.is_some_and(|then| then != life)) {
        return Word::GivenBack(Reason::ServiceFailed);
    }
    if world.strikes(Fault::PodGivesBack) {
        return Word::GivenBack(world.dice.pick(&[Reason::Draining, Reason::ServiceFailed]));
    }
    let claims = from.map(|from| from.claims.clone()).unwrap_or_default();
    if claims.last() == Some(&EgressStatus::NotSent) {
        let gives_back = world.dice.chance(500);
        return if gives_back {
            Word::GivenBack(Reason::CellRestart)
        } else {
            Word::Answer(order.question, claims)
        };
    }
    let Some(destination) = plan(order.id).get(claims.len()).copied() else {
        return Word::Answer(order.question, claims);
    };
    let next = u32::try_from(claims.len()).expect("a plan is short") + 1;
    let number =
        if world.strikes(Fault::PodMiscounts) { world.dice.pick(&[next - 1, next + 1]) } else { next };
    let needs_context = DESTINATIONS[destination].effects || world.dice.chance(500);
    let has_context = needs_context && !world.strikes(Fault::PodOmitsContext);
    Word::Egress(Ask { question: order.question, number, destination, has_context, claims, pod, life })
}
