//! Which addresses a router connects to for a cell: public ones, and others only where a Destination names them. Pure; the
//! addresses that are judged here are the ones that are connected to, so that no name can change its mind in between.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Networks that are nobody's destination unless it is said, the narrower before the wider (IANA's registries of
/// special-purpose addresses; RFC 6890).
const SPECIAL: [(IpNet, &str); 38] = [
    (v4([169, 254, 169, 254], 32), CLOUD),
    (v4([168, 63, 129, 16], 32), CLOUD),
    (v4([100, 100, 100, 200], 32), CLOUD),
    (v4([192, 0, 0, 192], 32), CLOUD),
    (v6([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254], 128), CLOUD),
    (v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128), CLOUD),
    (v4([0, 0, 0, 0], 8), "unspecified (RFC 791)"),
    (v4([10, 0, 0, 0], 8), "private (RFC 1918)"),
    (v4([100, 64, 0, 0], 10), "shared with a provider (RFC 6598)"),
    (v4([127, 0, 0, 0], 8), "loopback (RFC 1122)"),
    (v4([169, 254, 0, 0], 16), "link-local (RFC 3927)"),
    (v4([172, 16, 0, 0], 12), "private (RFC 1918)"),
    (v4([192, 0, 0, 0], 24), "for protocols (RFC 6890)"),
    (v4([192, 0, 2, 0], 24), "for documentation (RFC 5737)"),
    (v4([192, 88, 99, 0], 24), "a relay that is no more (RFC 7526)"),
    (v4([192, 168, 0, 0], 16), "private (RFC 1918)"),
    (v4([198, 18, 0, 0], 15), "for benchmarks (RFC 2544)"),
    (v4([198, 51, 100, 0], 24), "for documentation (RFC 5737)"),
    (v4([203, 0, 113, 0], 24), "for documentation (RFC 5737)"),
    (v4([224, 0, 0, 0], 4), "multicast (RFC 1112)"),
    (v4([255, 255, 255, 255], 32), "broadcast (RFC 919)"),
    (v4([240, 0, 0, 0], 4), "reserved (RFC 1112)"),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 128), "unspecified (RFC 4291)"),
    (v6([0, 0, 0, 0, 0, 0, 0, 1], 128), "loopback (RFC 4291)"),
    (v6([0, 0, 0, 0, 0, 0, 0, 0], 96), "an IPv4 address in a form that is no more (RFC 4291)"),
    (v6([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48), "a translator's own (RFC 8215)"),
    (v6([0x100, 0, 0, 0, 0, 0, 0, 0], 64), "discarded (RFC 6666)"),
    (v6([0x2001, 0, 0, 0, 0, 0, 0, 0], 23), "for protocols (RFC 2928)"),
    (v6([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32), "for documentation (RFC 3849)"),
    (v6([0x2002, 0, 0, 0, 0, 0, 0, 0], 16), "a relay that is no more (RFC 7526)"),
    (v6([0x3fff, 0, 0, 0, 0, 0, 0, 0], 20), "for documentation (RFC 9637)"),
    (v6([0x5f00, 0, 0, 0, 0, 0, 0, 0], 16), "for segment routing (RFC 9602)"),
    (v6([0xfc00, 0, 0, 0, 0, 0, 0, 0], 7), "private (RFC 4193)"),
    (v6([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10), "link-local (RFC 4291)"),
    (v6([0xfec0, 0, 0, 0, 0, 0, 0, 0], 10), "local to a site (RFC 3879)"),
    (v6([0xff00, 0, 0, 0, 0, 0, 0, 0], 8), "multicast (RFC 4291)"),
    (v6([0x4000, 0, 0, 0, 0, 0, 0, 0], 2), "not given to anybody (RFC 4291)"),
    (v6([0x8000, 0, 0, 0, 0, 0, 0, 0], 1), "not given to anybody (RFC 4291)"),
];
const CLOUD: &str = "a cloud's own (metadata, keys)";
/// An IPv4 address follows (RFC 6052): where a translator stands, this reaches it.
const TRANSLATED: IpNet = v6([0x64, 0xff9b, 0, 0, 0, 0, 0, 0], 96);

const fn v4([a, b, c, d]: [u8; 4], length: u8) -> IpNet {
    IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(a, b, c, d)), length)
}

const fn v6([a, b, c, d, e, f, g, h]: [u16; 8], length: u8) -> IpNet {
    IpNet::new_assert(IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h)), length)
}

/// What no Destination leads to, or only where it says so.
#[derive(Clone, Debug, Default)]
pub(crate) struct Bounds {
    /// Networks of the cluster, which Destinations have to allow.
    pub(crate) cluster_networks: Vec<IpNet>,
    /// Nothing on this router's own loopback is anybody's destination. For a router whose Destinations others may write: its
    /// admin port trusts whoever comes from there.
    pub(crate) no_loopback: bool,
}

/// Why an address is not connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Own,
    Special(&'static str),
    Cluster(IpNet),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("the router's own pod, which is nobody's destination"),
            Self::Special(what) => write!(f, "{what}; {LEAVE}"),
            Self::Cluster(network) => {
                write!(f, "in {network}, the cluster's own (--cluster-networks); {LEAVE}")
            }
        }
    }
}

const LEAVE: &str = "write the address as the endpoint, or its network in allowedNetworks, if it is meant";

/// Whether a Destination may lead to that address: it is public, or lies in one of the networks that the Destination allows.
/// An endpoint that is written as an address, `allowed` being `None`, needs no leave but for the router's own pod.
///
/// # Errors
/// What kind of address it is, and what to do if it is meant.
pub(crate) fn judge(address: IpAddr, allowed: Option<&[IpNet]>, bounds: &Bounds) -> Result<(), Refused> {
    // What is reached counts, in whatever form it is written.
    let forms = [Some(address), within(address)];
    // A connection to the unspecified address ends at loopback too.
    if bounds.no_loopback && forms.iter().flatten().any(|one| one.is_loopback() || one.is_unspecified()) {
        return Err(Refused::Own);
    }
    let lies_in = |network: &IpNet| forms.iter().flatten().any(|address| network.contains(address));
    if allowed.is_none_or(|allowed| allowed.iter().any(lies_in)) {
        return Ok(());
    }
    if let Some((_, what)) = SPECIAL.iter().find(|(network, _)| lies_in(network)) {
        return Err(Refused::Special(what));
    }
    let cluster = bounds.cluster_networks.iter().find(|network| lies_in(network));
    cluster.map_or(Ok(()), |network| Err(Refused::Cluster(*network)))
}

/// The IPv4 address that an IPv6 address leads to.
fn within(address: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(address) = address else { return None };
    let [.., a, b, c, d] = address.octets();
    let embedded = TRANSLATED.contains(&IpAddr::V6(address)).then(|| Ipv4Addr::new(a, b, c, d));
    address.to_ipv4_mapped().or(embedded).map(IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn networks(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().expect("a network")).collect()
    }

    #[track_caller]
    fn check(address: &str, allowed: &[&str], expected: Option<&str>) {
        let address: IpAddr = address.parse().expect("an address");
        let cluster_networks = networks(&["44.0.0.0/8", "2600:9::/32"]);
        let bounds = Bounds { cluster_networks, no_loopback: false };
        let said = judge(address, Some(&networks(allowed)), &bounds).err().map(|refused| refused.to_string());
        match (said, expected) {
            (None, None) => {}
            (Some(said), Some(words)) => assert!(said.contains(words), "{address}: {said}"),
            (said, expected) => panic!("{address}: {said:?} instead of {expected:?}"),
        }
    }

    #[test]
    fn public_addresses_need_no_leave() {
        for address in ["8.8.8.8", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "64:ff9b::8.8.8.8"] {
            check(address, &[], None);
        }
    }

    #[test]
    fn what_is_not_public_is_refused_in_whatever_form_it_is_written() {
        for (address, words) in [
            ("127.0.0.1", "loopback"),
            ("127.9.9.9", "loopback"),
            ("::1", "loopback"),
            ("0.0.0.0", "unspecified"),
            ("::", "unspecified"),
            ("10.0.0.1", "private"),
            ("172.31.255.255", "private"),
            ("192.168.1.1", "private"),
            ("fd12::1", "private"),
            ("100.64.0.1", "shared"),
            ("169.254.1.1", "link-local"),
            ("fe80::1", "link-local"),
            ("224.0.0.1", "multicast"),
            ("ff02::1", "multicast"),
            ("255.255.255.255", "broadcast"),
            ("240.0.0.1", "reserved"),
            ("192.0.2.1", "documentation"),
            ("2001:db8::1", "documentation"),
            ("198.19.0.1", "benchmarks"),
            ("2001::1", "protocols"),
            ("2002:7f00:1::", "relay"),
            ("::127.0.0.1", "no more"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::ffff:10.0.0.1", "private"),
            ("64:ff9b::169.254.169.254", "cloud"),
            ("64:ff9b:1::1", "translator"),
        ] {
            check(address, &[], Some(words));
        }
    }

    #[test]
    fn a_clouds_own_addresses_are_refused_wherever_they_lie() {
        for address in [
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "168.63.129.16",
            "100.100.100.200",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd20:ce::254",
        ] {
            check(address, &[], Some("cloud"));
        }
    }

    #[test]
    fn the_clusters_own_networks_are_refused_though_they_are_public() {
        check("44.1.2.3", &[], Some("--cluster-networks"));
        check("::ffff:44.1.2.3", &[], Some("--cluster-networks"));
        check("2600:9::1", &[], Some("--cluster-networks"));
        check("45.1.2.3", &[], None);
    }

    #[test]
    fn a_destination_opens_the_networks_that_it_names_and_no_other() {
        check("10.1.2.3", &["10.1.0.0/16"], None);
        check("::ffff:10.1.2.3", &["10.1.0.0/16"], None);
        check("10.2.2.3", &["10.1.0.0/16"], Some("private"));
        check("44.1.2.3", &["44.1.0.0/16"], None);
        check("127.0.0.1", &["127.0.0.0/8"], None);
        check("::1", &["127.0.0.0/8"], Some("loopback"));
        check("169.254.169.254", &["169.254.169.254/32"], None);
    }

    #[test]
    fn where_others_write_destinations_none_leads_to_the_routers_own_loopback() {
        let bounds = Bounds { no_loopback: true, ..Bounds::default() };
        let all = networks(&["0.0.0.0/0", "::/0"]);
        let check = |address: &str, expected: Result<(), Refused>| {
            let address: IpAddr = address.parse().expect("an address");
            for allowed in [None, Some(all.as_slice())] {
                assert_eq!(judge(address, allowed, &bounds), expected, "{address}, {allowed:?}");
            }
        };
        for own in ["127.0.0.1", "127.9.9.9", "::1", "0.0.0.0", "::"] {
            check(own, Err(Refused::Own));
        }
        for otherwise in ["::ffff:127.0.0.1", "::ffff:0.0.0.0", "64:ff9b::127.0.0.1"] {
            check(otherwise, Err(Refused::Own));
        }
        for other in ["10.1.2.3", "::ffff:10.1.2.3", "169.254.169.254", "8.8.8.8"] {
            check(other, Ok(()));
        }
    }
}
