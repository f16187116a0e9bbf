//! The steps of the flow, each a pure function of what it receives, so that doing one again changes nothing.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

use super::{Authorisation, IssuerAnswer, Payment, Receipt, Role};
use crate::issuer::book::id;

/// What a step answers.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// JSON.
    pub body: Vec<u8>,
    /// The Destination that the next step goes to, where this one chooses it.
    pub destination: Option<&'static str>,
    /// What later steps are to know; visible ASCII.
    pub state: Option<String>,
}

/// Why a step does not do what it is asked. It is the message's fault, and final.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    #[error("the body is malformed: {0}")]
    Malformed(String),
    #[error("the {field} is malformed: {wanted}")]
    Field { field: &'static str, wanted: &'static str },
    #[error("no issuer answers for this card")]
    NoIssuer,
    #[error("the field {0} is missing: the step is called by a cell-runtime, after transform")]
    Missing(&'static str),
    #[error("the issuer's answer is for {key:?}, which is not of this transaction")]
    ForeignAnswer { key: String },
    #[error("the issuer's answer is for another reference or amount than was sent")]
    OtherAmount,
    #[error("{0:?} is no step; the path names one, such as /validate")]
    NoStep(String),
}

/// Who asks for the step.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The id that is constant over attempts; empty where none came with the request.
    pub transaction: &'a str,
    /// What an earlier step wanted known; empty where none did.
    pub state: &'a str,
    /// The cell that the step is done in.
    pub cell: &'a str,
    pub path: &'a str,
}

/// Does the step of that role. [`Role::Whole`] is none.
///
/// # Errors
/// When the body is not what the step takes.
pub fn run(role: Role, asked: Asked<'_>, body: &[u8]) -> Result<Reply, Refusal> {
    match role {
        Role::Validate => reply(&validate(read(body)?)?),
        Role::Enrich => reply(&enrich(read(body)?)),
        Role::Transform => {
            let message = transform(read(body)?);
            let state = Some(digest(&message.reference, message.amount));
            Ok(Reply { state, ..reply(&message)? })
        }
        Role::ChooseIssuer => {
            let message: Authorisation = read(body)?;
            let destination = Some(message.card.issuer().ok_or(Refusal::NoIssuer)?);
            Ok(Reply { destination, ..reply(&message)? })
        }
        Role::CheckAnswer => reply(&check(read(body)?, asked)?),
        Role::ByPath => run(named(asked.path)?, asked, body),
        Role::Whole => Err(Refusal::NoStep(asked.path.to_owned())),
    }
}

fn named(path: &str) -> Result<Role, Refusal> {
    match path {
        "/validate" => Ok(Role::Validate),
        "/enrich" => Ok(Role::Enrich),
        "/transform" => Ok(Role::Transform),
        "/choose-issuer" => Ok(Role::ChooseIssuer),
        "/check-answer" => Ok(Role::CheckAnswer),
        _ => Err(Refusal::NoStep(path.to_owned())),
    }
}

/// The card has been checked by being read.
fn validate(payment: Payment) -> Result<Payment, Refusal> {
    if payment.amount == 0 {
        return Err(Refusal::Field { field: "amount", wanted: "it is at least 1" });
    }
    if payment.currency.len() != 3 || !payment.currency.bytes().all(|byte| byte.is_ascii_uppercase()) {
        return Err(Refusal::Field { field: "currency", wanted: "it is three capital letters (ISO 4217)" });
    }
    Ok(payment)
}

/// Real ones look the merchant up; this one reads its category code off the front of the name.
fn enrich(mut payment: Payment) -> Payment {
    let code = payment.merchant.split('-').next().unwrap_or_default();
    payment.category = Some(if code.len() == 4 { code } else { "0000" }.to_owned());
    payment.region = Some(if payment.currency == "USD" { "americas" } else { "emea" }.to_owned());
    payment
}

fn transform(payment: Payment) -> Authorisation {
    Authorisation {
        reference: payment.reference,
        card: payment.card,
        amount: payment.amount,
        currency: payment.currency,
        category: payment.category.unwrap_or_default(),
        region: payment.region.unwrap_or_default(),
    }
}

fn check(answer: IssuerAnswer, asked: Asked<'_>) -> Result<Receipt, Refusal> {
    for (field, value) in [("bulkhead-transaction", asked.transaction), ("bulkhead-state", asked.state)] {
        if value.is_empty() {
            return Err(Refusal::Missing(field));
        }
    }
    if id(&answer.key) != asked.transaction {
        return Err(Refusal::ForeignAnswer { key: answer.key });
    }
    if asked.state != digest(&answer.reference, answer.amount) {
        return Err(Refusal::OtherAmount);
    }
    Ok(Receipt {
        reference: answer.reference,
        approved: answer.approved,
        issuer: answer.issuer,
        amount: answer.amount,
        cell: asked.cell.to_owned(),
    })
}

/// What of a message its answer must agree with. The message itself is gone by then.
fn digest(reference: &str, amount: u64) -> String {
    format!("{:x}", Sha256::digest(format!("{reference}\n{amount}")))
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(body).map_err(|error| Refusal::Malformed(error.to_string()))
}

fn reply(body: &impl Serialize) -> Result<Reply, Refusal> {
    let body = serde_json::to_vec(body).map_err(|error| Refusal::Malformed(error.to_string()))?;
    Ok(Reply { body, destination: None, state: None })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ASKED: Asked<'_> = Asked { transaction: "t-1", state: "", cell: "payments-a", path: "/" };

    /// Of the sample payment.
    fn state() -> String {
        digest("order-1", 1_250)
    }

    fn payment() -> Value {
        json!(Payment::sample("order-1"))
    }

    /// Does all steps up to the message for the issuer, and gives each one's reply.
    fn before() -> Vec<Reply> {
        let mut replies: Vec<Reply> = Vec::new();
        for role in [Role::Validate, Role::Enrich, Role::Transform, Role::ChooseIssuer] {
            let body =
                replies.last().map_or_else(|| payment().to_string().into_bytes(), |last| last.body.clone());
            replies.push(run(role, ASKED, &body).expect("is well-formed"));
        }
        replies
    }

    fn message() -> Value {
        serde_json::from_slice(&before()[3].body).expect("is JSON")
    }

    fn answer() -> Value {
        json!({"approved": true, "issuer": "visa", "key": "t-1/1", "reference": "order-1", "amount": 1_250})
    }

    /// Null takes the field away.
    fn check_refusal(role: Role, mut body: Value, change: (&str, Value), expected: &str) {
        let fields = body.as_object_mut().expect("is an object");
        match change.1 {
            Value::Null => fields.remove(change.0),
            value => fields.insert(change.0.to_owned(), value),
        };
        let asked = Asked { state: &state(), ..ASKED };
        let refusal = run(role, asked, body.to_string().as_bytes()).expect_err(expected);
        assert!(refusal.to_string().contains(expected), "{refusal}");
    }

    #[test]
    fn a_payment_becomes_a_message_for_its_cards_issuer() {
        let replies = before();
        assert_eq!((&replies[2].state, replies[3].destination), (&Some(state()), Some("visa")));
        let message: Authorisation = serde_json::from_slice(&replies[3].body).expect("is a message");
        assert_eq!((message.category.as_str(), message.region.as_str()), ("5411", "emea"));
    }

    #[test]
    fn a_malformed_payment_is_refused_with_the_field() {
        let refused = |field, value, expected| {
            check_refusal(Role::Validate, payment(), (field, value), expected);
        };
        refused("card", json!("4761739001010118"), "check digit");
        refused("card", Value::Null, "card");
        refused("amount", json!(0), "amount");
        refused("amount", json!(-5), "malformed");
        refused("currency", json!("euro"), "currency");
    }

    #[test]
    fn a_card_of_nobody_goes_nowhere() {
        let foreign = ("card", json!("6011111111111117"));
        check_refusal(Role::ChooseIssuer, message(), foreign, "no issuer");
    }

    #[test]
    fn the_issuers_answer_becomes_a_receipt() {
        let asked = Asked { state: &state(), ..ASKED };
        let reply = run(Role::CheckAnswer, asked, answer().to_string().as_bytes()).expect("agrees");
        let receipt: Receipt = serde_json::from_slice(&reply.body).expect("is a receipt");
        let expected = Receipt {
            reference: "order-1".to_owned(),
            approved: true,
            issuer: "visa".to_owned(),
            amount: 1_250,
            cell: "payments-a".to_owned(),
        };
        assert_eq!(receipt, expected);
    }

    #[test]
    fn an_answer_to_another_question_is_refused() {
        let refused = |field, value, expected| {
            check_refusal(Role::CheckAnswer, answer(), (field, value), expected);
        };
        refused("key", json!("t-2/1"), "t-2/1");
        refused("amount", json!(1_251), "amount");
        refused("reference", json!("order-2"), "reference");
        refused("approved", json!("yes"), "malformed");
    }

    #[test]
    fn one_process_does_several_steps_by_their_paths() {
        let by_path = |path| run(Role::ByPath, Asked { path, ..ASKED }, payment().to_string().as_bytes());
        assert_eq!(by_path("/enrich"), run(Role::Enrich, ASKED, payment().to_string().as_bytes()));
        assert_eq!(by_path("/pay"), Err(Refusal::NoStep("/pay".to_owned())));
    }

    #[test]
    fn an_answer_is_checked_against_something_or_not_at_all() {
        let check = |asked, field| {
            let refused = run(Role::CheckAnswer, asked, answer().to_string().as_bytes());
            assert_eq!(refused, Err(Refusal::Missing(field)));
        };
        check(ASKED, "bulkhead-state");
        check(Asked { transaction: "", state: "x", ..ASKED }, "bulkhead-transaction");
    }
}
