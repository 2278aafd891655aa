//! Validates received header lists as RFC 9113, section 8 requires, and stores them: [`Fields`].

use std::fmt;

/// Meaning of a field name in HTTP/2. It is stored with each entry of a compression table, so that a name is
/// classified only once and not in each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// Field without a special meaning.
    Regular,
    /// One of the pseudo-header fields that HTTP/2 defines.
    Pseudo(Pseudo),
    /// `te`, whose only allowed value is `trailers`.
    Te,
    /// The field `content-length`.
    ContentLength,
    /// Name that must not occur in HTTP/2: malformed, specific to an HTTP/1 connection, or an unknown
    /// pseudo-header field.
    Forbidden,
}

/// Pseudo-header fields (RFC 9113, sections 8.3.1 and 8.3.2). The discriminant of a variant is its index
/// in `Fields::pseudo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pseudo {
    Method = 0,
    Scheme = 1,
    Authority = 2,
    Path = 3,
    Status = 4,
}

const PSEUDOS: usize = 5;

impl Class {
    pub(crate) const fn of(name: &[u8]) -> Class {
        match name {
            b":method" => Class::Pseudo(Pseudo::Method),
            b":scheme" => Class::Pseudo(Pseudo::Scheme),
            b":authority" => Class::Pseudo(Pseudo::Authority),
            b":path" => Class::Pseudo(Pseudo::Path),
            b":status" => Class::Pseudo(Pseudo::Status),
            b"te" => Class::Te,
            b"content-length" => Class::ContentLength,
            b"connection" | b"proxy-connection" | b"keep-alive" | b"transfer-encoding" | b"upgrade" => {
                Class::Forbidden
            }
            _ if is_name(name) => Class::Regular,
            _ => Class::Forbidden,
        }
    }
}

/// Allowed characters of field names: those of a token (RFC 9110, section 5.6.2) without capital letters.
const NAME: [bool; 256] = {
    let allowed = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz";
    let mut table = [false; 256];
    let mut at = 0;
    while at < allowed.len() {
        table[allowed[at] as usize] = true;
        at += 1;
    }
    table
};

/// Returns true if HTTP/2 allows the name for a regular field (RFC 9113, section 8.2.1); false for
/// pseudo-header fields.
pub(crate) const fn is_name(name: &[u8]) -> bool {
    let mut at = 0;
    while at < name.len() {
        if !NAME[name[at] as usize] {
            return false;
        }
        at += 1;
    }
    !name.is_empty()
}

/// Returns true if this end may send a field with this value: it has no control characters except tabs, and
/// no white space at either end (RFC 9113, section 8.2.1; RFC 9110, section 5.5).
pub(crate) fn is_value(value: &[u8]) -> bool {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    is_taken_value(value) && !value.first().is_some_and(is_blank) && !value.last().is_some_and(is_blank)
}

/// Returns true if a received value is accepted: it has no control characters except tabs. White space at
/// either end is accepted and kept, as in grpc-go and `h2`: grpc-go sends such values, and if they were
/// refused, calls would fail, and error messages would be lost.
pub(crate) fn is_taken_value(value: &[u8]) -> bool {
    value.iter().all(|byte| *byte >= b' ' && *byte != 0x7f || *byte == b'\t')
}

/// Purpose of a header list, which determines the pseudo-header fields that it must and must not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Request,
    Response,
    Trailers,
}

/// End offsets of a field's name and value in [`Fields::text`]. The name begins where the value of the
/// previous field ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    name_end: u32,
    value_end: u32,
}

/// Received header list: pseudo-header fields first, then the others in order of arrival. It is well formed:
/// names are lower case, values have no control characters, and the pseudo-header fields are complete. Values
/// may begin or end with white space.
///
/// One buffer holds all names and values, so a list takes only two allocations, however long it is.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Fields {
    text: Vec<u8>,
    spans: Vec<Span>,
    /// For each pseudo-header field, in the order of [`Pseudo`], its one-based index in `spans`; 0 if the
    /// field is absent.
    pseudo: [u8; PSEUDOS],
    content_length: Option<u64>,
}

impl Fields {
    /// Returns all fields in order, as name and value.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.spans.len()).map(|at| self.at(at))
    }

    /// Returns all fields except pseudo-header fields, as name and value.
    pub fn regular(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let pseudos = self.pseudo.iter().filter(|place| **place > 0).count();
        (pseudos..self.spans.len()).map(|at| self.at(at))
    }

    /// Returns the number of fields, including pseudo-header fields.
    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Returns true if there is no field.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// Returns the heap memory of the list in bytes.
    pub fn heap_bytes(&self) -> usize {
        self.text.capacity() + self.spans.capacity() * size_of::<Span>()
    }

    /// Returns the first value of a regular field; the name must be in lower case.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.regular().find(|(its, _)| *its == name).map(|(_, value)| value)
    }

    /// Returns `:method`; empty in responses and trailers.
    pub fn method(&self) -> &[u8] {
        self.pseudo(Pseudo::Method).unwrap_or_default()
    }

    /// Returns `:path`; empty in responses, in trailers and for CONNECT.
    pub fn path(&self) -> &[u8] {
        self.pseudo(Pseudo::Path).unwrap_or_default()
    }

    /// Returns `:scheme`, if present.
    pub fn scheme(&self) -> Option<&[u8]> {
        self.pseudo(Pseudo::Scheme)
    }

    /// Returns `:authority`, if present.
    pub fn authority(&self) -> Option<&[u8]> {
        self.pseudo(Pseudo::Authority)
    }

    /// Returns the number in `:status`; `None` in requests and trailers.
    pub fn status(&self) -> Option<u16> {
        let digits = self.pseudo(Pseudo::Status)?;
        Some(digits.iter().fold(0, |number, digit| number * 10 + u16::from(digit - b'0')))
    }

    /// Returns the number in `content-length`, which is in bytes, if present.
    pub fn content_length(&self) -> Option<u64> {
        self.content_length
    }

    fn pseudo(&self, which: Pseudo) -> Option<&[u8]> {
        let place = usize::from(self.pseudo[which as usize]).checked_sub(1)?;
        Some(self.at(place).1)
    }

    fn at(&self, at: usize) -> (&[u8], &[u8]) {
        let start = if at == 0 { 0 } else { self.spans[at - 1].value_end as usize };
        let Span { name_end, value_end } = self.spans[at];
        let (name_end, value_end) = (name_end as usize, value_end as usize);
        (&self.text[start..name_end], &self.text[name_end..value_end])
    }
}

impl fmt::Debug for Fields {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |text: &[u8]| String::from_utf8_lossy(text).into_owned();
        f.debug_map().entries(self.iter().map(|(name, value)| (shown(name), shown(value)))).finish()
    }
}

/// Reason why a header list was refused. It ends the stream, but not the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The list is malformed (RFC 9113, section 8.1.1).
    Malformed(&'static str),
    /// The list is larger than [`crate::Options::header_list_bytes_max`].
    TooLarge,
}

/// Collects a header list while its block is decoded. Once a list is refused, nothing more is stored, but its
/// block must still be decoded to the end, because the compression tables of both ends must stay equal.
pub(crate) struct Gathering {
    fields: Fields,
    /// Size of the list as RFC 9113, section 6.5.2 counts it: names, values, and 32 bytes per field.
    bytes: usize,
    bytes_max: usize,
    seen_regular: bool,
    refused: Option<Refused>,
}

impl Gathering {
    pub(crate) fn new(bytes_max: usize) -> Gathering {
        Gathering { fields: Fields::default(), bytes: 0, bytes_max, seen_regular: false, refused: None }
    }

    /// Creates a collector that stores nothing and refuses each list, for the block of a stream that has
    /// ended.
    pub(crate) fn of_nothing(bytes_max: usize) -> Gathering {
        Gathering { refused: Some(Refused::Malformed("the stream is over")), ..Gathering::new(bytes_max) }
    }

    /// Returns true if the list is larger than `times` times the maximum size that is accepted.
    pub(crate) fn exceeds(&self, times: usize) -> bool {
        self.bytes > self.bytes_max.saturating_mul(times)
    }

    /// Reserves memory for a list of `bytes` bytes, but at most the maximum size that is accepted, and
    /// `fields` fields.
    pub(crate) fn reserve(&mut self, bytes: usize, fields: usize) {
        self.fields.text.reserve(bytes.min(self.bytes_max));
        self.fields.spans.reserve(fields);
    }

    pub(crate) fn add(&mut self, name: &[u8], value: &[u8], class: Class, value_is_good: bool) {
        // The addition saturates, because a short block can reference long fields many times.
        self.bytes = self.bytes.saturating_add(name.len() + value.len() + 32);
        if self.refused.is_some() {
            return;
        }
        if self.bytes > self.bytes_max {
            return self.refuse(Refused::TooLarge);
        }
        if !value_is_good {
            return self.refuse(Refused::Malformed("a field value has characters that are not allowed"));
        }
        match class {
            Class::Regular => self.seen_regular = true,
            Class::Pseudo(which) => {
                if self.seen_regular {
                    return self.refuse(Refused::Malformed("a pseudo-header field follows a regular one"));
                }
                let place = &mut self.fields.pseudo[which as usize];
                if *place != 0 {
                    return self.refuse(Refused::Malformed("a pseudo-header field occurs twice"));
                }
                // The cast is lossless, because this is one of at most five pseudo-header fields, which
                // precede all other fields.
                *place = self.fields.spans.len() as u8 + 1;
            }
            Class::Te => {
                self.seen_regular = true;
                if value != b"trailers" {
                    return self.refuse(Refused::Malformed("TE says something else than trailers"));
                }
            }
            Class::ContentLength => {
                self.seen_regular = true;
                let length = decimal(value);
                if length.is_none() || self.fields.content_length.is_some_and(|known| Some(known) != length) {
                    return self.refuse(Refused::Malformed("content-length is no number, or two"));
                }
                self.fields.content_length = length;
            }
            Class::Forbidden => {
                return self.refuse(Refused::Malformed("a field name is not allowed in HTTP/2"));
            }
        }
        let text = &mut self.fields.text;
        text.extend_from_slice(name);
        let name_end = text.len() as u32;
        text.extend_from_slice(value);
        self.fields.spans.push(Span { name_end, value_end: text.len() as u32 });
    }

    #[cold]
    fn refuse(&mut self, why: Refused) {
        self.refused = Some(why);
        self.fields = Fields::default();
    }

    /// Returns the list, if it was not refused before and has the pseudo-header fields that its purpose
    /// requires.
    pub(crate) fn finish(self, what_for: Use) -> Result<Fields, Refused> {
        if let Some(refused) = self.refused {
            return Err(refused);
        }
        let fields = self.fields;
        let has = |which: Pseudo| fields.pseudo[which as usize] != 0;
        let wrong = match what_for {
            Use::Trailers => fields.pseudo.iter().any(|place| *place != 0),
            Use::Response => {
                let of_request = [Pseudo::Method, Pseudo::Scheme, Pseudo::Authority, Pseudo::Path];
                let status = fields.pseudo(Pseudo::Status).unwrap_or_default();
                of_request.into_iter().any(has) || status.len() != 3 || !status.iter().all(u8::is_ascii_digit)
            }
            Use::Request if has(Pseudo::Status) => true,
            // CONNECT has `:authority` as its target, and neither `:scheme` nor `:path` (RFC 9113, section
            // 8.5).
            Use::Request if fields.method() == b"CONNECT" => {
                has(Pseudo::Scheme) || has(Pseudo::Path) || fields.authority().is_none_or(<[u8]>::is_empty)
            }
            Use::Request => {
                fields.method().is_empty()
                    || fields.scheme().is_none_or(<[u8]>::is_empty)
                    || fields.path().is_empty()
            }
        };
        if wrong {
            return Err(Refused::Malformed("the pseudo-header fields are not those of the message"));
        }
        Ok(fields)
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    digits
        .iter()
        .try_fold(0_u64, |number, digit| number.checked_mul(10)?.checked_add(u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gathered(list: &[(&str, &str)], what_for: Use) -> Result<Fields, Refused> {
        let mut gathering = Gathering::new(1024);
        for (name, value) in list {
            let (name, value) = (name.as_bytes(), value.as_bytes());
            gathering.add(name, value, Class::of(name), is_taken_value(value));
        }
        gathering.finish(what_for)
    }

    const GET: [(&str, &str); 3] = [(":method", "GET"), (":scheme", "http"), (":path", "/")];

    fn get_with(more: &[(&str, &str)]) -> Result<Fields, Refused> {
        gathered(&[&GET, more].concat(), Use::Request)
    }

    #[test]
    fn what_a_request_says_is_read_back() {
        let fields =
            get_with(&[(":authority", "a:1"), ("x", "1"), ("content-length", "12"), ("x", "2")]).unwrap();
        assert_eq!((fields.method(), fields.path()), (&b"GET"[..], &b"/"[..]));
        assert_eq!((fields.scheme(), fields.authority()), (Some(&b"http"[..]), Some(&b"a:1"[..])));
        assert_eq!((fields.get(b"x"), fields.get(b"y")), (Some(&b"1"[..]), None));
        assert_eq!((fields.status(), fields.content_length()), (None, Some(12)));
        let regular: Vec<_> = fields.regular().collect();
        assert_eq!(regular, [(&b"x"[..], &b"1"[..]), (b"content-length", b"12"), (b"x", b"2")]);
        assert_eq!((fields.len(), fields.iter().count()), (7, 7));
        let response = gathered(&[(":status", "204"), ("server", "x")], Use::Response).unwrap();
        assert_eq!(response.status(), Some(204));
    }

    #[test]
    fn malformed_lists_are_refused() {
        let cases: &[&[(&str, &str)]] = &[
            &[("X-capital", "1")],
            &[("", "1")],
            &[("with space", "1")],
            &[("x", "line\r\nbreak")],
            &[("x", "nul\0")],
            &[("content-length", "1 ")],
            &[("te", " trailers")],
            &[("connection", "close")],
            &[("transfer-encoding", "chunked")],
            &[("te", "gzip")],
            &[(":unknown", "1")],
            &[(":status", "200")],
            &[(":path", "/again")],
            &[("x", "1"), (":authority", "late")],
            &[("content-length", "1"), ("content-length", "2")],
            &[("content-length", "-1")],
            &[("content-length", "99999999999999999999")],
        ];
        for more in cases {
            assert!(matches!(get_with(more), Err(Refused::Malformed(_))), "{more:?}");
        }
        for (at, (name, _)) in GET.into_iter().enumerate() {
            let mut list = GET.to_vec();
            list.remove(at);
            assert!(gathered(&list, Use::Request).is_err());
            list.insert(at, (name, ""));
            assert!(gathered(&list, Use::Request).is_err());
        }
        // grpc-go sends such values for messages that begin or end with a space.
        let blanks = get_with(&[("grpc-message", " a text "), ("x", "\t")]).unwrap();
        assert_eq!(
            (blanks.get(b"grpc-message"), blanks.get(b"x")),
            (Some(&b" a text "[..]), Some(&b"\t"[..]))
        );
        assert!(get_with(&[("te", "trailers"), ("content-length", "7"), ("content-length", "7")]).is_ok());
        assert!(gathered(&[(":method", "CONNECT"), (":authority", "a:1")], Use::Request).is_ok());
        assert!(gathered(&[(":method", "CONNECT")], Use::Request).is_err());
        for status in ["20", "2000", "abc", ""] {
            assert!(gathered(&[(":status", status)], Use::Response).is_err());
        }
        assert!(gathered(&[(":status", "200"), (":path", "/")], Use::Response).is_err());
        assert!(gathered(&[("grpc-status", "0")], Use::Response).is_err());
        assert!(gathered(&[("grpc-status", "0")], Use::Trailers).is_ok());
        assert!(gathered(&[(":status", "200")], Use::Trailers).is_err());
    }

    #[test]
    fn a_list_over_the_bound_holds_nothing() {
        let mut gathering = Gathering::new(1000);
        for _ in 0..1_000_000 {
            gathering.add(b"name", &[b'v'; 64], Class::Regular, true);
            assert!(gathering.fields.heap_bytes() < 4_000);
        }
        assert_eq!(gathering.finish(Use::Trailers), Err(Refused::TooLarge));
    }
}
