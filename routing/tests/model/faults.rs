//! What can go wrong in the world, and the flaws that hands could have. Faults the protocol has to bear; a flaw is a
//! mistake that the checks have to find.

use crate::dice::Dice;

macro_rules! list {
    ($(#[doc = $doc:literal])* $kind:ident { $($(#[doc = $line:literal])* $name:ident,)+ }) => {
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $kind { $($(#[doc = $line])* $name,)+ }

        impl $kind {
            pub(crate) const ALL: &[Self] = &[$(Self::$name,)+];
        }
    };
}

list! {
    /// A fault of the world.
    Fault {
        /// Power is lost: what was not synced is kept up to somewhere, the last record torn.
        RouterCrashes,
        /// The whole router stands still, perhaps for longer than its callers wait.
        RouterStops,
        SyncFails,
        /// Another table comes into force before anything is sent.
        TableChanges,
        PodRefuses,
        /// All that the pod works on is lost, and it is away for a while.
        PodCrashes,
        /// The pod stands still and speaks when it has been given up.
        PodStops,
        PodResets,
        PodGivesBack,
        PodSpeaksTwice,
        /// It skips a number or takes one twice.
        PodMiscounts,
        PodOmitsContext,
        EndpointRefuses,
        /// The connection was dead already: nothing is handed to the kernel.
        ConnectionIsStale,
        DestinationClosesBefore,
        DestinationIsSlow,
        DestinationClosesAfter,
        DestinationIsSilent,
        /// The caller leaves before its deadline.
        CallerLeaves,
        /// The caller asks twice at once, through both routers or one.
        CallerHedges,
    }
}

list! {
    /// A mistake in the hands, each of which one check must find.
    Flaw {
        RecordsAfterSending,
        RetriesAFailedSync,
        ForgetsTheLedger,
        SendsWithoutAsking,
        TakesUnknownForNotSent,
        TakesUnknownForAnswered,
        TakesLateReplies,
        CarriesNumbersOver,
        CarriesContextsOver,
        KeysByAttempt,
        PromisesThatNothingHappened,
        LeavesWithTheCaller,
        AsksForEver,
        AsksACellTwice,
        IgnoresContexts,
        RunsAnIdTwiceAtOnce,
        ShedsBeforeItAsksTheLedger,
        KeepsIntentsOfLeavers,
    }
}

/// How often each fault strikes in one run, in thousandths of its occasions. Most runs are without most faults, so that
/// the rare ones meet in worlds that are otherwise well (swarm testing; Groce et al., 2012).
pub(crate) struct Rates([u64; Fault::ALL.len()]);

impl Rates {
    pub(crate) fn draw(dice: &Dice) -> Self {
        Self(
            Fault::ALL
                .iter()
                .map(|_| dice.pick(&[0, 0, 5, 30, 150]))
                .collect::<Vec<_>>()
                .try_into()
                .expect("there is one for each"),
        )
    }

    pub(crate) fn of(&self, fault: Fault) -> u64 {
        self.0[fault as usize]
    }
}
