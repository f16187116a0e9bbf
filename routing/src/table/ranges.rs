//! Ranges of numbers, by which of them hold a number: an interval tree in one sorted list.

/// Ranges with both ends included, and what belongs to each.
#[derive(Debug)]
pub(crate) struct Ranges<T> {
    /// Sorted by start; the middle of each part is the root of that part's tree.
    items: Vec<Item<T>>,
}

#[derive(Debug)]
struct Item<T> {
    from: u128,
    to: u128,
    /// The furthest end in the part of which this is the middle.
    furthest: u128,
    value: T,
}

impl<T> Default for Ranges<T> {
    fn default() -> Self {
        Self { items: Vec::new() }
    }
}

impl<T> Ranges<T> {
    pub(crate) fn new(ranges: Vec<(u128, u128, T)>) -> Self {
        let item = |(from, to, value)| Item { from, to, furthest: to, value };
        let mut items: Vec<Item<T>> = ranges.into_iter().map(item).collect();
        items.sort_by_key(|item| item.from);
        set_furthest(&mut items);
        Self { items }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Calls with what belongs to each range that holds the number.
    pub(crate) fn visit<'r>(&'r self, number: u128, then: &mut impl FnMut(&'r T)) {
        visit(&self.items, number, then);
    }
}

fn set_furthest<T>(items: &mut [Item<T>]) -> u128 {
    let middle = items.len() / 2;
    let (before, rest) = items.split_at_mut(middle);
    let Some((item, after)) = rest.split_first_mut() else { return 0 };
    item.furthest = item.to.max(set_furthest(before)).max(set_furthest(after));
    item.furthest
}

fn visit<'r, T>(items: &'r [Item<T>], number: u128, then: &mut impl FnMut(&'r T)) {
    let middle = items.len() / 2;
    let (before, rest) = items.split_at(middle);
    let Some((item, after)) = rest.split_first() else { return };
    if item.furthest < number {
        return;
    }
    visit(before, number, then);
    if item.from > number {
        return;
    }
    if item.to >= number {
        then(&item.value);
    }
    visit(after, number, then);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn exactly_the_ranges_that_hold_the_number_are_met(
            ranges in prop::collection::vec((0_u128..60, 0_u128..30), 0..40),
            number in 0_u128..100,
        ) {
            let ranges: Vec<_> =
                ranges.into_iter().enumerate().map(|(place, (from, length))| (from, from + length, place)).collect();
            let holds = |(from, to, _): &&(u128, u128, usize)| (*from..=*to).contains(&number);
            let mut expected: Vec<usize> = ranges.iter().filter(holds).map(|range| range.2).collect();
            let mut met = Vec::new();
            Ranges::new(ranges).visit(number, &mut |place| met.push(*place));
            met.sort_unstable();
            expected.sort_unstable();
            prop_assert_eq!(met, expected);
        }
    }
}
