//! Finding values in a JSON text (RFC 8259) by pointers (RFC 6901): one pass, no tree, and the whole text is checked.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

/// Deeper nesting than this is refused, so that a text cannot use up the stack.
const MAX_DEPTH: usize = 128;

/// Pointers that are looked for together, as a tree of their names.
#[derive(Clone, Debug)]
pub(crate) struct Pointers {
    nodes: Vec<Node>,
    wanted: usize,
}

#[derive(Clone, Debug, Default)]
struct Node {
    children: Vec<(String, usize)>,
    /// Place of the pointer that ends here.
    wanted: Option<usize>,
}

/// What was found, by place of the pointer: strings decoded, numbers as written, `true` and `false`.
pub(crate) type Found<'b> = Vec<Option<Cow<'b, [u8]>>>;

/// Why a text is no JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the body is no JSON: {what} at byte {at}")]
pub(crate) struct Malformed {
    what: &'static str,
    at: usize,
}

impl Default for Pointers {
    fn default() -> Self {
        Self::new([])
    }
}

impl Pointers {
    /// Pointers must be legal, and no two the same.
    pub(crate) fn new<'p>(pointers: impl IntoIterator<Item = &'p str>) -> Self {
        let mut tree = Self { nodes: vec![Node::default()], wanted: 0 };
        let mut places = Vec::new();
        for pointer in pointers {
            let mut at = 0;
            for name in pointer.split('/').skip(1) {
                at = tree.child(at, name.replace("~1", "/").replace("~0", "~"));
            }
            places.push(at);
        }
        tree.wanted = places.len();
        for (place, at) in places.into_iter().enumerate() {
            tree.nodes[at].wanted = Some(place);
        }
        tree
    }

    fn child(&mut self, parent: usize, name: String) -> usize {
        if let Some((_, at)) = self.nodes[parent].children.iter().find(|(known, _)| *known == name) {
            return *at;
        }
        let at = self.nodes.len();
        self.nodes.push(Node::default());
        self.nodes[parent].children.push((name, at));
        at
    }

    /// Looks for every pointer. Of repeated names the first counts. An empty text has no values; it is not malformed,
    /// since a request without a body is none the worse.
    ///
    /// # Errors
    /// When the text is no JSON, is no UTF-8, begins with a byte order mark, or is nested too deeply.
    pub(crate) fn find<'b>(&self, text: &'b [u8]) -> Result<Found<'b>, Malformed> {
        let mut scan = Scan {
            text,
            at: 0,
            tree: self,
            seen: vec![false; self.nodes.len()],
            found: vec![None; self.wanted],
        };
        if text.is_empty() {
            return Ok(scan.found);
        }
        if let Err(error) = std::str::from_utf8(text) {
            return Err(Malformed { what: "bytes that are no UTF-8", at: error.valid_up_to() });
        }
        scan.space();
        scan.value(Some(0), 0)?;
        scan.space();
        if scan.at == text.len() { Ok(scan.found) } else { Err(scan.expected("the end")) }
    }
}

struct Scan<'p, 'b> {
    text: &'b [u8],
    at: usize,
    tree: &'p Pointers,
    /// Nodes of the tree that a name has led to: a second one of the same name leads nowhere.
    seen: Vec<bool>,
    found: Found<'b>,
}

impl<'b> Scan<'_, 'b> {
    fn expected(&self, what: &'static str) -> Malformed {
        Malformed { what: if self.at < self.text.len() { what } else { "the text ends early" }, at: self.at }
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8, what: &'static str) -> Result<(), Malformed> {
        if self.peek() == Some(byte) {
            self.at += 1;
            Ok(())
        } else {
            Err(self.expected(what))
        }
    }

    /// A value; `node` is where the pointers stand that lead through it.
    fn value(&mut self, node: Option<usize>, depth: usize) -> Result<(), Malformed> {
        let start = self.at;
        match self.peek() {
            Some(b'{') => return self.object(node, self.deeper(depth)?),
            Some(b'[') => return self.array(node, self.deeper(depth)?),
            Some(b'"') => {
                let wanted = self.wanted(node);
                let text = self.string(wanted.is_some())?;
                if let Some(place) = wanted {
                    self.found[place] = Some(text);
                }
                return Ok(());
            }
            Some(b't') => self.word(b"true")?,
            Some(b'f') => self.word(b"false")?,
            Some(b'n') => return self.word(b"null"),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            _ => return Err(self.expected("no value where one should be")),
        }
        if let Some(place) = self.wanted(node) {
            self.found[place] = Some(Cow::Borrowed(&self.text[start..self.at]));
        }
        Ok(())
    }

    fn wanted(&self, node: Option<usize>) -> Option<usize> {
        node.and_then(|node| self.tree.nodes[node].wanted)
    }

    fn deeper(&self, depth: usize) -> Result<usize, Malformed> {
        if depth < MAX_DEPTH {
            Ok(depth + 1)
        } else {
            Err(Malformed { what: "nesting of more than 128 levels", at: self.at })
        }
    }

    fn object(&mut self, node: Option<usize>, depth: usize) -> Result<(), Malformed> {
        self.at += 1;
        self.space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.expected("no name where one should be"));
            }
            let tree = self.tree;
            let children = node.map_or(&[][..], |node| &tree.nodes[node].children);
            let name = self.string(!children.is_empty())?;
            let child = children.iter().find(|(known, _)| known.as_bytes() == name.as_ref());
            let child = child.and_then(|(_, at)| self.enter(*at));
            self.space();
            self.take(b':', "no colon after a name")?;
            self.space();
            self.value(child, depth)?;
            self.space();
            if self.peek() == Some(b'}') {
                self.at += 1;
                return Ok(());
            }
            self.take(b',', "no comma between members")?;
            self.space();
        }
    }

    fn array(&mut self, node: Option<usize>, depth: usize) -> Result<(), Malformed> {
        self.at += 1;
        self.space();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        let tree = self.tree;
        let children = node.map_or(&[][..], |node| &tree.nodes[node].children);
        for index in 0_usize.. {
            let child = children.iter().find(|(name, _)| is_index(name, index));
            let child = child.and_then(|(_, at)| self.enter(*at));
            self.value(child, depth)?;
            self.space();
            if self.peek() == Some(b']') {
                self.at += 1;
                break;
            }
            self.take(b',', "no comma between elements")?;
            self.space();
        }
        Ok(())
    }

    fn enter(&mut self, node: usize) -> Option<usize> {
        (!std::mem::replace(&mut self.seen[node], true)).then_some(node)
    }

    fn word(&mut self, word: &'static [u8]) -> Result<(), Malformed> {
        if self.text[self.at..].starts_with(word) {
            self.at += word.len();
            Ok(())
        } else {
            Err(self.expected("a word that is not true, false or null"))
        }
    }

    fn digits(&mut self) -> Result<(), Malformed> {
        let count = self.text[self.at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        if count > 0 { Ok(()) } else { Err(self.expected("no digit where one should be")) }
    }

    fn number(&mut self) -> Result<(), Malformed> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        if self.peek() == Some(b'0') {
            self.at += 1;
        } else {
            self.digits()?;
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    /// A string, checked; its content is decoded only where it is `wanted`.
    fn string(&mut self, wanted: bool) -> Result<Cow<'b, [u8]>, Malformed> {
        self.at += 1;
        let start = self.at;
        let mut decoded: Option<Vec<u8>> = None;
        let mut copied = start;
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    let plain = &self.text[copied..self.at];
                    let character = self.escape()?;
                    copied = self.at;
                    if wanted {
                        let decoded = decoded.get_or_insert_default();
                        decoded.extend_from_slice(plain);
                        decoded.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
                    }
                }
                Some(0x20..) => self.at += 1,
                _ => return Err(self.expected("a control character in a string")),
            }
        }
        let rest = &self.text[copied..self.at];
        self.at += 1;
        Ok(match decoded {
            Some(mut decoded) => {
                decoded.extend_from_slice(rest);
                Cow::Owned(decoded)
            }
            None => Cow::Borrowed(rest),
        })
    }

    fn escape(&mut self) -> Result<char, Malformed> {
        self.at += 1;
        let character = match self.peek() {
            Some(byte @ (b'"' | b'\\' | b'/')) => char::from(byte),
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'n') => '\n',
            Some(b'r') => '\r',
            Some(b't') => '\t',
            Some(b'u') => return self.unicode(),
            _ => return Err(self.expected("an escape that JSON does not know")),
        };
        self.at += 1;
        Ok(character)
    }

    /// `uXXXX`, or two of these as a surrogate pair. Half a pair is no character.
    fn unicode(&mut self) -> Result<char, Malformed> {
        let start = self.at;
        let half = Malformed { what: "half a surrogate pair", at: start };
        let first = self.hex()?;
        let code = match first {
            0xD800..=0xDBFF => {
                if !self.text[self.at..].starts_with(b"\\u") {
                    return Err(half);
                }
                self.at += 1;
                match self.hex()? {
                    second @ 0xDC00..=0xDFFF => 0x1_0000 + ((first - 0xD800) << 10) + (second - 0xDC00),
                    _ => return Err(half),
                }
            }
            other => other,
        };
        char::from_u32(code).ok_or(half)
    }

    fn hex(&mut self) -> Result<u32, Malformed> {
        self.at += 1;
        let mut code = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            code = code << 4 | digit.ok_or_else(|| self.expected("no hexadecimal digit in an escape"))?;
            self.at += 1;
        }
        Ok(code)
    }
}

/// RFC 6901: digits without leading zeros.
fn is_index(name: &str, index: usize) -> bool {
    let legal = name == "0" || (name.starts_with(|c: char| c.is_ascii_digit()) && !name.starts_with('0'));
    legal && name.parse() == Ok(index)
}
