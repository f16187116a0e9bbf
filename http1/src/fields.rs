//! The fields of one message in the order in which they came, as places in the bytes that brought them. What is added lies
//! behind in bytes of its own; nothing is copied or hashed to read a field.

use std::cell::RefCell;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::name::Known;
use crate::write;

/// Where one field is. Heads are far below 2^32 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) name: (u32, u32),
    pub(crate) value: (u32, u32),
    /// Where its line ends, behind the CRLF. It begins with the name.
    pub(crate) end: u32,
    pub(crate) known: Known,
    /// In the bytes that were added.
    pub(crate) added: bool,
}

/// The fields of a head, or trailers. Names are compared in any case; values are bytes without the space around them.
///
/// It is as large as a pointer, and what it points to is used again by the same thread.
#[derive(Debug, Default)]
pub struct Fields(Option<Box<Inner>>);

#[derive(Clone, Debug, Default)]
struct Inner {
    arrived: Bytes,
    added: Vec<u8>,
    places: Vec<Place>,
}

/// Of these, how many are kept for further heads, and how large they may be for that.
const KEPT: usize = 256;
const KEPT_PLACES: usize = 64;
const KEPT_BYTES: usize = 4 * 1024;

thread_local! {
    #[expect(clippy::vec_box, reason = "it is the boxes that are used again")]
    static FREE: RefCell<Vec<Box<Inner>>> = const { RefCell::new(Vec::new()) };
}

impl Drop for Fields {
    fn drop(&mut self) {
        let Some(mut inner) = self.0.take() else { return };
        let Inner { arrived, added, places } = &mut *inner;
        *arrived = Bytes::new();
        added.clear();
        places.clear();
        if places.capacity() <= KEPT_PLACES && added.capacity() <= KEPT_BYTES {
            // A thread that ends keeps nothing.
            let _ = FREE.try_with(|free| {
                let mut free = free.borrow_mut();
                if free.len() < KEPT {
                    free.push(inner);
                }
            });
        }
    }
}

impl Clone for Fields {
    fn clone(&self) -> Self {
        let mut fields = Self::new();
        if let Some(inner) = &self.0 {
            fields.inner().clone_from(inner);
        }
        fields
    }
}

impl Inner {
    fn bytes(&self, place: &Place) -> &[u8] {
        if place.added { &self.added } else { &self.arrived }
    }

    fn name(&self, place: &Place) -> &[u8] {
        slice(self.bytes(place), place.name)
    }

    fn value(&self, place: &Place) -> &[u8] {
        slice(self.bytes(place), place.value)
    }

    fn is_named(&self, place: &Place, name: &str) -> bool {
        let length = (place.name.1 - place.name.0) as usize;
        length == name.len() && self.name(place).eq_ignore_ascii_case(name.as_bytes())
    }
}

impl Fields {
    pub fn new() -> Self {
        Self::default()
    }

    fn inner(&mut self) -> &mut Inner {
        let kept = || FREE.try_with(|free| free.borrow_mut().pop()).ok().flatten();
        self.0.get_or_insert_with(|| kept().unwrap_or_default())
    }

    /// The places of what arrives; the bytes follow by [`Self::arrive`].
    pub(crate) fn places_mut(&mut self) -> &mut Vec<Place> {
        &mut self.inner().places
    }

    pub(crate) fn arrive(&mut self, bytes: Bytes) {
        self.inner().arrived = bytes;
    }

    /// What there is, and where in it each field is.
    fn placed(&self) -> (&Inner, std::slice::Iter<'_, Place>) {
        static NOTHING: Inner = Inner { arrived: Bytes::new(), added: Vec::new(), places: Vec::new() };
        let inner = self.0.as_deref().unwrap_or(&NOTHING);
        (inner, inner.places.iter())
    }

    /// Every field with its name as it came.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let (inner, places) = self.placed();
        places.map(|place| (inner.name(place), inner.value(place)))
    }

    /// As [`Self::iter`], with what each of them is.
    pub fn iter_known(&self) -> impl Iterator<Item = (Known, &[u8], &[u8])> {
        let (inner, places) = self.placed();
        places.map(|place| (place.known, inner.name(place), inner.value(place)))
    }

    /// The first value of that field.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        let (inner, mut places) = self.placed();
        places.find(|place| inner.is_named(place, name)).map(|place| inner.value(place))
    }

    /// The first value of that field, where it is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).and_then(|value| std::str::from_utf8(value).ok())
    }

    pub fn get_all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        let (inner, places) = self.placed();
        places.filter(|place| inner.is_named(place, name)).map(|place| inner.value(place))
    }

    pub fn get_known(&self, known: Known) -> Option<&[u8]> {
        self.all_known(known).next()
    }

    pub fn all_known(&self, known: Known) -> impl Iterator<Item = &[u8]> {
        let (inner, places) = self.placed();
        places.filter(move |place| place.known == known).map(|place| inner.value(place))
    }

    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn len(&self) -> usize {
        self.placed().1.len()
    }

    /// Puts a field behind the others. What no field may say is left out: names are tokens, values visible characters,
    /// spaces, tabs and bytes above 127.
    pub fn push(&mut self, name: &str, value: &[u8]) {
        // All are looked at, which goes by many at once.
        let is_illegal = |byte: u8| (byte < b' ' && byte != b'\t') | (byte == 127);
        debug_assert!(!name.is_empty() && !name.contains(':'), "{name:?} is no field's name");
        if value.iter().fold(false, |found, byte| found | is_illegal(*byte)) {
            return;
        }
        let known = Known::of(name.as_bytes());
        let Inner { added, places, .. } = self.inner();
        let begin = added.len();
        write::field(added, name.as_bytes(), value);
        let (colon, end) = (begin + name.len(), added.len());
        places.push(Place {
            name: (place(begin), place(colon)),
            value: (place(colon + 2), place(end - 2)),
            end: place(end),
            known,
            added: true,
        });
    }

    /// Writes the lines of the fields of which it is true, in their order. What stands together is copied together.
    pub fn write(&self, out: &mut Vec<u8>, mut goes: impl FnMut(Known, &[u8], &[u8]) -> bool) {
        let (inner, places) = self.placed();
        let mut run: Option<Place> = None;
        for place in places {
            if !goes(place.known, inner.name(place), inner.value(place)) {
                continue;
            }
            match &mut run {
                Some(run) if run.added == place.added && run.end == place.name.0 => run.end = place.end,
                run => {
                    if let Some(run) = run.replace(*place) {
                        out.extend_from_slice(slice(inner.bytes(&run), (run.name.0, run.end)));
                    }
                }
            }
        }
        if let Some(run) = run {
            out.extend_from_slice(slice(inner.bytes(&run), (run.name.0, run.end)));
        }
    }

    /// Puts a field in the place of those of its name.
    pub fn set(&mut self, name: &str, value: &[u8]) {
        if self.contains(name) {
            self.remove(name);
        }
        self.push(name, value);
    }

    pub fn remove(&mut self, name: &str) {
        self.retain(|_, other, _| !other.eq_ignore_ascii_case(name.as_bytes()));
    }

    /// Keeps the fields of which it is true.
    pub fn retain(&mut self, mut keeps: impl FnMut(Known, &[u8], &[u8]) -> bool) {
        let Some(inner) = &mut self.0 else { return };
        let Inner { arrived, added, places } = &mut **inner;
        places.retain(|place| {
            let bytes = if place.added { &added[..] } else { &arrived[..] };
            keeps(place.known, slice(bytes, place.name), slice(bytes, place.value))
        });
    }

    /// As the map that other libraries want. Fields that it cannot take are left out.
    pub fn to_map(&self) -> HeaderMap {
        let mut map = HeaderMap::with_capacity(self.len());
        for (name, value) in self.iter() {
            if let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name), HeaderValue::from_bytes(value)) {
                map.append(name, value);
            }
        }
        map
    }
}

impl From<&HeaderMap> for Fields {
    fn from(map: &HeaderMap) -> Self {
        let mut fields = Self::new();
        for (name, value) in map {
            fields.push(name.as_str(), value.as_bytes());
        }
        fields
    }
}

impl PartialEq for Fields {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<N: AsRef<str>, V: AsRef<[u8]>> FromIterator<(N, V)> for Fields {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(pairs: I) -> Self {
        let mut fields = Self::new();
        for (name, value) in pairs {
            fields.push(name.as_ref(), value.as_ref());
        }
        fields
    }
}

pub(crate) fn place(offset: usize) -> u32 {
    u32::try_from(offset).unwrap_or(u32::MAX)
}

fn slice(bytes: &[u8], (begin, end): (u32, u32)) -> &[u8] {
    bytes.get(begin as usize..end as usize).unwrap_or_default()
}

/// Whether a list of tokens, such as `connection`, has that one, in any case.
pub fn has_token<'a>(mut values: impl Iterator<Item = &'a [u8]>, token: &str) -> bool {
    values.any(|value| {
        let mut tokens = value.split(|byte| *byte == b',');
        tokens.any(|one| one.trim_ascii().eq_ignore_ascii_case(token.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields() -> Fields {
        [("Host", "shop"), ("X-Partner", "acme"), ("x-partner", "beta")].into_iter().collect()
    }

    #[test]
    fn a_field_is_found_in_any_case_and_the_first_of_several_first() {
        let fields = fields();
        assert_eq!(fields.get("x-partner"), Some(&b"acme"[..]));
        assert_eq!(fields.get_all("X-PARTNER").count(), 2);
        assert_eq!(fields.get_known(Known::Host), Some(&b"shop"[..]));
        assert_eq!(fields.get("partner"), None);
    }

    #[test]
    fn what_is_set_takes_the_place_of_all_of_its_name_and_goes_last() {
        let mut fields = fields();
        fields.set("x-partner", b"gamma");
        fields.remove("HOST");
        assert_eq!(fields.iter().collect::<Vec<_>>(), [(&b"x-partner"[..], &b"gamma"[..])]);
    }

    #[test]
    fn nothing_that_ends_a_line_can_be_added() {
        let mut fields = Fields::new();
        for value in ["a\r\nb: c", "a\nb", "a\0b", "a\x7fb"] {
            fields.push("x-a", value.as_bytes());
        }
        assert!(fields.is_empty());
        fields.push("x-a", "tab\there, \u{e4}".as_bytes());
        assert_eq!(fields.len(), 1);
    }

    #[test]
    fn lines_are_written_as_they_came_with_what_was_added_behind() {
        use bytes::BytesMut;

        let text = "GET / HTTP/1.1\r\nHost:shop\r\nX-A:  1 \r\nX-B: 2\r\nX-C: 3\r\n\r\n";
        let read = crate::RequestReader::default().read(&mut BytesMut::from(text), 1024);
        let mut fields = read.expect("is HTTP").expect("is whole").fields;
        fields.push("x-d", b"4");
        fields.push("x-e", b"5");
        let check = |without: &[&str], expected: &str| {
            let mut out = Vec::new();
            fields.write(&mut out, |_, name, _| !without.iter().any(|other| name == other.as_bytes()));
            assert_eq!(String::from_utf8_lossy(&out), expected);
        };
        check(&[], "Host:shop\r\nX-A:  1 \r\nX-B: 2\r\nX-C: 3\r\nx-d: 4\r\nx-e: 5\r\n");
        check(&["Host", "X-B", "x-d"], "X-A:  1 \r\nX-C: 3\r\nx-e: 5\r\n");
        check(&["Host", "X-A", "X-B", "X-C", "x-d", "x-e"], "");
        fields.retain(|_, name, _| name != b"X-A");
        let mut out = Vec::new();
        fields.write(&mut out, |_, _, _| true);
        assert_eq!(String::from_utf8_lossy(&out), "Host:shop\r\nX-B: 2\r\nX-C: 3\r\nx-d: 4\r\nx-e: 5\r\n");
    }

    #[test]
    fn a_list_has_its_tokens_in_any_case() {
        let fields: Fields =
            [("connection", "keep-alive , Close"), ("connection", "x")].into_iter().collect();
        let check = |token, expected| {
            assert_eq!(has_token(fields.all_known(Known::Connection), token), expected, "{token}");
        };
        check("close", true);
        check("X", true);
        check("keep", false);
    }

    #[test]
    fn a_map_and_back_is_the_same_in_small_letters() {
        let fields = fields();
        let back = Fields::from(&fields.to_map());
        let small = [("host", "shop"), ("x-partner", "acme"), ("x-partner", "beta")];
        assert_eq!(back, small.into_iter().collect());
    }
}
