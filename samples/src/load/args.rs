//! The load generator's flags.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use clap::Args;

use super::{Body, Plan};

#[derive(Args, Clone, Debug)]
pub struct LoadArgs {
    /// `http://ADDRESS:PORT`; may be repeated, connections are spread over all.
    #[arg(long, required = true)]
    target: Vec<String>,
    /// Requests per second.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    rate: u32,
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    duration: Duration,
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    timeout: Duration,
    #[arg(long, default_value = "GET")]
    method: http::Method,
    #[arg(long, default_value = "/")]
    path: String,
    /// The Host header; default: the target's address.
    #[arg(long, default_value = "")]
    host: String,
    /// `NAME: VALUE`, sent with every request; may be repeated.
    #[arg(long = "header")]
    headers: Vec<String>,
    /// Header that takes a key, a different one for each of `--keys` requests.
    #[arg(long)]
    key_header: Option<http::HeaderName>,
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    keys: u64,
    /// Size of every request's body.
    #[arg(long, default_value_t = 0)]
    body_bytes: usize,
    /// Print one JSON object.
    #[arg(long)]
    pub json: bool,
}

impl LoadArgs {
    /// # Errors
    /// When a target or a header is malformed.
    pub fn plan(self) -> anyhow::Result<Plan> {
        Ok(Plan {
            targets: self.target.iter().map(|text| parse_target(text)).collect::<anyhow::Result<_>>()?,
            method: self.method,
            path: self.path,
            host: self.host,
            headers: self.headers.iter().map(|text| parse_header(text)).collect::<anyhow::Result<_>>()?,
            key_header: self.key_header,
            keys: self.keys,
            body: Body::Same(vec![b'x'; self.body_bytes].into()),
            rate: self.rate,
            connections: self.connections,
            duration: Some(self.duration),
            timeout: self.timeout,
            ..Plan::default()
        })
    }
}

/// `http://ADDRESS:PORT`, with or without the scheme.
///
/// # Errors
/// When it is none, as with a host name.
pub fn parse_target(text: &str) -> anyhow::Result<SocketAddr> {
    let address = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    address.parse().with_context(|| format!("{text:?} is not http://ADDRESS:PORT with an IP address"))
}

fn parse_header(text: &str) -> anyhow::Result<(http::HeaderName, http::HeaderValue)> {
    let (name, value) = text.split_once(':').with_context(|| format!("{text:?} is not NAME: VALUE"))?;
    Ok((name.trim().parse()?, value.trim().parse()?))
}

/// A number with a unit of ms, s or m, such as `250ms`.
///
/// # Errors
/// When it is none.
pub fn parse_duration(text: &str) -> anyhow::Result<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let unit = match &text[digits..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        _ => 0,
    };
    ensure!(digits > 0 && digits < 10 && unit > 0, "{text:?} is no duration: write 250ms, 10s or 2m");
    Ok(Duration::from_millis(text[..digits].parse::<u64>()? * unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_number_and_a_unit() {
        for (text, expected) in [("250ms", 250), ("10s", 10_000), ("2m", 120_000), ("0s", 0)] {
            assert_eq!(parse_duration(text).expect(text), Duration::from_millis(expected));
        }
        for text in ["", "10", "s", "1h", "-1s", "1.5s"] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
    }

    #[test]
    fn targets_are_addresses_with_or_without_the_scheme() {
        for text in ["http://127.0.0.1:80", "http://127.0.0.1:80/", "127.0.0.1:80"] {
            assert_eq!(parse_target(text).expect(text).to_string(), "127.0.0.1:80");
        }
        assert!(parse_target("http://router:80").is_err());
    }
}
