//! Finding values in a JSON text (RFC 8259) by pointers (RFC 6901): one pass, no tree, and the whole text is checked.

use std::borrow::Cow;

/// Deeper nesting than this is refused, so that a text cannot use up the stack.
const MAX_DEPTH: usize = 128;

/// Pointers that are looked for together, as a tree of their names.
#[derive(Debug)]
pub(crate) struct Pointers {
    nodes: Vec<Node>,
    wanted: usize,
}

#[derive(Debug, Default)]
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

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    fn check(text: &str, pointer: &str, expected: Option<&str>) {
        let found = Pointers::new([pointer]).find(text.as_bytes()).expect("JSON");
        let found = found[0].as_deref().map(|value| String::from_utf8(value.to_vec()).expect("UTF-8"));
        assert_eq!(found.as_deref(), expected, "{pointer} in {text}");
    }

    fn check_malformed(text: &[u8]) {
        let text_shown = String::from_utf8_lossy(text);
        assert!(Pointers::new(["/a"]).find(text).is_err(), "{text_shown:?} is no JSON");
    }

    #[test]
    fn values_are_found_as_written() {
        let text = r#" { "card" : {"bin":"476112","n":-1.50e+3,"ok":true,"no":null,"o":{}}, "list":[[1,2],{"x":"y"}] } "#;
        check(text, "/card/bin", Some("476112"));
        check(text, "/card/n", Some("-1.50e+3"));
        check(text, "/card/ok", Some("true"));
        check(text, "/card/no", None);
        check(text, "/card/o", None);
        check(text, "/card", None);
        check(text, "/list/0/1", Some("2"));
        check(text, "/list/1/x", Some("y"));
        check(text, "/list/01/x", None);
        check(text, "/list/-", None);
        check(text, "/list/+1/x", None);
        check(text, "/missing/bin", None);
    }

    #[test]
    fn names_and_values_are_decoded() {
        check(r#"{"a\u002fb":"\u0041\n\"\\\/\ud83d\ude00é"}"#, "/a~1b", Some("A\n\"\\/😀é"));
        check(r#"{"a~b":"x"}"#, "/a~0b", Some("x"));
        check(r#"{"":"x"}"#, "/", Some("x"));
        check(r#"{"a":""}"#, "/a", Some(""));
    }

    #[test]
    fn of_repeated_names_the_first_counts_at_every_level() {
        check(r#"{"a":"first","a":"second"}"#, "/a", Some("first"));
        check(r#"{"a":null,"a":"second"}"#, "/a", None);
        check(r#"{"a":{"b":1},"a":{"b":2,"c":3}}"#, "/a/b", Some("1"));
        check(r#"{"a":1,"a":{"b":2}}"#, "/a/b", None);
        check(r#"{"a":"first","\u0061":"second"}"#, "/a", Some("first"));
    }

    #[test]
    fn a_text_that_is_no_json_is_never_taken_for_one_without_the_field() {
        for text in [
            r#"{"a":1"#,
            r#"{"a":1}}"#,
            r#"{"a":1,}"#,
            r#"{"a" 1}"#,
            r#"{a:1}"#,
            r#"{"a":01}"#,
            r#"{"a":1.}"#,
            r#"{"a":.5}"#,
            r#"{"a":+1}"#,
            r#"{"a":1e}"#,
            r#"{"a":tru}"#,
            r#"{"a":"x}"#,
            r#"{"a":"\x"}"#,
            r#"{"a":"\u12g4"}"#,
            r#"{"a":"\ud83d"}"#,
            r#"{"a":"\ude00"}"#,
            r#"{"a":'x'}"#,
            "{\"a\":\"\n\"}",
            "[1,]",
            "[1 2]",
            " ",
            "\u{feff}{\"a\":1}",
            "a=1&b=2",
        ] {
            check_malformed(text.as_bytes());
        }
        check_malformed(b"\x1f\x8b\x08\x00compressed");
        check_malformed(b"{\"a\":\"\xff\"}");
        check_malformed(&[b'['; 100_000]);
        check_malformed(format!("{}1{}", "[".repeat(129), "]".repeat(129)).as_bytes());
        check(&format!("{{\"a\":{}1{}}}", "[".repeat(127), "]".repeat(127)), "/b", None);
    }

    #[test]
    fn no_text_has_no_values() {
        assert_eq!(Pointers::new(["/a"]).find(b""), Ok(vec![None]));
    }

    #[test]
    fn pointers_that_share_names_do_not_disturb_each_other() {
        let pointers = Pointers::new(["/a/b", "/a", "/a/c"]);
        let found = pointers.find(br#"{"a":{"c":2,"b":1}}"#).expect("JSON");
        assert_eq!(found[0].as_deref(), Some(&b"1"[..]));
        assert_eq!(found[1], None);
        assert_eq!(found[2].as_deref(), Some(&b"2"[..]));
    }

    fn json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-c\"\\\\/~é\n]{0,4}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-c/~\"]{0,2}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    /// Every pointer into the value, with what it points to.
    fn pointers(value: &Value, at: &str, into: &mut Vec<(String, Option<String>)>) {
        let scalar = match value {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(truth) => Some(truth.to_string()),
            Value::Null | Value::Array(_) | Value::Object(_) => None,
        };
        if !at.is_empty() {
            into.push((at.to_owned(), scalar));
        }
        match value {
            Value::Array(items) => {
                items
                    .iter()
                    .enumerate()
                    .for_each(|(index, item)| pointers(item, &format!("{at}/{index}"), into));
            }
            Value::Object(members) => members.iter().for_each(|(name, item)| {
                let name = name.replace('~', "~0").replace('/', "~1");
                pointers(item, &format!("{at}/{name}"), into);
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    proptest! {
        #[test]
        fn a_tree_would_find_the_same(value in json(), pretty in any::<bool>()) {
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            let text = text.expect("serialises");
            let mut expected = Vec::new();
            pointers(&value, "", &mut expected);
            let found = Pointers::new(expected.iter().map(|(pointer, _)| pointer.as_str()))
                .find(text.as_bytes())
                .expect("JSON");
            for ((pointer, expected), found) in expected.iter().zip(found) {
                let found = found.map(|value| String::from_utf8(value.into_owned()).expect("UTF-8"));
                prop_assert_eq!(&found, expected, "{} in {}", pointer, text);
            }
        }

        #[test]
        fn what_a_parser_refuses_is_refused(value in json(), place in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut text = serde_json::to_vec(&value).expect("serialises");
            let place = place.index(text.len());
            text[place] = byte;
            let parsed = serde_json::from_slice::<Value>(&text);
            // Only a number that a parser finds too large for itself is legal all the same.
            let legal = parsed.is_ok() || parsed.is_err_and(|error| error.to_string().contains("out of range"));
            prop_assert_eq!(Pointers::new([]).find(&text).is_ok(), legal, "{}", String::from_utf8_lossy(&text));
        }
    }
}
