//! The PROXY protocol, versions 1 and 2, read from what has arrived so far. Pure. Sections are those of the specification
//! (haproxy's doc/proxy-protocol.txt).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// How version 2 begins (section 2.2).
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// How version 1 begins (section 2.1).
const WORD: &[u8] = b"PROXY ";
/// Bytes of a line of version 1, its end included (section 2.1).
const MOST_LINE: usize = 107;
/// Bytes of version 2 before those whose number it gives.
const FIXED: usize = 16;
/// Of these, at most; what proxies send has some hundreds.
const MOST_REST: usize = 4096;
/// The type of a field with the header's checksum (section 2.2.3).
const CRC32C: u8 = 0x03;

/// What has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// A beginning; nothing is wrong with it so far.
    Partial,
    Whole {
        /// Bytes of the header. What follows is the client's.
        length: usize,
        /// Who connected to the proxy. None where it speaks for itself, as for a health check, or for somebody without an
        /// address: then who connected to us is meant.
        source: Option<IpAddr>,
    },
}

/// Why a connection is refused that must begin with a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Wrong {
    #[error("there is no PROXY header")]
    NotThere,
    #[error("the PROXY header {0}")]
    Malformed(&'static str),
}

/// Reads the header at the beginning of these bytes.
///
/// # Errors
/// As soon as what has arrived can become no header.
pub(crate) fn read(bytes: &[u8]) -> Result<Header, Wrong> {
    if agree(bytes, SIGNATURE) {
        version2(bytes)
    } else if agree(bytes, WORD) {
        version1(bytes)
    } else {
        Err(Wrong::NotThere)
    }
}

/// Whether one is how the other begins.
fn agree(bytes: &[u8], with: &[u8]) -> bool {
    bytes.iter().zip(with).all(|(one, other)| one == other)
}

fn version1(bytes: &[u8]) -> Result<Header, Wrong> {
    let bytes = &bytes[..bytes.len().min(MOST_LINE)];
    let Some(end) = bytes.iter().position(|byte| matches!(byte, b'\r' | b'\n')) else {
        return partial(bytes.len() < MOST_LINE, "is longer than 107 bytes");
    };
    match bytes.get(end..end + 2) {
        None if bytes[end] == b'\r' => return partial(bytes.len() < MOST_LINE, "is longer than 107 bytes"),
        Some(b"\r\n") => {}
        _ => return Err(Wrong::Malformed("has a line that does not end with CR LF")),
    }
    let line = std::str::from_utf8(&bytes[..end]).map_err(|_| Wrong::Malformed("is no ASCII"))?;
    let mut words = line.split(' ').skip(1);
    let source = match words.next() {
        // Whatever else is in the line is to be ignored.
        Some("UNKNOWN") => None,
        Some("TCP4") => Some(addresses(&mut words, ipv4)?),
        Some("TCP6") => Some(addresses(&mut words, ipv6)?),
        _ => return Err(Wrong::Malformed("is neither for TCP4, TCP6 nor UNKNOWN")),
    };
    Ok(Header::Whole { length: end + 2, source })
}

fn partial(may_go_on: bool, else_it: &'static str) -> Result<Header, Wrong> {
    if may_go_on { Ok(Header::Partial) } else { Err(Wrong::Malformed(else_it)) }
}

/// Source and destination, then their ports, and nothing else.
fn addresses<'a>(
    words: &mut impl Iterator<Item = &'a str>,
    address: fn(&str) -> Option<IpAddr>,
) -> Result<IpAddr, Wrong> {
    let mut next = || words.next();
    let source = next().and_then(address).ok_or(Wrong::Malformed("has no address of its family"))?;
    next().and_then(address).ok_or(Wrong::Malformed("has no address of its family"))?;
    for _ in 0..2 {
        next().and_then(port).ok_or(Wrong::Malformed("has no port from 0 to 65535"))?;
    }
    if next().is_some() {
        return Err(Wrong::Malformed("goes on after its ports"));
    }
    Ok(source)
}

fn ipv4(text: &str) -> Option<IpAddr> {
    text.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
}

/// Groups and colons alone, which leaves out the dotted form.
fn ipv6(text: &str) -> Option<IpAddr> {
    let address = text.parse::<Ipv6Addr>().ok().filter(|_| !text.contains('.'))?;
    Some(IpAddr::V6(address).to_canonical())
}

fn port(text: &str) -> Option<u16> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    text.parse().ok().filter(|_| plain)
}

fn version2(bytes: &[u8]) -> Result<Header, Wrong> {
    if bytes.get(12).is_some_and(|byte| byte >> 4 != 2) {
        return Err(Wrong::Malformed("is of a version other than 1 and 2"));
    }
    let Some((fixed, after)) = bytes.split_first_chunk::<FIXED>() else { return Ok(Header::Partial) };
    let rest = usize::from(u16::from_be_bytes([fixed[14], fixed[15]]));
    if rest > MOST_REST {
        return Err(Wrong::Malformed("is longer than 4096 bytes"));
    }
    let Some(rest) = after.get(..rest) else { return Ok(Header::Partial) };
    let header = &bytes[..FIXED + rest.len()];
    let source = match fixed[12] & 0xF {
        // The proxy's own connection: what follows is to be skipped, the family included.
        0 => None,
        1 => relayed(fixed[13], rest, header)?,
        _ => return Err(Wrong::Malformed("has a command other than LOCAL and PROXY")),
    };
    Ok(Header::Whole { length: header.len(), source })
}

fn relayed(family: u8, rest: &[u8], header: &[u8]) -> Result<Option<IpAddr>, Wrong> {
    let size = match (family >> 4, family & 0xF) {
        (0, 0..=2) | (1..=3, 0) => return Ok(None),
        (1, 1 | 2) => 12,
        (2, 1 | 2) => 36,
        (3, 1 | 2) => 216,
        _ => return Err(Wrong::Malformed("has a family or transport that there is not")),
    };
    let fields = rest.get(size..).ok_or(Wrong::Malformed("is shorter than its addresses"))?;
    check_fields(fields, header)?;
    Ok(match family {
        0x11 => rest.first_chunk::<4>().map(|source| IpAddr::from(*source)),
        0x21 => rest.first_chunk::<16>().map(|source| IpAddr::from(*source).to_canonical()),
        // Neither a datagram's sender nor a path is who connected to the proxy by TCP.
        _ => None,
    })
}

/// Passes over type, length and value, again and again (section 2.2), and looks at a checksum.
fn check_fields(mut fields: &[u8], header: &[u8]) -> Result<(), Wrong> {
    const CUT_OFF: Wrong = Wrong::Malformed("has a field that is cut off");
    while !fields.is_empty() {
        let (head, after) = fields.split_first_chunk::<3>().ok_or(CUT_OFF)?;
        let length = usize::from(u16::from_be_bytes([head[1], head[2]]));
        let (value, after) = after.split_at_checked(length).ok_or(CUT_OFF)?;
        if head[0] == CRC32C {
            let at = header.len() - after.len() - length;
            if value != crc32c(header, at).to_be_bytes() {
                return Err(Wrong::Malformed("does not have the checksum that it says"));
            }
        }
        fields = after;
    }
    Ok(())
}

/// The checksum of RFC 4960, appendix B, of bytes of which the four at that place count as 0.
fn crc32c(bytes: &[u8], place: usize) -> u32 {
    let sum = bytes.iter().enumerate().fold(u32::MAX, |sum, (index, byte)| {
        let byte = if (place..place + 4).contains(&index) { 0 } else { *byte };
        (sum >> 8) ^ TABLE[usize::from((sum ^ u32::from(byte)) as u8)]
    });
    !sum
}

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut sum = index as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = (sum >> 1) ^ (0x82F6_3B78 & (sum & 1).wrapping_neg());
            bit += 1;
        }
        table[index] = sum;
        index += 1;
    }
    table
};

#[cfg(test)]
mod tests;
