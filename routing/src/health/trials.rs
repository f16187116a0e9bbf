//! Stories of cells that say they are well and do worse than their siblings, and what their shares do meanwhile.

use proptest::prelude::*;

use super::State;
use super::story::Story;
use crate::fixture::World;

const TWO: &[&[(&str, u32)]] = &[&[("a", 1), ("b", 1)]];
const THREE: &[&[(&str, u32)]] = &[&[("a", 1), ("b", 1), ("c", 1)]];
const SIX: &[&[(&str, u32)]] = &[&[("a", 1), ("b", 1), ("c", 1), ("d", 1), ("e", 1), ("f", 1)]];

/// The longest that a cell is kept out after it is well again: suspected for 160 s, samples that count for 10 s, and 41 s of
/// steps.
const LONGEST_MS: u64 = 211_000;

/// Two hundred requests a second, for a while already.
fn busy(groups: &[&[(&str, u32)]]) -> Story {
    let mut story = Story::new(groups);
    story.rate = 200.0;
    story.pass(20_000);
    story.check_told(&[]);
    story
}

fn shares_of(story: &Story, cells: &[&str]) -> Vec<u32> {
    cells.iter().map(|cell| story.share(cell)).collect()
}

#[test]
fn a_cell_whose_attempts_fail_gets_nothing_for_a_while_and_comes_back_by_steps() {
    let mut story = busy(THREE);
    story.fails("a", 0.5);
    story.pass(2_500);
    story.check_told(&["a HighErrorRate for 10 s"]);
    assert_eq!(shares_of(&story, &["a", "b", "c"]), [0, 50, 50]);
    let state = story.fleet.get("a").expect("a cell");
    assert_eq!((state.is_in(), state.reason()), (true, "HighErrorRate"));
    story.fails("a", 0.0);
    story.pass(10_000);
    story.check_told(&["a let back"]);
    assert_eq!((story.share("a"), story.fleet.get("a").expect("a cell").reason()), (0, "Ready"));
    let mut last = 0;
    let mut seen = vec![0];
    story.watch(42_000, |story| {
        let share = story.share("a");
        assert!(share >= last, "it only grows");
        if share > last {
            seen.push(share);
        }
        last = share;
    });
    assert_eq!(seen, [0, 2, 11, 20, 33]);
    story.check_told(&[]);
    assert!(!story.fleet.doubts_any());
}

#[test]
fn a_cell_that_is_slow_beside_its_siblings_goes_too_and_a_little_slower_is_no_reason() {
    let mut story = busy(THREE);
    story.takes("a", 40);
    story.pass(60_000);
    story.check_told(&[]);
    story.takes("a", 400);
    story.pass(8_000);
    story.check_told(&["a HighLatency for 10 s"]);
    assert_eq!(story.share("a"), 0);
}

#[test]
fn where_all_are_as_bad_nobody_goes() {
    let mut story = busy(THREE);
    for cell in ["a", "b", "c"] {
        story.fails(cell, 0.6);
        story.takes(cell, 3_000);
    }
    story.watch(120_000, |story| assert_eq!(shares_of(story, &["a", "b", "c"]), [33, 33, 33]));
    story.check_told(&[]);
}

#[test]
fn of_two_cells_none_goes_whatever_they_do() {
    let mut story = busy(TWO);
    story.fails("a", 1.0);
    story.watch(120_000, |story| assert_eq!(shares_of(story, &["a", "b"]), [50, 50]));
    assert!(story.told.contains(&"a HighErrorRate for 10 s".to_owned()), "people are told: {:?}", story.told);
}

#[test]
fn no_more_than_a_third_of_a_group_goes_and_the_worst_go_first() {
    let mut story = busy(SIX);
    story.fails("a", 0.5);
    story.fails("b", 0.9);
    story.fails("c", 1.0);
    let mut last = Vec::new();
    story.watch(10_000, |story| {
        let shares = shares_of(story, &["a", "b", "c", "d", "e", "f"]);
        assert!(shares.iter().filter(|share| **share == 0).count() <= 2, "{shares:?}");
        last = shares;
    });
    assert_eq!(last, [25, 0, 0, 25, 25, 25]);
}

#[test]
fn what_a_router_is_told_not_to_look_at_takes_nobody_out() {
    let mut world = World::with_groups(THREE);
    for (errors, latency) in [(true, false), (false, true), (false, false)] {
        let mut story = busy(THREE);
        world.router.spec.evidence = bulkhead_crds::router::Evidence { errors, latency };
        story.table = world.table();
        story.fails("a", 0.5);
        story.takes("b", 900);
        story.pass(9_000);
        let kept_out: Vec<bool> = shares_of(&story, &["a", "b"]).iter().map(|share| *share == 0).collect();
        assert_eq!(kept_out, [errors, latency]);
        // Told so later, it lets back who is suspected.
        world.router.spec.evidence = bulkhead_crds::router::Evidence { errors: false, latency: false };
        story.table = world.table();
        story.pass(250);
        assert_eq!(shares_of(&story, &["a", "b", "c"]), [33, 33, 33]);
    }
}

#[test]
fn a_cell_that_goes_on_failing_is_tried_ever_more_rarely_and_never_with_more_than_the_first_step() {
    let mut story = busy(THREE);
    story.fails("a", 1.0);
    story.pass(2_500);
    let (mut tries, mut last) = (Vec::new(), 0);
    story.watch(1_200_000, |story| {
        let share = story.share("a");
        assert!(share <= 2, "{share} % while it fails");
        if share > 0 && last == 0 {
            tries.push((story.now_ms - 25_000) / 1_000);
        }
        last = share;
    });
    assert!((7..=11).contains(&tries.len()), "{tries:?}");
    assert!(tries.windows(2).skip(4).all(|pair| pair[1] - pair[0] >= 160), "{tries:?}");
    story.fails("a", 0.0);
    story.pass(LONGEST_MS);
    assert_eq!(story.share("a"), 33);
}

#[test]
fn strikes_are_forgiven_with_time() {
    let mut story = busy(THREE);
    for expected in ["a HighErrorRate for 10 s", "a HighErrorRate for 20 s", "a HighErrorRate for 40 s"] {
        story.fails("a", 1.0);
        story.pass(2_500);
        story.fails("a", 0.0);
        story.pass(100_000);
        story.check_told(&[expected, "a let back"]);
    }
    story.pass(1_000_000);
    story.fails("a", 1.0);
    story.pass(2_500);
    story.check_told(&["a HighErrorRate for 10 s"]);
}

#[test]
fn a_ramp_goes_no_further_while_something_speaks_against_the_cell() {
    let mut story = busy(TWO);
    story.ready("a-0", false);
    story.pass(1_000);
    story.ready("a-0", true);
    story.pass(22_000);
    assert_eq!(story.share("a"), 20);
    // Enough to hold it, and not to take anything back.
    story.fails("a", 0.08);
    story.watch(60_000, |story| assert_eq!(story.share("a"), 20));
    story.fails("a", 0.0);
    story.pass(35_000);
    assert_eq!(story.share("a"), 50);
}

#[test]
fn a_ramp_goes_back_a_step_at_a_time_where_the_cell_clearly_fails_and_starts_over_after_a_new_failure() {
    let mut story = busy(TWO);
    story.ready("a-0", false);
    story.pass(1_000);
    story.ready("a-0", true);
    story.pass(35_000);
    assert_eq!(story.share("a"), 33);
    story.fails("a", 1.0);
    let (mut last, mut seen) = (33, vec![33]);
    story.watch(9_000, |story| {
        let share = story.share("a");
        assert!(share <= last, "it only falls");
        if share < last {
            seen.push(share);
        }
        last = share;
    });
    assert_eq!(seen, [33, 20, 5, 0], "step by step");
    story.fails("a", 0.0);
    story.pass(60_000);
    assert_eq!(story.share("a"), 50);
    story.ready("a-0", false);
    story.pass(500);
    story.ready("a-0", true);
    story.watch(9_900, |story| assert_eq!(story.share("a"), 0));
    story.pass(100);
    assert_eq!(story.share("a"), 5);
}

#[test]
fn a_suspicion_ends_with_the_cell_that_it_was_of() {
    let mut story = busy(THREE);
    story.fails("a", 1.0);
    story.pass(2_500);
    story.ready("a-0", false);
    story.fails("a", 0.0);
    story.pass(500);
    story.ready("a-0", true);
    story.check_told(&["a HighErrorRate for 10 s", "a out ServiceNotReady", "a in"]);
    assert!(!story.fleet.doubts_any());
    story.pass(41_000);
    assert_eq!(story.share("a"), 33);
}

/// What can happen to one of six cells.
#[derive(Clone, Debug)]
enum Trouble {
    Fails(f64),
    Takes(u64),
    Ready(bool),
}

fn trouble(with_health: bool) -> impl Strategy<Value = (usize, Trouble, u64)> {
    let failing = prop::sample::select(vec![0.0, 0.0, 0.1, 0.4, 1.0]).prop_map(Trouble::Fails);
    let taking = prop::sample::select(vec![20, 20, 200, 2_000]).prop_map(Trouble::Takes);
    let ready = any::<bool>().prop_map(Trouble::Ready);
    let what = prop_oneof![3 => failing, 2 => taking, u32::from(with_health) => ready];
    (0_usize..6, what, prop::sample::select(vec![250, 1_000, 4_000, 15_000, 40_000]))
}

impl Story {
    /// Those of a group that are in, suspected or not.
    fn serving(&self, group: &[(&'static str, u32)]) -> Vec<&'static str> {
        let is_in = |cell: &str| self.fleet.get(cell).is_some_and(State::is_in);
        group.iter().map(|(cell, _)| *cell).filter(|cell| is_in(cell)).collect()
    }

    /// Whether no return from outside keeps it down.
    fn is_warm(&self, cell: &str) -> bool {
        self.now_ms as i64 - self.fleet.get(cell).expect("a cell").ramp_start_ms() > 41_000
    }

    fn befall(&mut self, cell: &str, trouble: &Trouble) {
        match trouble {
            Trouble::Fails(failing) => self.fails(cell, *failing),
            Trouble::Takes(millis) => self.takes(cell, *millis),
            Trouble::Ready(ready) => self.ready(&format!("{cell}-0"), *ready),
        }
    }
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
/// Groups of four and of two.
const GROUPS: &[&[(&str, u32)]] = &[&[("a", 4), ("b", 1), ("c", 1), ("d", 2)], &[("e", 1), ("f", 1)]];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn whatever_happens_somebody_serves_a_third_at_most_is_out_and_all_comes_back_in_the_end(
        troubles in prop::collection::vec(trouble(true), 1..25),
        rate in prop::sample::select(vec![20.0, 200.0, 1_000.0]),
    ) {
        let mut story = Story::new(GROUPS);
        story.rate = rate;
        for (cell, trouble, wait) in &troubles {
            story.befall(NAMES[*cell], trouble);
            let mut wrong = None;
            story.watch(*wait, |story| {
                if !story.now_ms.is_multiple_of(250) {
                    return;
                }
                let [first, second] = GROUPS else { unreachable!("there are two") };
                let (first, second) = (story.serving(first), story.serving(second));
                let shares = shares_of(story, &NAMES);
                let gets = |cell: &str| NAMES.iter().zip(&shares).any(|(name, share)| *name == cell && *share > 0);
                let kept_out = first.iter().filter(|cell| story.is_warm(cell) && !gets(cell)).count();
                let total: u32 = shares.iter().sum();
                let serves = first.is_empty() && second.is_empty() || (98..=102).contains(&total);
                if kept_out > first.len() / 3 || !serves {
                    wrong = Some((first.len(), second.len(), shares));
                }
            });
            prop_assert!(wrong.is_none(), "{:?} after {:?} of {}", wrong, trouble, NAMES[*cell]);
        }
        for cell in NAMES {
            story.befall(cell, &Trouble::Fails(0.0));
            story.befall(cell, &Trouble::Takes(20));
            story.befall(cell, &Trouble::Ready(true));
        }
        story.pass(LONGEST_MS);
        prop_assert_eq!(shares_of(&story, &NAMES), [50, 13, 13, 25, 0, 0]);
    }

    #[test]
    fn a_cell_is_suspected_three_times_in_a_minute_at_most_and_seven_in_ten(
        troubles in prop::collection::vec(trouble(false), 1..40),
    ) {
        let mut story = busy(SIX);
        let mut suspected: Vec<(String, u64)> = Vec::new();
        for (cell, trouble, wait) in &troubles {
            story.befall(NAMES[*cell], trouble);
            story.watch(*wait, |_| {});
            let now = story.now_ms;
            let told = std::mem::take(&mut story.told);
            suspected.extend(told.iter().filter(|line| line.contains(" for ")).map(|line| (line[..1].to_owned(), now)));
        }
        for cell in NAMES {
            let times: Vec<u64> = suspected.iter().filter(|(of, _)| of == cell).map(|(_, at)| *at).collect();
            // Seen at the end of a wait, so that a span is longer by one.
            prop_assert!(times.windows(4).all(|span| span[3] - span[0] > 20_000), "{}: {:?}", cell, times);
            prop_assert!(times.windows(8).all(|span| span[7] - span[0] > 560_000), "{}: {:?}", cell, times);
        }
    }

    #[test]
    fn while_a_cell_fails_its_share_only_falls_once_that_is_known(
        failing in 0.3_f64..=1.0,
        rate in 100.0_f64..2_000.0,
        lasts in 20_000_u64..400_000,
    ) {
        let mut story = Story::new(THREE);
        story.rate = rate;
        story.pass(15_000);
        story.fails("a", failing);
        story.pass(6_000);
        let mut most = 0;
        story.watch(lasts, |story| most = story.share("a").max(most));
        prop_assert!(most <= 2, "{} %: no more than the first step, to try it", most);
        story.fails("a", 0.0);
        story.pass(LONGEST_MS);
        prop_assert_eq!(story.share("a"), 33);
    }
}
