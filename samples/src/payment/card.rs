//! Card numbers: how they are checked, and which issuer they belong to.

use serde::{Deserialize, Serialize};

/// A number of 12 to 19 digits that ends with its Luhn check digit (ISO/IEC 7812-1).
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CardNumber(String);

/// Leading digits, both inclusive, and the Destination that answers for them. The first that matches counts.
const ISSUERS: [(u32, u32, &str); 5] =
    [(4, 4, "visa"), (51, 55, "mastercard"), (2221, 2720, "mastercard"), (34, 34, "amex"), (37, 37, "amex")];

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidCard {
    #[error("a card number has 12 to 19 digits and nothing else")]
    Digits,
    #[error("the card number's check digit is wrong")]
    CheckDigit,
}

impl CardNumber {
    /// A test number of those that are never issued.
    pub fn sample() -> Self {
        Self("4761739001010119".to_owned())
    }

    /// The Destination that answers for this card, if any does.
    pub fn issuer(&self) -> Option<&'static str> {
        let within = |(first, last, _): &&(u32, u32, &str)| {
            let digits = if *last < 10 { 1 } else { last.ilog10() as usize + 1 };
            let leading = self.0.get(..digits).and_then(|leading| leading.parse::<u32>().ok());
            leading.is_some_and(|leading| (*first..=*last).contains(&leading))
        };
        ISSUERS.iter().find(within).map(|(_, _, name)| *name)
    }
}

impl TryFrom<String> for CardNumber {
    type Error = InvalidCard;

    fn try_from(digits: String) -> Result<Self, InvalidCard> {
        if !(12..=19).contains(&digits.len()) || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(InvalidCard::Digits);
        }
        let sum: u32 = digits
            .bytes()
            .rev()
            .map(|byte| u32::from(byte - b'0'))
            .enumerate()
            .map(|(place, digit)| if place % 2 == 0 { digit } else { digit * 2 / 10 + digit * 2 % 10 })
            .sum();
        if sum.is_multiple_of(10) { Ok(Self(digits)) } else { Err(InvalidCard::CheckDigit) }
    }
}

impl From<CardNumber> for String {
    fn from(card: CardNumber) -> Self {
        card.0
    }
}

impl std::fmt::Debug for CardNumber {
    /// The last four digits, as much as may appear in a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "…{}", &self.0[self.0.len() - 4..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(digits: &str, expected: &Result<Option<&str>, InvalidCard>) {
        assert_eq!(&CardNumber::try_from(digits.to_owned()).map(|card| card.issuer()), expected, "{digits}");
    }

    #[test]
    fn a_card_belongs_to_the_issuer_of_its_first_digits() {
        check("4761739001010119", &Ok(Some("visa")));
        check("5555555555554444", &Ok(Some("mastercard")));
        check("2223003122003222", &Ok(Some("mastercard")));
        check("378282246310005", &Ok(Some("amex")));
        check("6011111111111117", &Ok(None));
    }

    #[test]
    fn what_is_no_card_number_is_refused_with_the_reason() {
        check("4761739001010118", &Err(InvalidCard::CheckDigit));
        check("4761 7390 0101 0119", &Err(InvalidCard::Digits));
        check("", &Err(InvalidCard::Digits));
    }

    #[test]
    fn a_log_shows_the_last_four_digits() {
        assert_eq!(format!("{:?}", CardNumber::sample()), "…0119");
    }
}
