//! What evidence against cells means for one rule: it may keep some of a group's cells out, and never so many that the rest
//! could not carry what is left to them.

use super::choose::{Named, Scene, oldest, ramp_beside};
use super::{CellStates, CellView};
use crate::table::GroupCell;

/// Of the cells of a group that could serve now, one in so many may be out by evidence, or on its way back from there.
const ONE_IN: usize = 3;

/// That evidence is against a cell, or was until shortly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doubt {
    /// The worst is the highest; see [`crate::health::Fault::of_rank`].
    pub rank: u16,
    /// How long it has been let back, for the ramp; none while it is suspected.
    pub age_ms: Option<u64>,
}

impl Doubt {
    /// A doubt in a cell whose way back began or begins at that time.
    pub fn since(rank: u16, back_ms: i64, now_ms: u64) -> Self {
        let age = i64::try_from(now_ms).unwrap_or(i64::MAX).saturating_sub(back_ms);
        Self { rank, age_ms: u64::try_from(age).ok() }
    }
}

/// What doubts come to in one group.
#[derive(Clone, Copy)]
pub(super) struct Bound {
    group: usize,
    /// Cells that they may concern.
    most: usize,
    /// Age of the cell that has been in longest, whatever is doubted.
    oldest: u64,
}

impl<S: CellStates> Scene<'_, S> {
    /// None where no doubt has a part.
    pub(super) fn bound(&self, group: usize) -> Option<Bound> {
        if !self.heeds_doubts {
            return None;
        }
        let oldest = oldest(self.named(group));
        let bound = Bound { group, most: 0, oldest };
        let serving = self.named(group).filter(|(_, weight, view)| self.could_serve(*weight, *view, bound));
        let most = serving.count() / ONE_IN;
        (most > 0).then_some(Bound { most, ..bound })
    }

    /// The cell as this rule has to take it.
    pub(super) fn heed(&self, cell: &GroupCell, weight: u32, view: CellView, bound: Bound) -> CellView {
        let Some(doubt) = view.doubt else { return view };
        let before = |(other, weight, view): &Named<'_>| {
            let rank = view.and_then(|view| view.doubt).map(|doubt| doubt.rank);
            let comes_first =
                rank.is_some_and(|rank| rank > doubt.rank || (rank == doubt.rank && other.name < cell.name));
            comes_first && self.could_serve(*weight, *view, bound)
        };
        let concerned = self.could_serve(weight, Some(view), bound)
            && self.named(bound.group).filter(before).count() < bound.most;
        match (concerned, doubt.age_ms) {
            (false, _) => CellView { doubt: None, ..view },
            (true, None) => CellView { is_in: false, ..view },
            (true, Some(age)) => CellView { ramp_age_ms: view.ramp_age_ms.min(age), ..view },
        }
    }

    /// Whether the cell would get something if it were not for doubts.
    fn could_serve(&self, weight: u32, view: Option<CellView>, bound: Bound) -> bool {
        view.is_some_and(|view| {
            weight > 0 && view.is_usable() && ramp_beside(self.rule, view, bound.oldest) > 0
        })
    }
}
