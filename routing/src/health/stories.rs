//! Stories of cells that fail and return, told to a whole fleet as a router would, and what their shares do meanwhile.

use std::sync::Arc;

use proptest::prelude::*;

use super::story::{Speaker, Story, TICK_MS};
use super::*;
use crate::fixture::World;

const TWO: &[&[(&str, u32)]] = &[&[("a", 60), ("b", 40)]];

#[test]
fn a_router_that_starts_among_healthy_cells_ramps_nothing() {
    let mut story = Story::unheard(TWO);
    assert!(!story.is_answered());
    story.speak();
    assert!(story.is_answered());
    assert_eq!((story.share("a"), story.share("b")), (60, 40));
}

#[test]
fn a_router_that_starts_during_a_ramp_goes_on_with_it() {
    let mut story = Story::unheard(TWO);
    story.speaker("a-0").ready_since_ms = story.now_ms as i64 - 25_000;
    story.speak();
    assert_eq!(story.share("a"), 27, "60 x 25 % beside 40");
}

#[test]
fn a_cell_that_says_not_ready_is_out_at_once_and_returns_by_steps() {
    let mut story = Story::new(TWO);
    story.pass(5_000);
    story.ready("a-0", false);
    assert_eq!((story.share("a"), story.share("b")), (0, 100));
    story.check_told(&["a out ServiceNotReady"]);
    story.pass(1_000);
    story.ready("a-0", true);
    story.check_told(&["a in"]);
    for percent in [0, 5, 25, 50, 100] {
        let expected =
            (100.0 * 60.0 * f64::from(percent) / (60.0 * f64::from(percent) + 4_000.0)).round() as u32;
        assert_eq!(story.share("a"), expected, "at {percent} %");
        story.pass(9_900);
        assert_eq!(story.share("a"), expected, "until the end of {percent} %");
        story.pass(100);
    }
    story.check_told(&[]);
}

#[test]
fn a_second_failure_during_the_ramp_starts_it_over() {
    let mut story = Story::new(TWO);
    story.ready("a-0", false);
    story.pass(1_000);
    story.ready("a-0", true);
    story.pass(25_000);
    assert_eq!(story.share("a"), 27);
    story.ready("a-0", false);
    assert_eq!(story.share("a"), 0);
    story.pass(500);
    story.ready("a-0", true);
    story.watch(9_900, |story| assert_eq!(story.share("a"), 0));
    story.pass(100);
    assert_eq!(story.share("a"), 7);
}

#[test]
fn a_router_that_cannot_ask_by_its_own_fault_holds_it_against_nobody() {
    let mut story = Story::new(TWO);
    story.speaker("a-0").speaks = false;
    for _ in 0..20 {
        story.event("a", Event::Deaf("a-0".into()));
        story.pass(500);
        assert_eq!(story.share("a"), 60);
    }
    story.pass(500);
    story.check_told(&["a out Silent"]);
    // What was lost stays lost until it speaks.
    story.event("a", Event::Deaf("a-0".into()));
    assert_eq!(story.share("a"), 0);
}

#[test]
fn an_outage_of_the_stream_alone_ramps_too() {
    let mut story = Story::new(TWO);
    story.speaker("a-0").speaks = false;
    story.pass(1_000);
    story.check_told(&["a out Silent"]);
    story.speaker("a-0").speaks = true;
    story.pass(250);
    story.check_told(&["a in"]);
    assert_eq!(story.share("a"), 0, "it was ready all the time, and yet it was out");
    story.pass(60_000);
    assert_eq!(story.share("a"), 60);
}

#[test]
fn silence_is_found_within_a_second_of_the_last_beat() {
    let mut story = Story::new(TWO);
    story.pass(1_000);
    story.speaker("a-0").speaks = false;
    let mut out_after = 0;
    let start = story.now_ms;
    story.watch(1_000, |story| {
        if story.share("a") > 0 {
            out_after = story.now_ms - start;
        }
    });
    assert!((600..900).contains(&out_after), "out {out_after} ms after the last beat");
}

#[test]
fn a_refused_connection_takes_a_cell_out_at_once_and_another_pod_keeps_it_in() {
    let mut story = Story::new(TWO);
    story.event("a", Event::Refused("a-0".into()));
    story.check_told(&["a out ConnectFailed"]);
    let mut story = Story::unheard(TWO);
    story.add_pod("a", "a-1");
    story.speak();
    story.check_told(&["a in", "b in"]);
    story.event("a", Event::Refused("a-0".into()));
    story.ready("a-1", true);
    story.check_told(&[]);
    let usable: Vec<_> = story.fleet.get("a").expect("a cell").usable_pods().cloned().collect();
    assert_eq!(usable, [Pod::from("a-1")]);
    story.event("a", Event::PodRemoved("a-1".into()));
    story.check_told(&["a out ConnectFailed"]);
    story.event("a", Event::PodRemoved("a-0".into()));
    assert_eq!(story.fleet.get("a").expect("a cell").reason(), "NoEndpoints");
}

#[test]
fn a_stream_that_ends_and_opens_anew_in_time_changes_nothing() {
    let mut story = Story::new(TWO);
    story.speaker("a-0").speaks = false;
    story.event("a", Event::StreamEnded("a-0".into()));
    story.pass(500);
    story.speaker("a-0").speaks = true;
    story.speak();
    story.pass(1_000);
    story.check_told(&[]);
    assert_eq!(story.share("a"), 60);
}

#[test]
fn lines_of_pods_that_are_no_endpoints_are_not_heard() {
    let mut story = Story::new(TWO);
    story.event("a", Event::PodRemoved("a-0".into()));
    story.check_told(&["a out NoEndpoints"]);
    story.pass(1_000);
    story.check_told(&[]);
}

#[test]
fn a_cell_whose_every_pod_is_dead_is_out_whatever_its_share_of_the_group() {
    let mut story = Story::unheard(&[&[("a", 99), ("b", 1)]]);
    story.add_pod("a", "a-1");
    story.speak();
    for pod in ["a-0", "a-1"] {
        story.speaker(pod).speaks = false;
    }
    story.pass(1_000);
    assert_eq!((story.share("a"), story.share("b")), (0, 100));
}

#[test]
fn a_router_that_was_stopped_holds_nothing_against_its_cells() {
    let mut story = Story::new(TWO);
    story.pass(1_000);
    story.now_ms += 10_000;
    story.tick(10_000);
    story.check_told(&[]);
    story.pass(1_000);
    story.check_told(&[]);
    assert_eq!(story.doubts, 0);
}

#[test]
fn a_router_that_went_deaf_doubts_itself_first_and_not_for_long() {
    let mut story = Story::new(TWO);
    story.pass(1_000);
    let deafen = |story: &mut Story, deaf: bool| story.pods.iter_mut().for_each(|pod| pod.speaks = !deaf);
    deafen(&mut story, true);
    story.pass(750);
    assert_eq!(story.doubts, 1);
    deafen(&mut story, false);
    story.speak();
    story.pass(250);
    story.check_told(&[]);
    deafen(&mut story, true);
    story.pass(850);
    story.check_told(&[]);
    story.pass(150);
    story.check_told(&["a out Silent", "b out Silent"]);
    assert_eq!(story.doubts, 2);
}

#[test]
fn the_end_of_an_operators_shift_counts_as_let_in_again_and_an_edit_does_not() {
    let mut story = Story::new(TWO);
    story.event("a", Event::OperatorShift(false));
    assert_eq!(story.share("a"), 60);
    story.event("a", Event::OperatorShift(true));
    story.pass(5_000);
    story.event("a", Event::OperatorShift(true));
    story.event("a", Event::OperatorShift(false));
    assert_eq!(story.share("a"), 0);
    story.pass(10_000);
    assert_eq!(story.share("a"), 7);
    let mut world = World::with_groups(TWO);
    world.cells[1].spec.weight = 50;
    story.table = world.table();
    story.fleet.sync(story.table.cells().map(|(_, cell)| &cell.name), story.now_ms);
    assert_eq!(story.share("a"), 13, "an edit shows at once, and a new table keeps what is known");
}

#[test]
fn a_cell_that_is_alone_serves_as_soon_as_it_is_in() {
    let mut story = Story::new(&[&[("a", 1)]]);
    story.ready("a-0", false);
    assert_eq!(story.share("a"), 0);
    story.ready("a-0", true);
    assert_eq!(story.share("a"), 100);
}

#[test]
fn a_cell_that_never_answers_keeps_a_router_waiting_for_two_seconds_only() {
    let mut story = Story::unheard(TWO);
    story.speaker("a-0").speaks = false;
    story.speak();
    story.pass(1_900);
    assert!(!story.is_answered());
    story.pass(100);
    assert!(story.is_answered());
    assert_eq!(story.fleet.get("a").expect("a cell").reason(), "NoAnswer");
    story.pass(8_500);
    story.speaker("a-0").speaks = true;
    story.pass(250);
    assert_eq!(story.share("a"), 0, "it comes late, and by steps");
}

#[test]
fn cells_that_are_added_meanwhile_keep_no_router_waiting() {
    let mut story = Story::unheard(TWO);
    story.speak();
    let names: Vec<Arc<str>> = ["a", "b", "new"].map(Arc::from).to_vec();
    story.now_ms += TICK_MS;
    story.fleet.sync(&names, story.now_ms);
    assert!(story.is_answered());
}

#[test]
fn a_router_whose_ways_to_all_cells_open_late_waits_for_the_first_and_ramps_nothing() {
    let mut story = Story::unheard(TWO);
    for pod in ["a-0", "b-0"] {
        story.speaker(pod).speaks = false;
        let cell = &pod[..1];
        story.event(cell, Event::Refused(pod.into()));
    }
    story.pass(3_000);
    assert!(!story.is_answered(), "refused connections are no answer of a cell");
    story.speaker("a-0").speaks = true;
    story.pass(250);
    assert!(!story.is_answered(), "all would go to the first that is reached");
    story.pass(1_000);
    story.speaker("b-0").speaks = true;
    story.pass(250);
    assert!(story.is_answered());
    assert_eq!((story.share("a"), story.share("b")), (60, 40));
}

#[test]
fn a_router_to_which_no_cell_ever_speaks_is_ready_to_say_so_after_ten_seconds() {
    let mut story = Story::unheard(TWO);
    story.speaker("a-0").speaks = false;
    story.speaker("b-0").speaks = false;
    story.pass(9_900);
    assert!(!story.is_answered());
    story.pass(100);
    assert!(story.is_answered());
    assert_eq!((story.share("a"), story.share("b")), (0, 0));
}

#[test]
fn readiness_that_flaps_every_second_for_a_minute_moves_traffic_once() {
    for groups in [TWO, &[&[("a", 1)], &[("b", 1)]]] {
        let mut story = Story::new(groups);
        let (mut changes, mut last) = (0, story.share("a"));
        for second in 0..60 {
            story.ready("a-0", second % 2 == 1);
            story.watch(1_000, |story| {
                changes += usize::from(story.share("a") != last);
                last = story.share("a");
            });
        }
        assert_eq!((changes, last), (1, 0), "{groups:?}");
    }
}

/// What can happen to cell `a`.
#[derive(Clone, Debug)]
enum Trouble {
    Ready(bool),
    Speak(bool),
    Refuse,
    EndStream,
    Shift(bool),
    Replace,
    Late(u64),
}

fn trouble() -> impl Strategy<Value = (Trouble, u64)> {
    let what = prop_oneof![
        4 => any::<bool>().prop_map(Trouble::Ready),
        2 => any::<bool>().prop_map(Trouble::Speak),
        1 => Just(Trouble::Refuse),
        1 => Just(Trouble::EndStream),
        1 => any::<bool>().prop_map(Trouble::Shift),
        1 => Just(Trouble::Replace),
        1 => (100_u64..3_000).prop_map(Trouble::Late),
    ];
    (what, prop::sample::select(vec![50, 200, 700, 3_000, 15_000]))
}

impl Story {
    fn happen(&mut self, trouble: &Trouble) {
        match trouble {
            Trouble::Ready(ready) => self.ready("a-0", *ready),
            Trouble::Speak(speaks) => self.speaker("a-0").speaks = *speaks,
            Trouble::Refuse => self.event("a", Event::Refused("a-0".into())),
            Trouble::EndStream => self.event("a", Event::StreamEnded("a-0".into())),
            Trouble::Shift(active) => self.event("a", Event::OperatorShift(*active)),
            Trouble::Replace => {
                self.event("a", Event::PodRemoved("a-0".into()));
                self.event("a", Event::PodAdded("a-0".into()));
            }
            Trouble::Late(late) => {
                self.now_ms += late / TICK_MS * TICK_MS;
                self.tick(late / TICK_MS * TICK_MS);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_happens_share_never_grows_without_readiness_and_all_comes_back_in_the_end(
        troubles in prop::collection::vec(trouble(), 1..30),
    ) {
        let mut story = Story::new(TWO);
        let mut silent_ms = 0;
        for (trouble, wait) in &troubles {
            story.happen(trouble);
            let (mut last, mut failed) = (story.share("a"), None);
            story.watch(*wait, |story| {
                let share = story.share("a");
                let Speaker { ready, speaks, .. } = story.pods[0];
                silent_ms = if speaks { 0 } else { silent_ms + TICK_MS };
                // A router cannot know of silence before two beats are missed.
                let fails = speaks && !ready || silent_ms > 700;
                if fails && share > last || share + story.share("b") != 100 {
                    failed = Some((last, share));
                }
                last = share;
            });
            prop_assert!(failed.is_none(), "{:?} at {} after {:?}", failed, story.now_ms, trouble);
        }
        story.happen(&Trouble::Speak(true));
        story.happen(&Trouble::Ready(true));
        story.happen(&Trouble::Shift(false));
        story.pass(41_000);
        prop_assert_eq!((story.share("a"), story.share("b")), (60, 40));
    }
}
