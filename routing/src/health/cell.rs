//! One cell in one router, as a state machine: what its pods say and whether they are heard decides whether it is in.

use std::sync::Arc;

use bulkhead_protocol::HealthLine;
use bulkhead_protocol::health::SILENCE;

use super::evidence::Case;
use super::samples::Samples;
use super::suspicion::{Beside, Record};
use crate::decide::CellView;
use crate::table::Weight;

/// How long a cell that was never heard counts as unheard, before it counts as out.
const FIRST_ANSWER_MS: u64 = 1_000;

/// How long the way to a cell may take to open, after the router has come to know it: a pod's network comes up after the
/// pod, and policies follow.
pub(super) const OPENING_MS: u64 = 10_000;

/// An orchestrator pod of the cell, by whatever the router tells them apart with, such as its address.
pub type Pod = Arc<str>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The pod is among the cell's endpoints now. What is said of others is not heard.
    PodAdded(Pod),
    /// The pod is no endpoint of the cell any more.
    PodRemoved(Pod),
    Verdict {
        pod: Pod,
        ready: bool,
        reason: String,
        ready_for_ms: u64,
    },
    Beat {
        pod: Pod,
        ready_for_ms: u64,
    },
    /// The reader of the stream gave the pod up; ticks find silence by themselves too.
    Silence(Pod),
    /// This router could not ask the pod, by a fault of its own that is not held against the pod.
    Deaf(Pod),
    /// A connection to the pod was refused, for the stream or for a request.
    Refused(Pod),
    /// The stream ended. The pod keeps its verdict for as long as silence is borne, so that a stream may be opened anew.
    StreamEnded(Pod),
    /// Whether an operator's shift holds the cell at 0 ([`Weight::operator_shift`]).
    OperatorShift(bool),
    /// What requests that ended since the last time said of the cell.
    Samples(Samples),
    /// A look at what was said, of the cell and of its siblings.
    Evidence(Beside),
    /// Time passes. `late_ms` is by how much this router's own timer was late, which is not held against the cell;
    /// without `judge`, nothing is called silent.
    Tick {
        late_ms: u64,
        judge: bool,
    },
}

impl Event {
    /// What a line of a pod's stream means.
    pub fn from_line(pod: Pod, line: HealthLine) -> Self {
        match line {
            HealthLine::Verdict(verdict) => Self::Verdict {
                pod,
                ready: verdict.ready,
                reason: verdict.reason,
                ready_for_ms: verdict.ready_for_ms,
            },
            HealthLine::Beat(beat) => Self::Beat { pod, ready_for_ms: beat.ready_for_ms },
        }
    }
}

/// What a step changed, for metrics, logs and the request path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The cell gets new work from now on.
    In,
    /// The cell gets no new work from now on.
    Out { reason: String },
    /// The pods that may get work are others now; see [`State::usable_pods`].
    PodsChanged,
    /// Evidence is against the cell: where enough others are left it gets no new work for that time.
    Suspected { case: Case, for_ms: u64 },
    /// That time is over, and the cell comes back by steps.
    LetBack,
    /// The ramp, or what is left of a suspicion, is another now.
    Moved,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No answer yet, since the router knows the cell.
    Unheard,
    In,
    Out {
        /// CamelCase word: what the orchestrator said, or `ConnectFailed`, `Silent`, `NoEndpoints`, `NoAnswer`.
        reason: String,
    },
}

/// Everything that one router knows of one cell's health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    known_since_ms: u64,
    pods: Vec<PodHealth>,
    standing: Standing,
    /// When this router let the cell in again, or later where evidence held it; none when it never had to.
    let_in_ms: Option<i64>,
    was_in: bool,
    shifted: bool,
    record: Record,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct PodHealth {
    pod: Pod,
    /// The last verdict: ready, or why not.
    said: Option<Result<(), String>>,
    heard_ms: u64,
    /// Before 0 when the pod was ready before the clock began.
    ready_since_ms: i64,
    lost: Option<Lost>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lost {
    Silent,
    Refused,
}

impl PodHealth {
    fn new(pod: Pod, now_ms: u64) -> Self {
        Self { pod, said: None, heard_ms: now_ms, ready_since_ms: 0, lost: None }
    }

    fn is_usable(&self) -> bool {
        self.lost.is_none() && self.said == Some(Ok(()))
    }

    fn is_overdue(&self, now_ms: u64) -> bool {
        self.lost.is_none()
            && self.said.is_some()
            && now_ms.saturating_sub(self.heard_ms) > SILENCE.as_millis() as u64
    }

    fn hear(&mut self, ready_for_ms: u64, now_ms: u64) {
        self.heard_ms = now_ms;
        self.lost = None;
        self.ready_since_ms = clamp(now_ms) - clamp(ready_for_ms);
    }
}

impl State {
    /// A cell that the router has just come to know. Times are milliseconds of one clock that never goes back.
    pub fn new(now_ms: u64) -> Self {
        Self {
            known_since_ms: now_ms,
            pods: Vec::new(),
            standing: Standing::Unheard,
            let_in_ms: None,
            was_in: false,
            shifted: false,
            record: Record::default(),
        }
    }

    pub fn standing(&self) -> &Standing {
        &self.standing
    }

    pub fn is_in(&self) -> bool {
        self.standing == Standing::In
    }

    /// `Ready` when in and not suspected, else the word for why.
    pub fn reason(&self) -> &str {
        match &self.standing {
            Standing::Unheard => "NotHeardYet",
            Standing::In => self.case().map_or("Ready", |case| case.fault().as_str()),
            Standing::Out { reason } => reason,
        }
    }

    /// The case against a cell that is suspected.
    pub fn case(&self) -> Option<&Case> {
        self.record.case()
    }

    /// The rank of a suspicion that still has a part in decisions, and when the way back from it begins: for those that
    /// keep it in atomics (see [`crate::decide::Doubt::since`]).
    pub fn suspected(&self) -> Option<(u16, i64)> {
        self.record.suspected()
    }

    /// What siblings of the cell are compared with; none while it is no measure.
    pub(super) fn measure(&self, now_ms: u64) -> Option<Samples> {
        self.record.measure(now_ms).filter(|_| self.is_in())
    }

    /// Whether one of the cell's pods has given a verdict: a refused connection may be this router's own network.
    pub fn has_spoken(&self) -> bool {
        self.pods.iter().any(|pod| pod.said.is_some())
    }

    pub(super) fn known_since_ms(&self) -> u64 {
        self.known_since_ms
    }

    fn known_for_ms(&self, now_ms: u64) -> u64 {
        now_ms.saturating_sub(self.known_since_ms)
    }

    /// Pods that may get new work.
    pub fn usable_pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.iter().filter(|pod| pod.is_usable()).map(|pod| &pod.pod)
    }

    /// Whether it is a pod of the cell that is neither silent nor refuses.
    pub fn hears(&self, pod: &str) -> bool {
        self.pods.iter().any(|known| *known.pod == *pod && known.lost.is_none())
    }

    /// When a pod of the cell that may get work was last heard; none when there is no such pod.
    pub fn heard_ms(&self) -> Option<u64> {
        self.pods.iter().filter(|pod| pod.is_usable()).map(|pod| pod.heard_ms).max()
    }

    /// Where the ramp begins on the clock of events, for those that keep it in an atomic: age is now less this.
    pub fn ramp_start_ms(&self) -> i64 {
        let usable = self.pods.iter().filter(|pod| pod.is_usable());
        let ready = usable.map(|pod| pod.ready_since_ms).min().unwrap_or(i64::MIN);
        ready.max(self.let_in_ms.unwrap_or(i64::MIN))
    }

    /// The cell as decisions see it.
    pub fn view(&self, weight: Weight, now_ms: u64) -> CellView {
        let age = clamp(now_ms).saturating_sub(self.ramp_start_ms());
        CellView {
            weight: weight.percent,
            is_in: self.is_in(),
            ramp_age_ms: u64::try_from(age).unwrap_or(0),
            drained: weight.percent == 0,
            doubt: self.record.doubt(now_ms),
        }
    }

    fn lose(&mut self, pod: &Pod, how: Lost) {
        if let Some(pod) = self.pod(pod) {
            pod.lost = Some(how);
        }
    }

    /// None for a pod that is no endpoint of the cell: a stream may outlive its place in the list.
    fn pod(&mut self, pod: &Pod) -> Option<&mut PodHealth> {
        self.pods.iter_mut().find(|known| known.pod == *pod)
    }
}

/// What the event makes of the cell.
pub fn step(mut state: State, event: Event, now_ms: u64) -> (State, Vec<Effect>) {
    let event = match event {
        Event::Samples(samples) => {
            state.record.add(&samples, now_ms);
            return (state, Vec::new());
        }
        Event::Evidence(beside) => {
            let effects = look(&mut state, &beside, now_ms);
            return (state, effects);
        }
        event => event,
    };
    let usable_before: Vec<Pod> = state.usable_pods().cloned().collect();
    take_in(&mut state, event, now_ms);
    let mut effects = Vec::new();
    if !state.usable_pods().eq(&usable_before) {
        effects.push(Effect::PodsChanged);
    }
    let next = judge(&state, now_ms);
    if next == state.standing {
        return (state, effects);
    }
    state.record.start_over();
    match &next {
        Standing::In => {
            // The first time is no return, while the way may just have opened: nothing failed that could fail again.
            let returns = state.was_in || state.known_for_ms(now_ms) > OPENING_MS;
            state.let_in_ms = returns.then(|| clamp(now_ms));
            state.was_in = true;
            effects.push(Effect::In);
        }
        Standing::Out { reason } if !matches!(state.standing, Standing::Out { .. }) => {
            effects.push(Effect::Out { reason: reason.clone() });
        }
        Standing::Out { .. } | Standing::Unheard => {}
    }
    state.standing = next;
    (state, effects)
}

/// Nobody looks at a cell that is out.
fn look(state: &mut State, beside: &Beside, now_ms: u64) -> Vec<Effect> {
    if !state.is_in() {
        return Vec::new();
    }
    let from = state.ramp_start_ms();
    let (later, effects) = state.record.look(beside, from, now_ms);
    if later != from {
        state.let_in_ms = Some(later);
    }
    effects
}

fn take_in(state: &mut State, event: Event, now_ms: u64) {
    match event {
        Event::PodAdded(pod) if state.pod(&pod).is_none() => state.pods.push(PodHealth::new(pod, now_ms)),
        Event::PodAdded(_) | Event::StreamEnded(_) | Event::Samples(_) | Event::Evidence(_) => {}
        Event::PodRemoved(pod) => state.pods.retain(|known| known.pod != pod),
        Event::Verdict { pod, ready, reason, ready_for_ms } => {
            let Some(pod) = state.pod(&pod) else { return };
            pod.said = Some(if ready { Ok(()) } else { Err(reason) });
            pod.hear(ready_for_ms, now_ms);
        }
        Event::Beat { pod, ready_for_ms } => {
            let Some(pod) = state.pod(&pod) else { return };
            pod.hear(ready_for_ms, now_ms);
        }
        Event::Deaf(pod) => {
            let Some(pod) = state.pod(&pod) else { return };
            pod.heard_ms = now_ms;
        }
        Event::Silence(pod) => state.lose(&pod, Lost::Silent),
        Event::Refused(pod) => state.lose(&pod, Lost::Refused),
        Event::OperatorShift(shifted) => {
            if state.shifted && !shifted {
                state.let_in_ms = Some(clamp(now_ms));
            }
            state.shifted = shifted;
        }
        Event::Tick { late_ms, judge } => {
            for pod in &mut state.pods {
                pod.heard_ms = pod.heard_ms.saturating_add(late_ms).min(now_ms);
                if judge && pod.is_overdue(now_ms) {
                    pod.lost = Some(Lost::Silent);
                }
            }
        }
    }
}

fn clamp(millis: u64) -> i64 {
    i64::try_from(millis).unwrap_or(i64::MAX)
}

fn judge(state: &State, now_ms: u64) -> Standing {
    if state.pods.iter().any(PodHealth::is_usable) {
        return Standing::In;
    }
    let waited = state.known_for_ms(now_ms) >= FIRST_ANSWER_MS;
    let open = state.pods.is_empty() || state.pods.iter().any(|pod| pod.said.is_none() && pod.lost.is_none());
    if state.standing == Standing::Unheard && open && !waited {
        return Standing::Unheard;
    }
    let verdict = state.pods.iter().filter(|pod| pod.lost.is_none()).find_map(|pod| match &pod.said {
        Some(Err(reason)) => Some(reason.as_str()),
        Some(Ok(())) | None => None,
    });
    let lost = |wanted| state.pods.iter().any(|pod| pod.lost == Some(wanted));
    let reason = match verdict {
        Some(reason) => reason,
        None if state.pods.is_empty() => "NoEndpoints",
        None if lost(Lost::Refused) => "ConnectFailed",
        None if lost(Lost::Silent) => "Silent",
        None => "NoAnswer",
    };
    Standing::Out { reason: reason.to_owned() }
}
