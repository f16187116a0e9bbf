//! The callers: with an idempotency key or without, through one router or both, patient or not.

use std::rc::Rc;

use crate::faults::Fault;
use crate::history::{Id, Request, Told};
use crate::router::Router;
use crate::world::World;

/// A caller's requests until it knows what came of its transaction, or has had enough.
pub(crate) async fn call(world: &Rc<World>, routers: &[Rc<Router>; 2]) {
    let has_key = world.dice.chance(800);
    let mut id = world.new_id();
    let mut at = world.dice.below(2);
    world.pass(world.dice.between(0..=400)).await;
    for _ in 0..4 {
        let told = if has_key && world.strikes(Fault::CallerHedges) {
            let second = &routers[world.dice.below(2)];
            let (one, other) = tokio::join!(ask(world, &routers[at], id), ask(world, second, id));
            // Whoever has an answer asks no more, whatever else was said.
            let other_says_less = matches!(other, Told::Refused(_) | Told::InFlight | Told::Nothing);
            if matches!(one, Told::Answer(_)) || other_says_less { one } else { other }
        } else {
            ask(world, &routers[at], id).await
        };
        match told {
            Told::Answer(_) | Told::Decided => return,
            // Most leave it to a person.
            Told::Unknown if world.dice.chance(700) => return,
            Told::Unknown | Told::Refused(_) | Told::InFlight | Told::Nothing => {}
        }
        world.pass(world.dice.between(0..=100)).await;
        if world.dice.chance(500) {
            at = 1 - at;
        }
        if !has_key {
            id = world.new_id();
        }
    }
}

/// One request, until it is told something or has waited enough.
async fn ask(world: &Rc<World>, router: &Rc<Router>, id: Id) -> Told {
    let request = {
        let mut history = world.history();
        history.requests.push(Request {
            id,
            router: router.index,
            run: None,
            began: world.now(),
            told: None,
        });
        history.requests.len() - 1
    };
    let patience = if world.strikes(Fault::CallerLeaves) {
        // Most of what happens to a transaction happens early.
        let longest = world.dice.pick(&[60, 200, 2_500]);
        world.dice.between(5..=longest)
    } else {
        10_000
    };
    let told = tokio::select! {
        biased;
        told = router.request(request) => told,
        () = world.pass(patience) => Told::Nothing,
    };
    world.note(|| format!("caller of {id} at router {}: {told:?}", router.index));
    world.history().requests[request].told = Some((told.clone(), world.now()));
    told
}
