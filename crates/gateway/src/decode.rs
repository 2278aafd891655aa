//! Converts JSON to the bytes of a protobuf message, with the rules and errors of Go's `protojson`:
//! [`decode`].

use std::borrow::Cow;

use api::descriptor::{Field, Kind, Message};
use api::{Code, Status};
use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};

use crate::quote;
use crate::scan;

/// Maximum nesting depth of messages. Deeper ones are refused. The limit is a few levels above the depth of
/// the deepest transaction that the server accepts (COMPAT-1).
pub const DEPTH_MAX: usize = 160;

/// Maximum nesting depth of a value that is skipped because its field is unknown. A deeper one is refused.
const SKIPPED_DEPTH_MAX: usize = 9_000;

/// Reason why a body is not a valid request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The body is not valid JSON, or does not fit the message. Contains the error message of Go's libraries.
    Invalid(String),
    /// Messages are nested deeper than [`DEPTH_MAX`].
    TooDeep,
    /// The lists of a transaction have too many elements in total.
    TooMany,
    /// The lists of another message have too many elements in total. Contains the name of the list at which
    /// the limit was exceeded.
    TooManyValues(&'static str),
}

impl Refused {
    /// Returns the gRPC status with which the call ends.
    pub fn status(self) -> Status {
        match self {
            Refused::Invalid(why) => Status::with(Code::InvalidArgument, why),
            // The message is that of a transaction, because only transactions can be nested or have lists of
            // messages.
            Refused::TooDeep | Refused::TooMany => api::error::TOO_MANY_OPS,
            Refused::TooManyValues(field) => {
                Status::with(Code::InvalidArgument, format!("mainstay: too many values of {field}"))
            }
        }
    }
}

/// Converts the first JSON value in `body` to the bytes of a message. An empty body gives an empty message.
/// Bytes after the value are ignored. All lists together may have at most `elements_max` elements. This limit
/// is needed because the whole body is decoded in one step, and a million elements would delay other calls.
///
/// # Errors
///
/// See [`Refused`].
pub fn decode(message: &'static Message, body: &[u8], elements_max: usize) -> Result<Vec<u8>, Refused> {
    let body = scan::without_space_before(body);
    if body.first() != Some(&b'{') {
        return match scan::first_value(body) {
            Ok(Some(value)) => decode_value(message, value, elements_max),
            Ok(None) => Ok(Vec::new()),
            Err(why) => Err(Refused::Invalid(why)),
        };
    }
    // Parse the body without checking the syntax of the whole value first, because most bodies are valid.
    // Check the syntax only after an error, because a syntax error takes precedence, as in Go. The reader may
    // have examined bytes after the value, while it looked for the second half of a surrogate pair. Go does
    // not see these bytes, and reports an unexpected end in that case.
    let mut reader = Reader::new(body, elements_max);
    match reader.whole(message) {
        Err(Refused::Invalid(why)) => Err(match scan::first_value(body) {
            Ok(Some(value)) if reader.looked_at > value.len() => reader.end(),
            Ok(_) => Refused::Invalid(why),
            Err(why) => Refused::Invalid(why),
        }),
        decoded => decoded,
    }
}

/// Converts a value that [`crate::Values`] has returned to the bytes of a message. All lists together may
/// have at most `elements_max` elements.
///
/// # Errors
///
/// See [`Refused`].
pub fn decode_value(
    message: &'static Message,
    value: &[u8],
    elements_max: usize,
) -> Result<Vec<u8>, Refused> {
    Reader::new(value, elements_max).whole(message)
}

/// A JSON token. Names of fields are strings, too.
enum Token<'a> {
    Null,
    Bool(bool),
    Number,
    String(Cow<'a, str>),
    /// A bracket or a comma.
    Mark,
}

struct Reader<'a> {
    json: &'a [u8],
    at: usize,
    /// Number of elements that the lists in the rest of the message may have in total.
    elements_left: usize,
    /// Offset after the last byte that was examined for the second half of a surrogate pair.
    looked_at: usize,
}

type Result_<T> = Result<T, Refused>;

impl<'a> Reader<'a> {
    fn new(json: &'a [u8], elements_max: usize) -> Reader<'a> {
        Reader { json, at: 0, elements_left: elements_max, looked_at: 0 }
    }

    /// Converts the next value to the bytes of a message.
    fn whole(&mut self, message: &'static Message) -> Result_<Vec<u8>> {
        let mut out = Vec::with_capacity(self.json.len());
        self.message(message, &mut out, 0)?;
        // Free unused capacity, because the call may keep the bytes for a long time, and JSON may be much
        // longer than the message.
        if out.capacity() / 2 > out.len() {
            out.shrink_to_fit();
        }
        Ok(out)
    }

    fn message(&mut self, message: &'static Message, out: &mut Vec<u8>, depth: usize) -> Result_<()> {
        if depth >= DEPTH_MAX {
            return Err(Refused::TooDeep);
        }
        if self.peek() != Some(b'{') {
            return Err(self.unexpected());
        }
        self.at += 1;
        let (mut seen, mut oneofs) = (0u64, Oneofs::default());
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.unexpected());
            }
            let name_at = self.at;
            let name = self.string()?;
            let raw = name_at..self.at;
            self.expect(b':')?;
            let fields = message.fields;
            let found = fields.iter().position(|field| field.json_name == name);
            match found.or_else(|| fields.iter().position(|field| field.name == name)) {
                None => self.skip()?,
                Some(index) => {
                    if seen & (1 << index) != 0 {
                        return Err(self.wrong(name_at, format!("duplicate field {}", self.raw(raw))));
                    }
                    seen |= 1 << index;
                    let field = &fields[index];
                    if self.peek() == Some(b'n') {
                        let at = self.at;
                        if !matches!(self.token()?, Token::Null) {
                            return Err(self.unexpected_at(at));
                        }
                    } else if field.repeated {
                        self.list(field, out, depth)?;
                    } else {
                        if let Some(oneof) = field.oneof
                            && !oneofs.add(oneof)
                        {
                            let raw = self.raw(raw);
                            let text = format!("error parsing {raw}, oneof {oneof} is already set");
                            return Err(self.wrong(name_at, text));
                        }
                        self.value(field, out, depth)?;
                    }
                }
            }
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.unexpected()),
            }
            self.peek();
        }
    }

    fn list(&mut self, field: &'static Field, out: &mut Vec<u8>, depth: usize) -> Result_<()> {
        if self.peek() != Some(b'[') {
            return Err(self.unexpected());
        }
        self.at += 1;
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.elements_left = match (self.elements_left.checked_sub(1), field.kind) {
                (Some(left), _) => left,
                // The message is a transaction, because only transactions have lists of messages.
                (None, Kind::Message(_)) => return Err(Refused::TooMany),
                (None, _) => return Err(Refused::TooManyValues(field.json_name)),
            };
            self.value(field, out, depth)?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(b']') => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.unexpected()),
            }
        }
    }

    /// Decodes one value of a field. A zero value is omitted if it means the same as a missing field in
    /// protobuf.
    fn value(&mut self, field: &'static Field, out: &mut Vec<u8>, depth: usize) -> Result_<()> {
        let keeps_zero = field.repeated || field.oneof.is_some();
        if let Kind::Message(message) = field.kind {
            tag(out, field, 2);
            // Reserve one byte for the length, which is sufficient for most messages. If the length takes
            // more bytes, the message is moved afterwards.
            let length_at = out.len();
            out.push(0);
            self.message(message, out, depth + 1)?;
            let length = (out.len() - length_at - 1) as u64;
            if length < 0x80 {
                out[length_at] = length as u8;
            } else {
                let mut bytes = [0; 10];
                let n = varint(length, &mut bytes);
                out.splice(length_at..=length_at, bytes[..n].iter().copied());
            }
            return Ok(());
        }
        self.peek();
        let at = self.at;
        let token = self.token()?;
        let raw = &self.json[at..self.at];
        let number = match (field.kind, &token) {
            (Kind::Bool, Token::Bool(value)) => Some(u64::from(*value)),
            (Kind::Int32, token) => integer(raw, token).and_then(Integer::as_i32).map(extended),
            (Kind::Int64, token) => integer(raw, token).and_then(Integer::as_i64).map(|n| n as u64),
            (Kind::Uint32, token) => {
                integer(raw, token).and_then(Integer::as_u64).filter(|n| *n <= u64::from(u32::MAX))
            }
            (Kind::Uint64, token) => integer(raw, token).and_then(Integer::as_u64),
            (Kind::Enum(_), Token::Number) => integer(raw, &token).and_then(Integer::as_i32).map(extended),
            (Kind::Enum(each), Token::String(name)) => {
                match each.values.iter().find(|(known, _)| known == name) {
                    Some((_, number)) => Some(extended(*number)),
                    // A value with an unknown name is ignored, like an unknown field.
                    None => return Ok(()),
                }
            }
            (Kind::String, Token::String(text)) => {
                if keeps_zero || !text.is_empty() {
                    tag(out, field, 2);
                    put_varint(text.len() as u64, out);
                    out.extend_from_slice(text.as_bytes());
                }
                return Ok(());
            }
            (Kind::Bytes, Token::String(text)) => {
                if text.is_empty() && !keeps_zero {
                    return Ok(());
                }
                if put_bytes(field, text, out) {
                    return Ok(());
                }
                None
            }
            _ => None,
        };
        let Some(number) = number else {
            let raw = self.raw(at..self.at);
            let text =
                format!("invalid value for {} field {}: {raw}", kind_name(field.kind), field.json_name);
            return Err(self.wrong(at, text));
        };
        if keeps_zero || number != 0 {
            tag(out, field, 0);
            put_varint(number, out);
        }
        Ok(())
    }

    /// Skips a value of any kind, for an unknown field.
    fn skip(&mut self) -> Result_<()> {
        // One element for each object or array around the current position: true for an object.
        let mut open: Vec<bool> = Vec::new();
        loop {
            match self.peek() {
                Some(c @ (b'{' | b'[')) => {
                    self.at += 1;
                    if self.peek() == Some(if c == b'{' { b'}' } else { b']' }) {
                        self.at += 1;
                    } else {
                        open.push(c == b'{');
                        if open.len() > SKIPPED_DEPTH_MAX {
                            return Err(Refused::Invalid("proto: exceeded max recursion depth".to_owned()));
                        }
                        if c == b'{' {
                            self.name()?;
                        }
                        continue;
                    }
                }
                Some(b',' | b':' | b'}' | b']') | None => return Err(self.unexpected()),
                Some(_) => drop(self.token()?),
            }
            // A value has ended. Skip the ends of the objects and arrays that end with it.
            loop {
                let Some(is_object) = open.last().copied() else { return Ok(()) };
                match (self.peek(), is_object) {
                    (Some(b','), is_object) => {
                        self.at += 1;
                        if is_object {
                            self.name()?;
                        }
                        break;
                    }
                    (Some(b'}'), true) | (Some(b']'), false) => {
                        self.at += 1;
                        open.pop();
                    }
                    _ => return Err(self.unexpected()),
                }
            }
        }
    }

    fn name(&mut self) -> Result_<()> {
        if self.peek() != Some(b'"') {
            return Err(self.unexpected());
        }
        self.string()?;
        self.expect(b':')
    }

    /// Returns the next byte that is not white space, without consuming it.
    fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = *self.json.get(self.at)?;
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    fn expect(&mut self, mark: u8) -> Result_<()> {
        if self.peek() != Some(mark) {
            return Err(self.unexpected());
        }
        self.at += 1;
        Ok(())
    }

    /// Consumes the next token.
    fn token(&mut self) -> Result_<Token<'a>> {
        let Some(first) = self.peek() else { return Err(self.end()) };
        let rest = &self.json[self.at..];
        let literal = |word: &[u8]| {
            rest.starts_with(word) && !rest.get(word.len()).is_some_and(|byte| continues_word(*byte))
        };
        let (token, length) = match first {
            b'"' => return self.string().map(Token::String),
            b'n' if literal(b"null") => (Token::Null, 4),
            b't' if literal(b"true") => (Token::Bool(true), 4),
            b'f' if literal(b"false") => (Token::Bool(false), 5),
            b'{' | b'}' | b'[' | b']' | b',' => (Token::Mark, 1),
            b'-' | b'0'..=b'9' => match number(rest).filter(|number| number.is_json()) {
                Some(number) => (Token::Number, number.length),
                None => return Err(self.syntax(self.at, "invalid value".to_owned())),
            },
            _ => return Err(self.syntax(self.at, "invalid value".to_owned())),
        };
        self.at += length;
        Ok(token)
    }

    /// Consumes a string.
    fn string(&mut self) -> Result_<Cow<'a, str>> {
        let start = self.at + 1;
        let body = &self.json[start..];
        let end = body.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..b' '));
        let Some(end) = end else { return Err(self.in_string(body)) };
        if body[end] == b'"'
            && let Ok(text) = std::str::from_utf8(&body[..end])
        {
            self.at = start + end + 1;
            return Ok(Cow::Borrowed(text));
        }
        self.escaped(body).map(Cow::Owned)
    }

    /// Returns the error of a string without an end.
    fn in_string(&self, body: &[u8]) -> Refused {
        match std::str::from_utf8(body) {
            Ok(_) => self.end(),
            Err(_) => self.syntax(self.at, "invalid UTF-8 in string".to_owned()),
        }
    }

    /// Consumes a string that contains escapes or errors. An error has the position of the string's
    /// beginning, as in Go.
    fn escaped(&mut self, body: &'a [u8]) -> Result_<String> {
        let (mut out, mut rest) = (String::new(), body);
        loop {
            let plain =
                rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | 0..b' ')).unwrap_or(rest.len());
            match std::str::from_utf8(&rest[..plain]) {
                Ok(text) => out.push_str(text),
                Err(_) => return Err(self.syntax(self.at, "invalid UTF-8 in string".to_owned())),
            }
            rest = &rest[plain..];
            let (taken, c) = match *rest {
                [] | [b'\\'] => return Err(self.end()),
                [b'"', ..] => {
                    self.at += 1 + (body.len() - rest.len()) + 1;
                    return Ok(out);
                }
                [b'\\', escape, ..] => match escape {
                    b'"' | b'\\' | b'/' => (2, char::from(escape)),
                    b'b' => (2, '\x08'),
                    b'f' => (2, '\x0c'),
                    b'n' => (2, '\n'),
                    b'r' => (2, '\r'),
                    b't' => (2, '\t'),
                    b'u' => self.unicode(rest)?,
                    _ => return Err(self.bad_escape(&rest[..2])),
                },
                [c, ..] => {
                    let shown = quote::bytes(&[c]).replace('"', "'");
                    return Err(self.syntax(self.at, format!("invalid character {shown} in string")));
                }
            };
            out.push(c);
            rest = &rest[taken..];
        }
    }

    /// Decodes an escape `\uXXXX`, or two of them that form a surrogate pair. Returns the number of bytes of
    /// the escapes and the character.
    fn unicode(&mut self, rest: &[u8]) -> Result_<(usize, char)> {
        let code = |escape: &[u8]| {
            let digits = escape.get(2..6)?;
            digits.iter().try_fold(0u32, |code, digit| Some(code << 4 | char::from(*digit).to_digit(16)?))
        };
        if rest.len() < 6 {
            return Err(self.end());
        }
        let Some(first) = code(rest) else { return Err(self.bad_escape(&rest[..6])) };
        if let Some(c) = char::from_u32(first) {
            return Ok((6, c));
        }
        let rest = &rest[6..];
        if rest.len() < 6 {
            return Err(self.end());
        }
        self.looked_at = self.json.len() - rest.len() + 6;
        let pair = match code(rest) {
            Some(second)
                if rest.starts_with(b"\\u") && first < 0xdc00 && (0xdc00..0xe000).contains(&second) =>
            {
                char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00))
            }
            _ => None,
        };
        pair.map(|c| (12, c)).ok_or_else(|| self.bad_escape(&rest[..6]))
    }

    fn bad_escape(&self, escape: &[u8]) -> Refused {
        self.syntax(self.at, format!("invalid escape code {} in string", quote::bytes(escape)))
    }

    fn end(&self) -> Refused {
        Refused::Invalid("proto: unexpected EOF".to_owned())
    }

    /// Returns the error for a token that is not allowed at this position.
    fn unexpected(&mut self) -> Refused {
        self.peek();
        self.unexpected_at(self.at)
    }

    fn unexpected_at(&mut self, at: usize) -> Refused {
        self.at = at;
        if let Err(wrong) = self.token() {
            return wrong;
        }
        let raw = self.raw(at..self.at);
        self.syntax(at, format!("unexpected token {raw}"))
    }

    fn raw(&self, range: std::ops::Range<usize>) -> Cow<'a, str> {
        String::from_utf8_lossy(&self.json[range])
    }

    fn syntax(&self, at: usize, text: String) -> Refused {
        let (line, column) = self.position(at);
        Refused::Invalid(format!("proto: syntax error (line {line}:{column}): {text}"))
    }

    fn wrong(&self, at: usize, text: String) -> Refused {
        let (line, column) = self.position(at);
        Refused::Invalid(format!("proto: (line {line}:{column}): {text}"))
    }

    fn position(&self, at: usize) -> (usize, usize) {
        let before = &self.json[..at];
        let line_start = before.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        let characters =
            |chunk: std::str::Utf8Chunk<'_>| chunk.valid().chars().count() + chunk.invalid().len();
        (line, before[line_start..].utf8_chunks().map(characters).sum::<usize>() + 1)
    }
}

/// The oneofs of a message for which a value was found, so that a second value is refused. No message has
/// more than four.
#[derive(Default)]
struct Oneofs([Option<&'static str>; 4]);

impl Oneofs {
    /// Records that this oneof has a value. Returns false if it already had one.
    fn add(&mut self, oneof: &'static str) -> bool {
        for place in &mut self.0 {
            match place {
                Some(known) if *known == oneof => return false,
                Some(_) => {}
                None => {
                    *place = Some(oneof);
                    return true;
                }
            }
        }
        unreachable!("a message with more than {} oneofs", self.0.len())
    }
}

fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::Bool => "bool",
        Kind::Int32 => "int32",
        Kind::Int64 => "int64",
        Kind::Uint32 => "uint32",
        Kind::Uint64 => "uint64",
        Kind::String => "string",
        Kind::Bytes => "bytes",
        Kind::Enum(_) => "enum",
        Kind::Message(_) => "message",
    }
}

/// Converts a 32-bit number for the varint encoding of protobuf, which extends the sign to 64 bits.
fn extended(number: i32) -> u64 {
    i64::from(number) as u64
}

fn tag(out: &mut Vec<u8>, field: &Field, wire_type: u32) {
    put_varint(u64::from(field.number << 3 | wire_type), out);
}

fn put_varint(value: u64, out: &mut Vec<u8>) {
    let mut bytes = [0; 10];
    let n = varint(value, &mut bytes);
    out.extend_from_slice(&bytes[..n]);
}

fn varint(mut value: u64, bytes: &mut [u8; 10]) -> usize {
    let mut n = 0;
    loop {
        if value < 0x80 {
            bytes[n] = value as u8;
            return n + 1;
        }
        bytes[n] = value as u8 | 0x80;
        value >>= 7;
        n += 1;
    }
}

const CONFIG: GeneralPurposeConfig = GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true);
const PADDED: GeneralPurposeConfig = CONFIG.with_decode_padding_mode(DecodePaddingMode::RequireCanonical);
const BARE: GeneralPurposeConfig = CONFIG.with_decode_padding_mode(DecodePaddingMode::RequireNone);
static ENGINES: [[GeneralPurpose; 2]; 2] = [
    [GeneralPurpose::new(&alphabet::STANDARD, PADDED), GeneralPurpose::new(&alphabet::STANDARD, BARE)],
    [GeneralPurpose::new(&alphabet::URL_SAFE, PADDED), GeneralPurpose::new(&alphabet::URL_SAFE, BARE)],
];

/// Appends a bytes field, whose value is given in base64. Accepts the same variants of base64 as Go. Returns
/// false and leaves `out` unchanged if `text` is not valid.
fn put_bytes(field: &Field, text: &str, out: &mut Vec<u8>) -> bool {
    let is_url = text.bytes().any(|byte| matches!(byte, b'-' | b'_'));
    let engine = &ENGINES[usize::from(is_url)][usize::from(!text.len().is_multiple_of(4))];
    // Remove line ends, because Go ignores them in base64.
    let is_broken = text.bytes().any(|byte| matches!(byte, b'\r' | b'\n'));
    let text = if is_broken { Cow::Owned(text.replace(['\r', '\n'], "")) } else { Cow::Borrowed(text) };
    let padding = text.bytes().rev().take(2).take_while(|byte| *byte == b'=').count();
    let length = text.len().saturating_sub(padding) * 3 / 4;
    let before = out.len();
    tag(out, field, 2);
    put_varint(length as u64, out);
    let start = out.len();
    let is_read = engine.decode_vec(text.as_bytes(), out).is_ok() && out.len() - start == length;
    if !is_read {
        out.truncate(before);
    }
    is_read
}

fn continues_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.' | b'_')
}

/// A number in JSON, split into its parts, which are slices of the JSON.
struct Number<'a> {
    is_negative: bool,
    /// Digits before the point; empty if the only digit is 0.
    whole: &'a [u8],
    fraction: &'a [u8],
    /// Sign and digits of the exponent; `None` without an `e`. There may be no digits, because Go's protobuf
    /// accepts that.
    exponent: Option<&'a [u8]>,
    length: usize,
}

impl Number<'_> {
    /// Returns true if the number is valid JSON.
    fn is_json(&self) -> bool {
        self.exponent.is_none_or(|exponent| exponent.iter().any(u8::is_ascii_digit))
    }
}

/// Parses the number at the beginning of `text`, as Go's protobuf does.
fn number(text: &[u8]) -> Option<Number<'_>> {
    let digits = |from: usize| from + text[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let is_negative = text.first() == Some(&b'-');
    let start = usize::from(is_negative);
    let (whole, mut at) = match text.get(start)? {
        b'0' => (&text[..0], start + 1),
        b'1'..=b'9' => {
            let end = digits(start);
            (&text[start..end], end)
        }
        _ => return None,
    };
    let mut fraction = &text[..0];
    if text.get(at) == Some(&b'.') && text.get(at + 1).is_some_and(u8::is_ascii_digit) {
        let end = digits(at + 1);
        fraction = &text[at + 1..end];
        at = end;
    }
    let mut exponent = None;
    if matches!(text.get(at), Some(b'e' | b'E')) && text.len() - at >= 2 {
        let signed = at + 1 + usize::from(matches!(text.get(at + 1), Some(b'+' | b'-')));
        if signed == text.len() {
            return None;
        }
        let end = digits(signed);
        exponent = Some(&text[at + 1..end]);
        at = end;
    }
    if text.get(at).is_some_and(|byte| continues_word(*byte)) {
        return None;
    }
    Some(Number { is_negative, whole, fraction, exponent, length: at })
}

/// An integer of up to 20 digits.
#[derive(Clone, Copy)]
struct Integer {
    is_negative: bool,
    magnitude: u64,
}

impl Integer {
    fn as_u64(self) -> Option<u64> {
        // As in Go, a negative number is refused. -0 is accepted, because `integer` returns it as 0.
        (!self.is_negative).then_some(self.magnitude)
    }

    fn as_i64(self) -> Option<i64> {
        if self.is_negative {
            0i64.checked_sub_unsigned(self.magnitude)
        } else {
            i64::try_from(self.magnitude).ok()
        }
    }

    fn as_i32(self) -> Option<i32> {
        self.as_i64().and_then(|n| i32::try_from(n).ok())
    }
}

/// Returns the integer that a token contains, which is a number or a string with a number. A number with a
/// fraction or an exponent is accepted if its value is an integer.
fn integer(raw: &[u8], token: &Token<'_>) -> Option<Integer> {
    let text = match token {
        Token::Number => raw,
        // A string with spaces at its beginning or end is refused, as in Go.
        Token::String(text) if text.trim() == text => text.as_bytes(),
        _ => return None,
    };
    let number = number(text)?;
    let fraction_end = number.fraction.iter().rposition(|digit| *digit != b'0').map_or(0, |at| at + 1);
    let fraction = &number.fraction[..fraction_end];
    if number.whole.is_empty() && fraction.is_empty() {
        return Some(Integer { is_negative: false, magnitude: 0 });
    }
    let exponent = match number.exponent {
        None | Some([]) => 0,
        Some(digits) => std::str::from_utf8(digits).ok()?.parse::<i32>().ok()?,
    };
    let mut magnitude = 0u64;
    let mut push = |digit: u8| -> Option<()> {
        magnitude = magnitude.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
        Some(())
    };
    if let Ok(shift) = usize::try_from(exponent) {
        if fraction.len() > shift || number.whole.len() + shift > 20 {
            return None;
        }
        let zeros = std::iter::repeat_n(&b'0', shift - fraction.len());
        number.whole.iter().chain(fraction).chain(zeros).try_for_each(|digit| push(*digit))?;
    } else {
        let cut = usize::try_from(exponent.unsigned_abs()).ok()?;
        let kept = number.whole.len().checked_sub(cut).filter(|_| fraction.is_empty())?;
        if kept == 0 || number.whole[kept..].iter().any(|digit| *digit != b'0') {
            return None;
        }
        number.whole[..kept].iter().try_for_each(|digit| push(*digit))?;
    }
    Some(Integer { is_negative: number.is_negative, magnitude })
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::Rpc;
    use api::descriptor::of;
    use api::etcdserverpb as pb;
    use bytes::Bytes;

    fn read<M: prost::Message + Default>(rpc: Rpc, json: &str) -> Result<M, String> {
        match decode(of(rpc).unwrap().0, json.as_bytes(), 1000) {
            Ok(bytes) => Ok(M::decode(&bytes[..]).expect("what was written can be read")),
            Err(Refused::Invalid(why)) => Err(why),
            Err(Refused::TooDeep) => Err("too deep".to_owned()),
            Err(Refused::TooMany) => Err("too many".to_owned()),
            Err(Refused::TooManyValues(field)) => Err(format!("too many {field}")),
        }
    }

    fn put(json: &str) -> Result<pb::PutRequest, String> {
        read(Rpc::KvPut, json)
    }

    #[test]
    fn fields_have_two_names_and_integers_two_forms() {
        let expected =
            pb::PutRequest { key: "foo".into(), lease: 7, prev_kv: true, ..pb::PutRequest::default() };
        for json in [
            r#"{"key":"Zm9v","lease":7,"prev_kv":true}"#,
            r#"{"key":"Zm9v","lease":"7","prevKv":true}"#,
            " {\n\"lease\" : 7.0e0 , \"prevKv\":true,\"unknown\":[{\"a\":{}},[],\"\\u00e9\",1e5],\"key\":\"Zm9v\"} garbage",
            r#"{"lease":70e-1,"key":"Zm9v","prev_kv":true,"value":null,"ignore_value":false}"#,
            r#"{"\u006bey":"\u005am9v","prev_kv":true,"lease":"7,"}"#,
        ] {
            assert_eq!(put(json), Ok(expected.clone()), "{json}");
        }
        assert_eq!(put(""), Ok(pb::PutRequest::default()));
        assert_eq!(put(" \n"), Ok(pb::PutRequest::default()));
        assert_eq!(put("{}"), Ok(pb::PutRequest::default()));
    }

    #[test]
    fn lists_have_a_bound_together() {
        let list = |n: usize| vec!["{}"; n].join(",");
        let txn = |compares: usize, nested: usize| {
            let inner = format!(r#"{{"request_txn":{{"failure":[{}]}}}}"#, list(nested));
            let json = format!(r#"{{"compare":[{}],"success":[{inner}]}}"#, list(compares));
            read::<pb::TxnRequest>(Rpc::KvTxn, &json).map(|txn| (txn.compare.len(), txn.success.len()))
        };
        assert_eq!(txn(500, 499), Ok((500, 1)));
        assert_eq!(txn(500, 500), Err("too many".to_owned()));
        assert_eq!(txn(1_000_000, 1), Err("too many".to_owned()));
        let add = |urls: usize| {
            let json = format!(r#"{{"peerURLs":[{}]}}"#, vec!["\"\""; urls].join(","));
            read::<pb::MemberAddRequest>(Rpc::ClusterMemberAdd, &json).map(|request| request.peer_urls.len())
        };
        assert_eq!((add(1000), add(1001)), (Ok(1000), Err("too many peerURLs".to_owned())));
    }

    #[test]
    fn a_message_takes_no_more_memory_than_twice_its_length() {
        for space in [0, 10, 1_000_000] {
            let json = format!("{{\"key\":\"Zm9v\",{}\"lease\":7}}", " ".repeat(space));
            let message = decode(of(Rpc::KvPut).unwrap().0, json.as_bytes(), 1000).unwrap();
            assert_eq!(message.len(), 7);
            assert!(message.capacity() <= 2 * message.len() + 1, "{}", message.capacity());
        }
    }

    #[test]
    fn bytes_are_read_in_all_forms_of_base64() {
        let key = |text: &str| put(&format!(r#"{{"key":"{text}"}}"#)).map(|put| put.key);
        let ok = |bytes: &'static [u8]| Ok(Bytes::from_static(bytes));
        assert_eq!(key("+/+/"), ok(b"\xfb\xff\xbf"));
        assert_eq!(key("-_-_"), ok(b"\xfb\xff\xbf"));
        assert_eq!(key("YQ=="), ok(b"a"));
        assert_eq!(key("YQ"), ok(b"a"));
        assert_eq!(key("YR"), ok(b"a"));
        assert_eq!(key("Zm\\n9v\\r"), ok(b"foo"));
        for bad in ["YQ=", "Y", "+/-_", "YQ==YQ==", "Y===", "=", "Zm9v ", "Zm9v!", "é"] {
            let why = format!("proto: (line 1:8): invalid value for bytes field key: \"{bad}\"");
            assert_eq!(key(bad), Err(why));
        }
    }

    #[test]
    fn numbers_that_do_not_fit_are_refused() {
        for good in
            ["9223372036854775807", "-9223372036854775808", "\"-1\"", "1e18", "0.5e1", "-0", "0e9999999"]
        {
            assert!(put(&format!(r#"{{"lease":{good}}}"#)).is_ok(), "{good}");
        }
        for bad in [
            "9223372036854775808",
            "-9223372036854775809",
            "1e19",
            "1.5",
            "1e-1",
            "0.1",
            "1e99999999999",
            "\"\"",
            "\" 1\"",
            "\"x\"",
            "\"0x1\"",
            "true",
            "[",
            "{",
        ] {
            let json = format!(r#"{{"lease":{bad}"#)
                + if bad == "[" {
                    "]}"
                } else if bad == "{" {
                    "}}"
                } else {
                    "}"
                };
            let why = format!("proto: (line 1:10): invalid value for int64 field lease: {bad}");
            assert_eq!(put(&json), Err(why));
        }
    }

    #[test]
    fn errors_are_those_of_go() {
        for (json, why) in [
            ("null", "proto: syntax error (line 1:1): unexpected token null"),
            ("[]", "proto: syntax error (line 1:1): unexpected token ["),
            (" \"x\" ", "proto: syntax error (line 1:1): unexpected token \"x\""),
            ("12 34", "proto: syntax error (line 1:1): unexpected token 12"),
            ("{\"key\":", "unexpected EOF"),
            ("{\"key\":1e}", "invalid character '}' in exponent of numeric literal"),
            ("{\"key\":\"YQ==\",\n \"key\":\"\"}", "proto: (line 2:2): duplicate field \"key\""),
            ("{\"prevKv\":true,\"prev_kv\":null}", "proto: (line 1:16): duplicate field \"prev_kv\""),
            ("{\"é\":1,\"key\":1}", "proto: (line 1:14): invalid value for bytes field key: 1"),
            ("{\"x\":\"\\ud800\"}", "proto: unexpected EOF"),
            (
                "{\"x\":\"\\ud800abcdef\"}",
                "proto: syntax error (line 1:6): invalid escape code \"abcdef\" in string",
            ),
        ] {
            assert_eq!(put(json), Err(why.to_owned()), "{json}");
        }
        let decoded = decode(of(Rpc::KvPut).unwrap().0, b"{\"x\":\"\xff\"}", 1000);
        let why = "proto: syntax error (line 1:6): invalid UTF-8 in string".to_owned();
        assert_eq!(decoded, Err(Refused::Invalid(why)));
    }

    #[test]
    fn what_follows_a_value_changes_nothing() {
        let message = of(Rpc::KvPut).unwrap().0;
        let values = [
            "{\"key\":\"YQ==\"}",
            "{\"x\":\"\\ud800\"}",
            "{\"x\":\"\\ud800\\u\"}",
            "{\"x\":\"\\ud800\\udc0\"}",
            "{\"x\":\"\\ud800\\udc00\"}",
            "{\"\\ud800\":1}",
            "{\"\\ud800abc\":1,\"key\":\"\\u0059Q\"}",
            "{\"lease\":\"x\"}",
            "{\"lease\":1e}",
            "{\"lease\":1.5}",
            "{\"lease\":truex}",
            "{\"x\":tru}",
            "{\"key\":1,}",
            "{\"key\":",
            "{\"key\":\"",
            "{\"x\":[[",
            "{",
            "null",
            "12",
            "\"x\"",
            "[1]",
            "x",
            "",
        ];
        for value in values {
            for before in ["", " ", "\n\t"] {
                for behind in
                    ["", " ", "x", "\"", "}", "\\udc00", "\\u00ff}}}}", " {\"key\":1} ", "\n\n\n\n\n\n\n"]
                {
                    let body = format!("{before}{value}{behind}");
                    let cut = match scan::first_value(body.as_bytes()) {
                        Ok(Some(value)) => decode_value(message, value, 1000),
                        Ok(None) => Ok(Vec::new()),
                        Err(why) => Err(Refused::Invalid(why)),
                    };
                    assert_eq!(decode(message, body.as_bytes(), 1000), cut, "{body:?}");
                }
            }
        }
    }

    #[test]
    fn oneofs_enums_and_lists() {
        let json = r#"{"compare":[{"target":"VALUE","key":"YQ==","value":"","result":2},{"target":"NEW","version":0}],
            "success":[{"requestPut":{"key":"YQ==","value":"Yg=="}},{"request_range":{"key":"YQ==","sort_order":"DESCEND"}}]}"#;
        let txn: pb::TxnRequest = read(Rpc::KvTxn, json).unwrap();
        assert_eq!(txn.compare[0].target, 3);
        assert_eq!(txn.compare[0].result, 2);
        assert_eq!(txn.compare[0].target_union, Some(pb::compare::TargetUnion::Value(Bytes::new())));
        assert_eq!(txn.compare[1].target_union, Some(pb::compare::TargetUnion::Version(0)));
        assert_eq!(txn.success.len(), 2);
        let both = r#"{"success":[{"request_put":{},"requestRange":{}}]}"#;
        assert_eq!(
            read::<pb::TxnRequest>(Rpc::KvTxn, both),
            Err("proto: (line 1:31): error parsing \"requestRange\", oneof etcdserverpb.RequestOp.request is already set"
                .to_owned())
        );
        let watch = r#"{"create_request":{"filters":["NOPUT",1,"OTHER"]}}"#;
        let watch: pb::WatchRequest = read(Rpc::Watch, watch).unwrap();
        let Some(pb::watch_request::RequestUnion::CreateRequest(create)) = watch.request_union else {
            panic!()
        };
        assert_eq!(create.filters, [0, 1]);
        for (json, why) in [
            ("{\"success\":[null]}", "proto: syntax error (line 1:13): unexpected token null"),
            ("{\"success\":{}}", "proto: syntax error (line 1:12): unexpected token {"),
            ("{\"success\":[1]}", "proto: syntax error (line 1:13): unexpected token 1"),
        ] {
            assert_eq!(read::<pb::TxnRequest>(Rpc::KvTxn, json), Err(why.to_owned()));
        }
    }

    #[test]
    fn depth_is_bounded() {
        let deep = |n: usize| {
            let open = "{\"success\":[{\"request_txn\":".repeat(n);
            format!("{open}{{}}{}", "}]}".repeat(n))
        };
        assert!(read::<pb::TxnRequest>(Rpc::KvTxn, &deep(40)).is_ok());
        assert_eq!(read::<pb::TxnRequest>(Rpc::KvTxn, &deep(5000)), Err("too deep".to_owned()));
        let skipped = format!("{{\"x\":{}{}}}", "[".repeat(9_500), "]".repeat(9_500));
        assert_eq!(put(&skipped), Err("proto: exceeded max recursion depth".to_owned()));
        let skipped = format!("{{\"x\":{}{}}}", "[".repeat(8_000), "]".repeat(8_000));
        assert!(put(&skipped).is_ok());
    }
}
