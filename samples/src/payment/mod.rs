//! The reference flow: what a card payment looks like between the services of a cell, and the steps that work on it.
//! Where the services listen, and in which order they are called, is not known here.

mod card;
mod steps;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub use card::CardNumber;
pub use steps::{Asked, Refusal, Reply, run};

/// What one service of the flow does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Role {
    /// Answers any path with JSON about the request; no part of the flow.
    #[default]
    Whole,
    /// Refuses a payment whose card, amount or currency is missing or malformed.
    Validate,
    /// Adds the merchant's category and region.
    Enrich,
    /// Makes the issuer's message of the payment.
    Transform,
    /// Picks the issuer by the card's first digits.
    ChooseIssuer,
    /// Checks the issuer's answer and makes the client's of it.
    CheckAnswer,
    /// The role that the path names, such as `/choose-issuer`: one process for several services.
    ByPath,
}

/// What the client sends; a step adds to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Payment {
    /// The client's own name for it.
    pub reference: String,
    pub card: CardNumber,
    /// In the currency's smallest unit.
    pub amount: u64,
    /// ISO 4217, three capital letters.
    pub currency: String,
    pub merchant: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
}

/// What the issuer is asked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Authorisation {
    pub reference: String,
    pub card: CardNumber,
    pub amount: u64,
    pub currency: String,
    pub category: String,
    pub region: String,
}

/// What the issuer answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IssuerAnswer {
    pub approved: bool,
    pub issuer: String,
    /// The transaction, `/`, and the number of the message in it.
    pub key: String,
    pub reference: String,
    pub amount: u64,
}

/// What the client gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Receipt {
    pub reference: String,
    pub approved: bool,
    pub issuer: String,
    pub amount: u64,
    pub cell: String,
}

impl Payment {
    /// A well-formed one, for loads and tests.
    pub fn sample(reference: &str) -> Self {
        Self {
            reference: reference.to_owned(),
            card: CardNumber::sample(),
            amount: 1_250,
            currency: "EUR".to_owned(),
            merchant: "5411-corner-shop".to_owned(),
            category: None,
            region: None,
        }
    }
}
