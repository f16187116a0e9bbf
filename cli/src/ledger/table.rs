//! Transactions as a table for people: a line for each effect. Pure.

use std::fmt::Write as _;

use bulkhead_ledger::view::{EffectView, ListView, StateView, TransactionView};
use jiff::Timestamp;

const HEADINGS: [&str; 9] =
    ["TRANSACTION", "N", "STATE", "STATUS", "ATTEMPT", "CELL", "DESTINATION", "SINCE", "NOTE"];

type Row = [String; HEADINGS.len()];

pub(super) fn render(found: &ListView) -> String {
    if found.transactions.is_empty() {
        return "no transaction is found\n".to_owned();
    }
    let rows: Vec<Row> = [HEADINGS.map(str::to_owned)]
        .into_iter()
        .chain(found.transactions.iter().flat_map(|view| view.effects.iter().map(|effect| row(view, effect))))
        .collect();
    let mut table = String::new();
    for row in &rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            let _ = write!(line, "{cell:width$}  ");
        }
        table += line.trim_end();
        table.push('\n');
    }
    if found.more > 0 {
        let _ = writeln!(table, "and {} more: --limit shows them", found.more);
    }
    table
}

fn row(transaction: &TransactionView, effect: &EffectView) -> Row {
    let state = match effect.state {
        StateView::Open => "open",
        StateView::Answered => "answered",
        StateView::NotSent => "not-sent",
        StateView::Unknown => "unknown",
    };
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    [
        transaction.transaction.clone(),
        effect.n.to_string(),
        state.to_owned(),
        effect.status.map_or("-".to_owned(), |status| status.to_string()),
        effect.attempt.to_string(),
        or_dash(&effect.cell),
        or_dash(&effect.destination),
        time(effect.since_unix_millis),
        or_dash(effect.note.as_deref().unwrap_or_default()),
    ]
}

fn time(unix_millis: u64) -> String {
    let time = i64::try_from(unix_millis).ok().and_then(|millis| Timestamp::from_millisecond(millis).ok());
    time.map_or_else(|| unix_millis.to_string(), |time| format!("{time:.3}"))
}

#[cfg(test)]
mod tests {
    use bulkhead_ledger::view::StandingView;

    use super::*;

    fn effect(n: u32, state: StateView, status: Option<u16>, note: Option<&str>) -> EffectView {
        EffectView {
            n,
            attempt: 1,
            cell: "payments-a".to_owned(),
            destination: "visa".to_owned(),
            state,
            status,
            intended_unix_millis: 1_700_000_000_000,
            since_unix_millis: 1_700_000_000_015,
            note: note.map(str::to_owned),
        }
    }

    #[test]
    fn each_effect_has_a_line() {
        let transaction = TransactionView {
            transaction: "018f".to_owned(),
            standing: Some(StandingView::Unknown),
            effects: vec![
                effect(1, StateView::Answered, Some(200), Some("case 7")),
                effect(2, StateView::Unknown, None, None),
            ],
        };
        let found = ListView { transactions: vec![transaction], more: 3, ..ListView::default() };
        let expected = "\
TRANSACTION  N  STATE     STATUS  ATTEMPT  CELL        DESTINATION  SINCE                     NOTE
018f         1  answered  200     1        payments-a  visa         2023-11-14T22:13:20.015Z  case 7
018f         2  unknown   -       1        payments-a  visa         2023-11-14T22:13:20.015Z  -
and 3 more: --limit shows them
";
        assert_eq!(render(&found), expected);
        assert_eq!(render(&ListView::default()), "no transaction is found\n");
    }
}
