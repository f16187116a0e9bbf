//! How a new revision reaches the cells of a template, one at a time: pure, from what all of them look like to the next
//! step of one. All state is in objects (the cell's revision and its TrafficShift), so a restart changes nothing.

/// One cell of the template, as it looks now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Member {
    pub name: String,
    /// The revision that its objects were made from; None before the first time.
    pub at: Option<String>,
    /// Ready, of that revision.
    pub ready: bool,
    /// The operator's shift for an update exists.
    pub shifted: bool,
    /// No router sends it anything and nothing is under way, by that shift or without it.
    pub drained: bool,
    /// Its spec and other shifts leave it a weight: taking it out is felt.
    pub takes_traffic: bool,
    /// Every router gives it its whole weight.
    pub full: bool,
    /// It cannot be built from the newest revision, so it stays at its own.
    pub excluded: bool,
    /// It is being deleted; it neither updates nor holds others up.
    pub leaving: bool,
}

/// What to do with one cell now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Keep it at the revision that it has.
    Keep,
    /// Another goes first; why.
    Wait(String),
    /// Make the shift that takes it out.
    TakeOut,
    /// The shift is there; routers still send, or something is under way.
    AwaitDrain,
    /// Bring its objects to the newest revision.
    Update,
    /// It has the newest revision and is not Ready: it keeps its shift, and nothing goes on.
    AwaitReady,
    /// Remove the shift: the ramp brings it back.
    BringBack,
}

/// The next step of the member called `me` towards the revision `target`.
pub(crate) fn next(members: &[Member], me: &str, target: &str) -> Step {
    let Some(mine) = members.iter().find(|member| member.name == me) else { return Step::Keep };
    let current = mine.at.as_deref() == Some(target);
    match (mine.shifted, current) {
        (true, true) if mine.ready => Step::BringBack,
        (true, true) => Step::AwaitReady,
        // It cannot be updated, so there is no reason to keep it out.
        (true, false) if mine.excluded => Step::BringBack,
        (true, false) if mine.drained => Step::Update,
        (true, false) => Step::AwaitDrain,
        (false, true) => Step::Keep,
        (false, false) if mine.at.is_none() => Step::Update,
        (false, false) if mine.excluded => Step::Keep,
        (false, false) => begin(members, mine, target),
    }
}

/// Whether an outdated cell may start now.
fn begin(members: &[Member], mine: &Member, target: &str) -> Step {
    let others = || members.iter().filter(|member| member.name != mine.name && !member.leaving);
    if let Some(other) = others().find(|member| member.shifted) {
        return Step::Wait(format!("cell {} is being updated", other.name));
    }
    if let Some(other) = others().find(|member| member.at.as_deref() == Some(target) && !member.ready) {
        return Step::Wait(format!("cell {} has revision {target} and is not Ready", other.name));
    }
    // Taking out a cell that nobody sends to costs nobody anything, so it need not wait for others to be whole.
    if mine.takes_traffic
        && let Some(other) = others().find(|member| !stands(member, target))
    {
        let why = if other.ready { "does not have its whole weight yet" } else { "is not Ready" };
        return Step::Wait(format!("cell {} {why}", other.name));
    }
    match first(members, target) {
        Some(first) if first.name != mine.name => Step::Wait(format!("cell {} goes first", first.name)),
        _ => Step::TakeOut,
    }
}

/// Whether another may be taken out beside this one. One that is out and outdated does not stand in the way, since it
/// goes first itself; unless it cannot be updated.
fn stands(member: &Member, target: &str) -> bool {
    let goes_first = member.at.as_deref() != Some(target) && !member.ready && !member.excluded;
    !member.takes_traffic || goes_first || (member.ready && member.full)
}

/// The outdated cell that goes first: one that nobody sends to (a canary without traffic), then one that is out anyway,
/// then by name. With a cell out, no other that takes traffic is ever taken out before it.
fn first<'a>(members: &'a [Member], target: &str) -> Option<&'a Member> {
    members
        .iter()
        .filter(|member| {
            member.at.as_deref().is_some_and(|at| at != target) && !member.excluded && !member.leaving
        })
        .min_by_key(|member| (member.takes_traffic, member.ready, member.name.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cell in traffic at that revision, Ready and whole.
    fn cell(name: &str, at: &str) -> Member {
        Member {
            name: name.to_owned(),
            at: Some(at.to_owned()),
            ready: true,
            takes_traffic: true,
            full: true,
            ..Member::default()
        }
    }

    #[track_caller]
    fn check(members: &[Member], expected: &[(&str, Step)]) {
        for (name, step) in expected {
            assert_eq!(next(members, name, "r2"), *step, "{name} among {members:#?}");
        }
    }

    fn wait(text: &str) -> Step {
        Step::Wait(text.to_owned())
    }

    #[test]
    fn cells_at_the_newest_revision_are_kept_and_a_new_one_is_made_from_it() {
        check(&[cell("a", "r2")], &[("a", Step::Keep), ("unknown", Step::Keep)]);
        check(&[Member { at: None, ..cell("a", "") }], &[("a", Step::Update)]);
    }

    #[test]
    fn only_the_first_by_name_is_taken_out() {
        let members = [cell("b", "r1"), cell("a", "r1"), cell("c", "r1")];
        let behind = wait("cell a goes first");
        check(&members, &[("a", Step::TakeOut), ("b", behind.clone()), ("c", behind)]);
    }

    #[test]
    fn a_cell_goes_out_drains_updates_gets_ready_and_comes_back() {
        let out = Member { shifted: true, full: false, ..cell("a", "r1") };
        check(
            &[out.clone(), cell("b", "r1")],
            &[("a", Step::AwaitDrain), ("b", wait("cell a is being updated"))],
        );
        let drained = Member { drained: true, ..out };
        check(&[drained.clone(), cell("b", "r1")], &[("a", Step::Update)]);
        let updated = Member { at: Some("r2".to_owned()), ready: false, ..drained };
        check(
            &[updated.clone(), cell("b", "r1")],
            &[("a", Step::AwaitReady), ("b", wait("cell a is being updated"))],
        );
        let ready = Member { ready: true, ..updated };
        check(&[ready.clone(), cell("b", "r1")], &[("a", Step::BringBack)]);
        let ramping = Member { shifted: false, ..ready };
        let held = wait("cell a does not have its whole weight yet");
        check(&[ramping.clone(), cell("b", "r1")], &[("a", Step::Keep), ("b", held)]);
        check(&[Member { full: true, ..ramping }, cell("b", "r1")], &[("b", Step::TakeOut)]);
    }

    #[test]
    fn a_cell_that_does_not_become_ready_stops_it() {
        let broken = Member { ready: false, shifted: true, full: false, ..cell("a", "r2") };
        check(
            &[broken.clone(), cell("b", "r1")],
            &[("a", Step::AwaitReady), ("b", wait("cell a is being updated"))],
        );
        // Someone removed the shift by hand: it still stops there.
        let unshifted = Member { shifted: false, ..broken };
        check(&[unshifted, cell("b", "r1")], &[("b", wait("cell a has revision r2 and is not Ready"))]);
    }

    #[test]
    fn going_back_to_the_old_revision_ends_it_without_touching_the_others() {
        let broken = Member { ready: false, shifted: true, drained: true, full: false, ..cell("a", "r1") };
        check(&[broken, cell("b", "r2")], &[("a", Step::Update), ("b", Step::Keep)]);
    }

    #[test]
    fn a_cell_that_is_out_anyway_goes_before_a_healthy_one() {
        let out = Member { ready: false, full: false, ..cell("b", "r1") };
        check(&[cell("a", "r1"), out], &[("a", wait("cell b goes first")), ("b", Step::TakeOut)]);
    }

    #[test]
    fn a_cell_without_traffic_goes_first_but_never_beside_another() {
        let drained = Member { takes_traffic: false, ..cell("z", "r1") };
        check(&[cell("a", "r1"), drained.clone()], &[("z", Step::TakeOut), ("a", wait("cell z goes first"))]);
        let out = Member { shifted: true, ..cell("a", "r1") };
        check(&[out, drained.clone()], &[("z", wait("cell a is being updated"))]);
        let broken = Member { at: Some("r2".to_owned()), ready: false, ..drained };
        check(&[cell("a", "r1"), broken], &[("a", wait("cell z has revision r2 and is not Ready"))]);
    }

    #[test]
    fn weight_0_is_no_leave_to_change_a_cell_that_routers_still_send_to() {
        let set_to_0 = Member { takes_traffic: false, full: false, ..cell("a", "r1") };
        check(&[set_to_0.clone(), cell("b", "r1")], &[("a", Step::TakeOut)]);
        let shifted = Member { shifted: true, ..set_to_0 };
        check(&[shifted.clone(), cell("b", "r1")], &[("a", Step::AwaitDrain)]);
        // Whoever held it at 0 no longer does: the operator's own shift still does.
        let wanted_again = Member { takes_traffic: true, ..shifted.clone() };
        check(&[wanted_again], &[("a", Step::AwaitDrain)]);
        check(&[Member { drained: true, ..shifted }], &[("a", Step::Update)]);
    }

    #[test]
    fn nobody_goes_out_beside_a_cell_that_is_out_and_cannot_be_updated() {
        let stuck = Member { ready: false, full: false, excluded: true, ..cell("b", "r1") };
        check(&[cell("a", "r1"), stuck.clone()], &[("a", wait("cell b is not Ready")), ("b", Step::Keep)]);
        let unwanted = Member { takes_traffic: false, ..stuck };
        check(&[cell("a", "r1"), unwanted], &[("a", Step::TakeOut)]);
    }

    #[test]
    fn a_cell_that_cannot_be_built_or_leaves_holds_nobody_up() {
        let excluded = Member { excluded: true, ..cell("a", "r1") };
        check(&[excluded.clone(), cell("b", "r1")], &[("a", Step::Keep), ("b", Step::TakeOut)]);
        check(&[Member { shifted: true, ..excluded }], &[("a", Step::BringBack)]);
        let leaving = Member { leaving: true, shifted: true, ready: false, ..cell("a", "r1") };
        check(&[leaving, cell("b", "r1")], &[("b", Step::TakeOut)]);
    }

    /// Plays every cell's steps in a bad order until nothing changes, and counts who is out meanwhile.
    #[test]
    fn never_two_cells_out_at_once_whoever_acts_first() {
        for seed in 0..50_usize {
            let mut members = vec![cell("a", "r1"), cell("b", "r1"), cell("c", "r1"), cell("d", "r1")];
            members[3].takes_traffic = false;
            for turn in 0..200 {
                let index = (seed * 7 + turn * 3 + turn / 4) % members.len();
                let step = next(&members, &members[index].name.clone(), "r2");
                let member = &mut members[index];
                match step {
                    Step::TakeOut => (member.shifted, member.full) = (true, false),
                    Step::AwaitDrain => member.drained = true,
                    Step::Update => {
                        assert!(member.shifted && member.drained, "{member:#?}");
                        (member.at, member.ready) = (Some("r2".to_owned()), false);
                    }
                    Step::AwaitReady => member.ready = true,
                    Step::BringBack => {
                        (member.shifted, member.drained) = (false, false);
                        member.full = !member.takes_traffic;
                    }
                    Step::Keep => member.full |= !member.shifted,
                    Step::Wait(_) => {}
                }
                assert!(members.iter().filter(|member| !member.full).count() <= 1, "{members:#?}");
            }
            assert!(
                members.iter().all(|member| member.at.as_deref() == Some("r2") && member.full),
                "{members:#?}"
            );
        }
    }
}
