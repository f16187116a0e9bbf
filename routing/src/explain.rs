//! Why a request goes where it goes, as a structure for people's tools. It decides with the very functions that serve.

use bulkhead_protocol::TransactionId;
use serde::Serialize;

use crate::decide::{self, CellStates, Refusal};
use crate::request::RequestView;
use crate::table::Table;

/// The life of one decision.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Explanation {
    pub listener: String,
    /// `NAMESPACE/POLICY/RULE` of the first rule that matches.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
    /// Name of the cell that gets the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cell: Option<String>,
    /// Place of its group in the rule, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<usize>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refusal: Option<RefusalExplained>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RefusalExplained {
    pub status: u16,
    pub reason: &'static str,
    pub detail: String,
}

/// Explains the decision for one request at one moment.
pub fn explain(
    table: &Table,
    listener: &str,
    view: &impl RequestView,
    transaction: &TransactionId,
    states: &impl CellStates,
) -> Explanation {
    let mut explanation = Explanation { listener: listener.to_owned(), ..Explanation::default() };
    if let Err(refusal) = fill(&mut explanation, table, view, transaction, states) {
        explanation.refusal = Some(RefusalExplained {
            status: refusal.reason.status(),
            reason: refusal.reason.as_str(),
            detail: refusal.detail,
        });
    }
    explanation
}

fn fill(
    explanation: &mut Explanation,
    table: &Table,
    view: &impl RequestView,
    transaction: &TransactionId,
    states: &impl CellStates,
) -> Result<(), Refusal> {
    let rule = decide::match_rule(table, &explanation.listener, view)?;
    explanation.rule = Some(rule.id.as_str().to_owned());
    let key = decide::key(rule, view, transaction)?;
    let choice = decide::choose(rule, key, states, &[])?;
    explanation.cell = Some(table.cell(choice.cell).name.as_ref().to_owned());
    explanation.group = Some(choice.group);
    Ok(())
}
