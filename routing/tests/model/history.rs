//! What happened in a run, as the world saw it and not as a router believes: the facts that the checks are about.

use bulkhead_protocol::{EgressStatus, Reason};

/// A transaction's id.
pub(crate) type Id = u32;
/// Place of a run of `transaction::run` among all of them.
pub(crate) type RunId = usize;
/// Place of a question to a pod among all of them.
pub(crate) type Question = u32;
/// What became of each egress so far, from number 1 on: all that a context holds here.
pub(crate) type Claims = Vec<EgressStatus>;

/// What a caller was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Answer(Claims),
    /// Nothing has happened outside the cells, and nothing of this request will.
    Refused(Reason),
    /// 409: had its effect before.
    Decided,
    /// 500, or 409 with that word.
    Unknown,
    /// 409: under way.
    InFlight,
    /// Not a word: the connection broke, or the caller left.
    Nothing,
}

impl Told {
    /// Whether the caller knows what became of it.
    pub(crate) fn is_definite(&self) -> bool {
        matches!(self, Self::Answer(_) | Self::Refused(_))
    }
}

#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) id: Id,
    pub(crate) router: usize,
    /// None where it was refused at the door.
    pub(crate) run: Option<RunId>,
    pub(crate) began: u64,
    /// What it was told and when, once it is over.
    pub(crate) told: Option<(Told, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Answered,
    Refused(Reason),
    /// Its caller left before the point of no return.
    Cancelled,
    /// Its router crashed.
    Lost,
}

#[derive(Debug, Default)]
pub(crate) struct Run {
    pub(crate) end: Option<End>,
    /// Questions to pods, those left out that were chosen anew before anything was sent.
    pub(crate) questions: u32,
    /// Cells whose pods got the original bytes, in order.
    pub(crate) began_in: Vec<usize>,
    /// Whether a pod was to go on from another's context although nothing with effects was sent.
    pub(crate) carried_over: bool,
    /// Pods that were neither asked nor given up when it ended.
    pub(crate) pods_left: usize,
}

/// A message whose first byte was handed to the kernel.
#[derive(Debug)]
pub(crate) struct Sending {
    pub(crate) run: RunId,
    pub(crate) router: usize,
    pub(crate) id: Id,
    pub(crate) number: u32,
    pub(crate) effects: bool,
    /// The number that was due.
    pub(crate) due: u32,
    /// Whether its intent was on the disk.
    pub(crate) on_record: bool,
    /// Whether its caller waited with time enough left, or the run was committed before.
    pub(crate) awaited: bool,
    /// Whether it is what the last pod asked said first.
    pub(crate) current: bool,
    /// What became of it by the word of its run.
    pub(crate) settled: bool,
}

/// A destination did what it was asked to.
#[derive(Debug)]
pub(crate) struct Execution {
    pub(crate) id: Id,
    pub(crate) number: u32,
    pub(crate) run: RunId,
    pub(crate) router: usize,
    pub(crate) at: u64,
    pub(crate) checked: bool,
}

#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) requests: Vec<Request>,
    pub(crate) runs: Vec<Run>,
    pub(crate) sendings: Vec<Sending>,
    /// Of destinations with effects.
    pub(crate) executions: Vec<Execution>,
    /// Answers that speak for an attempt that was given up.
    pub(crate) late_answers: u32,
    /// By router, the effects that its disk knows at the end, after one more loss of power.
    pub(crate) ledgers: Vec<Vec<(Id, u32)>>,
    /// The routers that crashed, in order.
    pub(crate) crashes: Vec<usize>,
    /// Whether every caller came to an end.
    pub(crate) ended: bool,
    pub(crate) questions: Question,
}
