//! What a request says of the way that it came: whom to believe of it, and what the router adds. Pure.

use std::fmt::Write as _;
use std::net::IpAddr;

use bulkhead_crds::router::{ForwardedFields, ForwardedRules};
use bulkhead_http1::Fields;
use ipnet::IpNet;

const FOR: &str = "x-forwarded-for";
const PROTO: &str = "x-forwarded-proto";
const HOST: &str = "x-forwarded-host";
/// Every field that begins so says something of the way.
const FAMILY: &str = "x-forwarded-";
/// RFC 7239.
const FORWARDED: &str = "forwarded";

/// A listener's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rules {
    trust: Vec<IpNet>,
    x_forwarded: bool,
    rfc7239: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self { trust: Vec::new(), x_forwarded: true, rfc7239: false }
    }
}

/// The last part of the way: who came to this router, how, and what for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hop<'a> {
    pub(crate) peer: IpAddr,
    /// Over TLS.
    pub(crate) secure: bool,
    /// Host with its port, if it has one; empty where the request names none.
    pub(crate) host: &'a [u8],
}

impl Rules {
    /// # Errors
    /// Which network is none.
    pub(crate) fn new(spec: &ForwardedRules) -> Result<Self, String> {
        let trust = networks("forwarded.trust", &spec.trust)?;
        let x_forwarded = matches!(spec.fields, ForwardedFields::XForwarded | ForwardedFields::Both);
        let rfc7239 = matches!(spec.fields, ForwardedFields::Forwarded | ForwardedFields::Both);
        Ok(Self { trust, x_forwarded, rfc7239 })
    }

    fn trusts(&self, peer: IpAddr) -> bool {
        contain(&self.trust, peer)
    }

    /// Takes off what is not to be believed, before anything is decided by it: from a peer that is not trusted all, from
    /// one that is what the listener does not let through.
    pub(crate) fn receive(&self, fields: &mut Fields, peer: IpAddr) {
        let trusted = self.trusts(peer);
        let (keeps_family, keeps_rfc7239) = (trusted && self.x_forwarded, trusted && self.rfc7239);
        if keeps_family && keeps_rfc7239 {
            return;
        }
        fields.retain(|_, name, _| match name.first().map(u8::to_ascii_lowercase) {
            Some(b'x') => keeps_family || !begins_with(name, FAMILY),
            Some(b'f') => keeps_rfc7239 || !name.eq_ignore_ascii_case(FORWARDED.as_bytes()),
            _ => true,
        });
    }

    /// Adds the last part of the way to what was kept: the address to the list of them; protocol and host are the first
    /// proxy's to say.
    pub(crate) fn add(&self, fields: &mut Fields, hop: Hop<'_>) {
        if self.x_forwarded {
            add_family(fields, hop);
        }
        if self.rfc7239 {
            let mut list = list(fields, FORWARDED);
            push_element(&mut list, hop);
            fields.set(FORWARDED, list.as_bytes());
        }
    }
}

/// Whether one of these networks has that address.
pub(crate) fn contain(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

/// # Errors
/// Which of them is no network; `field` names the field that they are written in.
pub(crate) fn networks(field: &str, texts: &[String]) -> Result<Vec<IpNet>, String> {
    let network = |text: &String| {
        text.parse::<IpNet>().map_err(|_| format!("{field}: {text:?} is no network such as 10.0.0.0/8"))
    };
    texts.iter().map(network).collect()
}

fn proto(hop: Hop<'_>) -> &'static str {
    if hop.secure { "https" } else { "http" }
}

fn add_family(fields: &mut Fields, hop: Hop<'_>) {
    let mut path = list(fields, FOR);
    push_address(&mut path, hop.peer);
    fields.set(FOR, path.as_bytes());
    let says = |fields: &Fields, name| fields.get_all(name).any(|value| !value.is_empty());
    if !says(fields, PROTO) {
        fields.set(PROTO, proto(hop).as_bytes());
    }
    if !hop.host.is_empty() && !says(fields, HOST) {
        fields.set(HOST, hop.host);
    }
}

/// The values of that name as one list (RFC 9110, section 5.3), ready for one more. What is no text is no part of the way.
fn list(fields: &Fields, name: &str) -> String {
    let mut list = String::with_capacity(48);
    let texts = fields.get_all(name).filter_map(|value| std::str::from_utf8(value).ok());
    for value in texts.filter(|value| !value.is_empty()) {
        list.push_str(value);
        list.push_str(", ");
    }
    list
}

/// An address as text; of the old kind without the ways of formatting, which cost more than all the rest of it.
fn push_address(text: &mut String, address: IpAddr) {
    let IpAddr::V4(address) = address else {
        // Writing to a String does not fail.
        let _ = write!(text, "{address}");
        return;
    };
    for (place, octet) in address.octets().into_iter().enumerate() {
        if place > 0 {
            text.push('.');
        }
        for (unit, digit) in [(100, octet / 100), (10, octet / 10 % 10), (1, octet % 10)] {
            if octet >= unit || unit == 1 {
                text.push(char::from(b'0' + digit));
            }
        }
    }
}

fn begins_with(name: &[u8], prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix.as_bytes()))
}

/// One element of `forwarded` (RFC 7239, section 4). An IPv6 address stands in brackets, and what is no token in quotes
/// (section 6).
fn push_element(text: &mut String, hop: Hop<'_>) {
    // Writing to a String does not fail.
    let _ = match hop.peer {
        IpAddr::V4(address) => write!(text, "for={address}"),
        IpAddr::V6(address) => write!(text, "for=\"[{address}]\""),
    };
    if let Some(host) = std::str::from_utf8(hop.host).ok().filter(|host| !host.is_empty()) {
        text.push_str(";host=");
        push_value(text, host);
    }
    text.push_str(";proto=");
    text.push_str(proto(hop));
}

fn push_value(text: &mut String, value: &str) {
    if value.bytes().all(is_token) {
        return text.push_str(value);
    }
    text.push('"');
    for letter in value.chars() {
        if matches!(letter, '"' | '\\') {
            text.push('\\');
        }
        text.push(letter);
    }
    text.push('"');
}

/// RFC 9110, section 5.6.2.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROXY: &str = "10.1.2.3";
    const STRANGER: &str = "203.0.113.9";

    fn rules(fields: ForwardedFields) -> Rules {
        let trust = vec!["10.0.0.0/8".to_owned(), "fd00::/8".to_owned()];
        Rules::new(&ForwardedRules { trust, fields }).expect("are networks")
    }

    /// What a cell gets of a request with these fields from that peer over TLS.
    #[track_caller]
    fn check(
        which: ForwardedFields,
        peer: &str,
        sent: &[(&'static str, &str)],
        got: &[(&'static str, &str)],
    ) {
        let (rules, peer) = (rules(which), peer.parse().expect("an address"));
        let mut fields: Fields = sent.iter().copied().collect();
        rules.receive(&mut fields, peer);
        rules.add(&mut fields, Hop { peer, secure: true, host: b"shop.example" });
        assert_eq!(fields.to_map(), got.iter().copied().collect::<Fields>().to_map());
    }

    /// As a client could forge it, or a proxy say it.
    const SAID: [(&str, &str); 6] = [
        (FOR, "198.51.100.1"),
        (FOR, "192.0.2.7"),
        (PROTO, "http"),
        ("x-forwarded-prefix", "/shop"),
        (FORWARDED, "for=198.51.100.1"),
        ("x-partner", "acme"),
    ];
    const PARTNER: (&str, &str) = ("x-partner", "acme");

    #[test]
    fn what_a_stranger_says_is_taken_off_and_ours_is_put_in_its_place() {
        let ours = [PARTNER, (FOR, STRANGER), (PROTO, "https"), (HOST, "shop.example")];
        let rfc7239 = (FORWARDED, "for=203.0.113.9;host=shop.example;proto=https");
        check(ForwardedFields::XForwarded, STRANGER, &SAID, &ours);
        check(ForwardedFields::Forwarded, STRANGER, &SAID, &[PARTNER, rfc7239]);
        check(ForwardedFields::Both, STRANGER, &SAID, &[&ours[..], &[rfc7239]].concat());
        check(ForwardedFields::None, STRANGER, &SAID, &[PARTNER]);
    }

    #[test]
    fn what_a_proxy_says_is_kept_and_added_to_where_the_listener_lets_it_through() {
        let family = [
            PARTNER,
            (FOR, "198.51.100.1, 192.0.2.7, 10.1.2.3"),
            (PROTO, "http"),
            ("x-forwarded-prefix", "/shop"),
            (HOST, "shop.example"),
        ];
        let rfc7239 = (FORWARDED, "for=198.51.100.1, for=10.1.2.3;host=shop.example;proto=https");
        check(ForwardedFields::XForwarded, PROXY, &SAID, &family);
        check(ForwardedFields::Forwarded, PROXY, &SAID, &[PARTNER, rfc7239]);
        check(ForwardedFields::Both, PROXY, &SAID, &[&family[..], &[rfc7239]].concat());
        check(ForwardedFields::None, PROXY, &SAID, &[PARTNER]);
    }

    #[test]
    fn a_proxy_that_says_nothing_is_the_first_of_the_way() {
        let ours = [(FOR, PROXY), (PROTO, "https"), (HOST, "shop.example")];
        check(ForwardedFields::XForwarded, PROXY, &[(FOR, "")], &ours);
    }

    #[test]
    fn without_networks_nobody_is_believed() {
        assert!(
            !Rules::new(&ForwardedRules::default()).expect("has none").trusts(IpAddr::from([127, 0, 0, 1]))
        );
        let wrong = ForwardedRules { trust: vec!["10.0.0.0/33".to_owned()], ..ForwardedRules::default() };
        let error = Rules::new(&wrong).expect_err("is no network");
        assert!(error.contains("forwarded.trust: \"10.0.0.0/33\""), "{error}");
    }

    #[test]
    fn an_element_quotes_what_is_no_token() {
        let check = |peer: &str, host: &'static str, expected: &str| {
            let hop = Hop { peer: peer.parse().expect("an address"), secure: false, host: host.as_bytes() };
            let mut text = String::new();
            push_element(&mut text, hop);
            assert_eq!(text, expected);
        };
        check("192.0.2.1", "shop", "for=192.0.2.1;host=shop;proto=http");
        check("192.0.2.1", "", "for=192.0.2.1;proto=http");
        check("2001:db8::1", "shop:8080", "for=\"[2001:db8::1]\";host=\"shop:8080\";proto=http");
        check("192.0.2.1", "a\"b\\c", "for=192.0.2.1;host=\"a\\\"b\\\\c\";proto=http");
    }

    #[test]
    fn addresses_are_written_as_everywhere() {
        for address in ["0.0.0.0", "127.0.0.1", "255.10.9.100", "203.0.113.7", "::1", "2001:db8::7"] {
            let mut text = String::new();
            push_address(&mut text, address.parse().expect("an address"));
            assert_eq!(text, address);
        }
    }
}
