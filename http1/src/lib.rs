//! HTTP/1.1 (RFC 9112) as bytes on one side and heads and bodies on the other. It reads no socket and keeps no time: whoever
//! has a connection gives it what arrived and writes what it makes. How heads are told apart into lines is `httparse`'s.
//!
//! Strict where two readers of the same bytes could disagree, which is how requests are smuggled: one length, one coding,
//! CRLF and nothing else at the end of a line. What is refused, and by which rule, is [`Error`]'s list.

mod answer;
mod body;
mod chunked;
mod downgrade;
mod error;
mod fields;
mod framing;
mod head;
mod name;
mod request;
mod write;

pub use answer::{Answer, AnswerReader};
pub use body::{Decoder, Piece};
pub use downgrade::{Downgraded, Malformed, downgrade};
pub use error::Error;
pub use fields::{Fields, has_token};
pub use framing::{Framing, keeps_alive};
pub use name::Known;
pub use request::{Request, RequestReader, check_host};
pub use write::{Chunk, LAST_CHUNK, answer_line, field, length, number_field, request_line, trailers};
