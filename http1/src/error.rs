//! What is refused, and by which rule.

macro_rules! errors {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal, $rule:literal;)+) => {
        /// Why bytes are no message that may be passed on.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
        pub enum Error { $($(#[doc = $doc])+ #[error($text)] $name,)+ }

        impl Error {
            pub const ALL: &[Self] = &[$(Self::$name,)+];

            /// Where the rule stands that was broken.
            pub const fn rule(self) -> &'static str {
                match self { $(Self::$name => $rule,)+ }
            }

            /// What of it was refused, for the documentation.
            pub const fn doc(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+),)+ }
            }
        }
    };
}

errors! {
    /// A request line that is not a method, one space, a target, one space and `HTTP/1.1` or `HTTP/1.0`.
    RequestLine = "the request line is none", "RFC 9112, section 3";
    /// A status line that is not `HTTP/1.1` or `HTTP/1.0`, a space, three digits and a phrase.
    StatusLine = "the status line is none", "RFC 9112, section 4";
    /// A version other than HTTP/1.1 and HTTP/1.0.
    Version = "the version is neither HTTP/1.1 nor HTTP/1.0", "RFC 9112, section 2.3";
    /// A target that has not the form of its method, or has a fragment, a user's name or a character that targets do not have.
    Target = "the target is none", "RFC 9112, section 3.2";
    /// A field's name with a character that is no token's, such as a space before the colon, or before it all where a value goes on in the next line (obs-fold).
    FieldName = "a field's name has a character that names do not have", "RFC 9112, sections 5.1 and 5.2";
    /// A field's value with a control character, such as NUL.
    FieldValue = "a field's value has a character that values do not have", "RFC 9110, section 5.5";
    /// A line that ends in LF or CR alone.
    LineEnd = "a line does not end in CRLF", "RFC 9112, section 2.2";
    /// More bytes than the listener allows (`limits.headerBytes`), or than 64 KiB in an answer.
    HeadTooLarge = "the head is larger than it may be", "RFC 9110, section 15.5.14, and RFC 6585, section 5";
    /// More than 100 fields.
    TooManyFields = "the head has more than 100 fields", "RFC 6585, section 5";
    /// No `host` (HTTP/1.1), more than one, or one that is no name or address with or without a port. An empty one is legal.
    Host = "a request has exactly one host field, with a name or an address", "RFC 9112, section 3.2";
    /// A `content-length` that is no number, or a number above 2^63.
    Length = "content-length is no length", "RFC 9110, section 8.6";
    /// A `content-length` that is given more than once, whether the values differ or not; from a cell, only if they differ.
    Lengths = "content-length is given more than once", "RFC 9112, section 6.3";
    /// `content-length` beside `transfer-encoding`.
    LengthAndCoding = "content-length is given beside transfer-encoding", "RFC 9112, section 6.3";
    /// A `transfer-encoding` other than `chunked`, once.
    Coding = "the only transfer-encoding is chunked, once", "RFC 9112, sections 6.1 and 7";
    /// A `transfer-encoding` in HTTP/1.0.
    OldCoding = "HTTP/1.0 has no transfer-encoding", "RFC 9112, section 6.1";
    /// A chunk's size that is no hexadecimal number of at most 15 digits.
    ChunkSize = "a chunk's size is none", "RFC 9112, section 7.1";
    /// A chunk's extensions with a control character, or longer than 256 bytes.
    ChunkExtension = "a chunk's extensions are none, or too long", "RFC 9112, section 7.1.1";
    /// A chunk that does not end in CRLF behind as many bytes as it said.
    ChunkEnd = "a chunk does not end where it said", "RFC 9112, section 7.1";
    /// Trailers that are no fields, or longer than 16 KiB.
    Trailers = "what follows the last chunk is no trailer section, or too long", "RFC 9112, section 7.1.2";
}

impl Error {
    /// Whether it can be a request's.
    pub fn is_of_requests(self) -> bool {
        !matches!(self, Self::StatusLine)
    }

    /// Whether it can be an answer's.
    pub fn is_of_answers(self) -> bool {
        !matches!(self, Self::RequestLine | Self::Target | Self::Host)
    }

    /// Whether it is about size alone.
    pub fn is_too_large(self) -> bool {
        matches!(self, Self::HeadTooLarge | Self::TooManyFields)
    }
}
