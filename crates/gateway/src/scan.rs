//! Splits a body into JSON values as Go's `encoding/json` does, with the same errors: [`Values`]. This module
//! only checks the syntax of values; [`crate::decode()`] interprets them.

use std::ops::Range;

use crate::quote;

/// Size in bytes to which the buffer shrinks after a large value.
const BUFFER_BYTES: usize = 16 * 1024;

/// Maximum nesting depth of arrays and objects, as in Go. A deeper value is an error.
const NESTING_MAX: usize = 10_000;

/// State of the scanner: the input that it expects next, or the part of a value that it is scanning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    BeginValue,
    /// After `[`: a value or `]` is expected.
    BeginValueOrEmpty,
    /// After a comma in an object: a name is expected.
    BeginName,
    /// After `{`: a name or `}` is expected.
    BeginNameOrEmpty,
    EndValue,
    InString,
    Escape,
    /// Inside `\uXXXX`, after this number of digits.
    EscapeDigits(u8),
    Minus,
    /// After a leading zero of a number.
    Zero,
    /// Inside the digits of a number before the point.
    Digits,
    Point,
    Fraction,
    Exponent,
    ExponentSign,
    ExponentDigits,
    /// Inside this literal, such as `true`, after this number of bytes.
    Literal(&'static [u8], u8),
}

/// Tells in which part of an array or object the scanner is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    /// In an object, before the colon after a name.
    Name,
    /// In an object, after the colon.
    Value,
    Array,
}

/// Result of scanning one byte.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    More,
    /// The byte is the last one of the outermost array or object.
    Last,
    /// The byte is the first one after the value.
    Behind,
    Wrong(String),
}

#[derive(Debug)]
struct Scanner {
    state: State,
    open: Vec<Open>,
}

impl Scanner {
    fn new() -> Scanner {
        Scanner { state: State::BeginValue, open: Vec::new() }
    }

    fn reset(&mut self) {
        self.state = State::BeginValue;
        self.open.clear();
    }

    fn go(&mut self, state: State) -> Seen {
        self.state = state;
        Seen::More
    }

    fn open(&mut self, c: u8, open: Open, state: State) -> Seen {
        self.open.push(open);
        if self.open.len() > NESTING_MAX { wrong(c, "exceeded max depth") } else { self.go(state) }
    }

    fn close(&mut self) -> Seen {
        self.open.pop();
        self.state = State::EndValue;
        if self.open.is_empty() { Seen::Last } else { Seen::More }
    }

    fn step(&mut self, c: u8) -> Seen {
        let is_space = matches!(c, b' ' | b'\t' | b'\r' | b'\n');
        match self.state {
            State::BeginValue | State::BeginValueOrEmpty | State::BeginName | State::BeginNameOrEmpty
                if is_space =>
            {
                Seen::More
            }
            State::BeginValueOrEmpty if c == b']' => self.end_value(c),
            State::BeginValue | State::BeginValueOrEmpty => self.begin_value(c),
            State::BeginNameOrEmpty if c == b'}' => {
                if let Some(last) = self.open.last_mut() {
                    *last = Open::Value;
                }
                self.end_value(c)
            }
            State::BeginName | State::BeginNameOrEmpty if c == b'"' => self.go(State::InString),
            State::BeginName | State::BeginNameOrEmpty => {
                wrong(c, "looking for beginning of object key string")
            }
            State::EndValue => self.end_value(c),
            State::InString => match c {
                b'"' => self.go(State::EndValue),
                b'\\' => self.go(State::Escape),
                c if c < b' ' => wrong(c, "in string literal"),
                _ => Seen::More,
            },
            State::Escape => match c {
                b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => self.go(State::InString),
                b'u' => self.go(State::EscapeDigits(0)),
                c => wrong(c, "in string escape code"),
            },
            State::EscapeDigits(seen) if c.is_ascii_hexdigit() => {
                self.go(if seen == 3 { State::InString } else { State::EscapeDigits(seen + 1) })
            }
            State::EscapeDigits(_) => wrong(c, "in \\u hexadecimal character escape"),
            State::Minus => match c {
                b'0' => self.go(State::Zero),
                b'1'..=b'9' => self.go(State::Digits),
                c => wrong(c, "in numeric literal"),
            },
            State::Digits if c.is_ascii_digit() => Seen::More,
            State::Digits | State::Zero => match c {
                b'.' => self.go(State::Point),
                b'e' | b'E' => self.go(State::Exponent),
                c => self.end_value(c),
            },
            State::Point if c.is_ascii_digit() => self.go(State::Fraction),
            State::Point => wrong(c, "after decimal point in numeric literal"),
            State::Fraction => match c {
                b'0'..=b'9' => Seen::More,
                b'e' | b'E' => self.go(State::Exponent),
                c => self.end_value(c),
            },
            State::Exponent if matches!(c, b'+' | b'-') => self.go(State::ExponentSign),
            State::Exponent | State::ExponentSign if c.is_ascii_digit() => self.go(State::ExponentDigits),
            State::Exponent | State::ExponentSign => wrong(c, "in exponent of numeric literal"),
            State::ExponentDigits if c.is_ascii_digit() => Seen::More,
            State::ExponentDigits => self.end_value(c),
            State::Literal(word, at) => {
                let Some(&expected) = word.get(usize::from(at)) else { return self.end_value(c) };
                if c != expected {
                    let word = String::from_utf8_lossy(word);
                    return wrong(c, &format!("in literal {word} (expecting '{}')", char::from(expected)));
                }
                let at = at + 1;
                self.go(if usize::from(at) == word.len() {
                    State::EndValue
                } else {
                    State::Literal(word, at)
                })
            }
        }
    }

    fn begin_value(&mut self, c: u8) -> Seen {
        match c {
            b'{' => self.open(c, Open::Name, State::BeginNameOrEmpty),
            b'[' => self.open(c, Open::Array, State::BeginValueOrEmpty),
            b'"' => self.go(State::InString),
            b'-' => self.go(State::Minus),
            b'0' => self.go(State::Zero),
            b'1'..=b'9' => self.go(State::Digits),
            b't' => self.go(State::Literal(b"true", 1)),
            b'f' => self.go(State::Literal(b"false", 1)),
            b'n' => self.go(State::Literal(b"null", 1)),
            c => wrong(c, "looking for beginning of value"),
        }
    }

    fn end_value(&mut self, c: u8) -> Seen {
        let Some(last) = self.open.last_mut() else { return Seen::Behind };
        if matches!(c, b' ' | b'\t' | b'\r' | b'\n') {
            return self.go(State::EndValue);
        }
        match (*last, c) {
            (Open::Name, b':') => {
                *last = Open::Value;
                self.go(State::BeginValue)
            }
            (Open::Name, c) => wrong(c, "after object key"),
            (Open::Value, b',') => {
                *last = Open::Name;
                self.go(State::BeginName)
            }
            (Open::Value, b'}') | (Open::Array, b']') => self.close(),
            (Open::Value, c) => wrong(c, "after object key:value pair"),
            (Open::Array, b',') => self.go(State::BeginValue),
            (Open::Array, c) => wrong(c, "after array element"),
        }
    }
}

fn wrong(c: u8, context: &str) -> Seen {
    Seen::Wrong(format!("invalid character {} {context}", quote::character(c)))
}

/// Result of [`Values::next`].
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// A value, which is valid JSON, without white space around it.
    Value(Vec<u8>),
    /// The next value is not complete: more bytes must arrive first.
    More,
    /// There are no more values.
    End,
    /// The body is not valid JSON. Contains Go's error message. No further values are returned.
    Wrong(String),
}

/// Splits a body into JSON values while it arrives. Holds only the beginning of a value that is not complete,
/// and the bytes that were pushed last.
#[derive(Debug)]
pub struct Values {
    buffer: Vec<u8>,
    /// Offset in the buffer at which the next value begins. `at` is the offset up to which the buffer was
    /// scanned.
    start: usize,
    at: usize,
    scanner: Scanner,
    is_over: bool,
}

impl Default for Values {
    fn default() -> Values {
        Values { buffer: Vec::new(), start: 0, at: 0, scanner: Scanner::new(), is_over: false }
    }
}

impl Values {
    /// Appends the next bytes of the body.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Returns the size of the buffer's memory, in bytes.
    pub fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// Removes the values that were returned from the buffer, and frees memory if the buffer is much larger
    /// than the rest.
    fn compact(&mut self) {
        self.buffer.drain(..self.start);
        self.at -= self.start;
        self.start = 0;
        if self.buffer.capacity() / 2 > self.buffer.len().max(BUFFER_BYTES) {
            self.buffer.shrink_to(BUFFER_BYTES);
        }
    }

    /// Returns the number of bytes in the buffer that belong to values that were not returned yet.
    pub fn held_bytes(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Returns the next value, if it is complete. `is_end` must be true if no more bytes will be pushed.
    pub fn next(&mut self, is_end: bool) -> Next {
        if self.is_over {
            return Next::End;
        }
        while let Some(&c) = self.buffer.get(self.at) {
            match self.scanner.step(c) {
                Seen::More => self.at += 1,
                Seen::Last => {
                    self.at += 1;
                    return self.cut();
                }
                Seen::Behind => return self.cut(),
                Seen::Wrong(why) => {
                    self.is_over = true;
                    return Next::Wrong(why);
                }
            }
        }
        if !is_end {
            self.compact();
            return Next::More;
        }
        if self.scanner.step(b' ') == Seen::Behind {
            return self.cut();
        }
        self.is_over = true;
        if trim(&self.buffer[self.start..]).is_empty() {
            Next::End
        } else {
            Next::Wrong("unexpected EOF".to_owned())
        }
    }

    fn cut(&mut self) -> Next {
        let whole = &self.buffer[self.start..self.at];
        let value = whole[trim(whole)].to_vec();
        self.start = self.at;
        self.scanner.reset();
        Next::Value(value)
    }
}

/// Returns the first value in a complete body, without white space around it; `None` if there is only white
/// space in the body.
///
/// # Errors
///
/// Returns Go's error message if the body does not begin with valid JSON.
pub(crate) fn first_value(body: &[u8]) -> Result<Option<&[u8]>, String> {
    let mut scanner = Scanner::new();
    for (at, &c) in body.iter().enumerate() {
        match scanner.step(c) {
            Seen::More => {}
            Seen::Last => return Ok(Some(&body[trim(&body[..=at])])),
            Seen::Behind => return Ok(Some(&body[trim(&body[..at])])),
            Seen::Wrong(why) => return Err(why),
        }
    }
    let is_whole = scanner.step(b' ') == Seen::Behind;
    match &body[trim(body)] {
        value if is_whole => Ok(Some(value)),
        [] => Ok(None),
        _ => Err("unexpected EOF".to_owned()),
    }
}

/// Returns a body without leading white space.
pub(crate) fn without_space_before(body: &[u8]) -> &[u8] {
    let is_space = |byte: &&u8| matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    &body[body.iter().take_while(is_space).count()..]
}

/// Returns the range in `bytes` without the white space at the beginning and the end.
fn trim(bytes: &[u8]) -> Range<usize> {
    let is_solid = |byte: &u8| !matches!(byte, b' ' | b'\t' | b'\r' | b'\n');
    match bytes.iter().position(is_solid) {
        None => 0..0,
        Some(start) => start..bytes.iter().rposition(is_solid).map_or(start, |last| last + 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(body: &[u8], step: usize) -> Vec<Result<String, String>> {
        let (mut values, mut out) = (Values::default(), Vec::new());
        let mut parts = body.chunks(step);
        let mut is_end = false;
        loop {
            match values.next(is_end) {
                Next::Value(value) => out.push(Ok(String::from_utf8(value).unwrap())),
                Next::More => match parts.next() {
                    Some(part) => values.push(part),
                    None => is_end = true,
                },
                Next::End => return out,
                Next::Wrong(why) => out.push(Err(why)),
            }
        }
    }

    /// Returns the first value in a body, and checks that both ways of finding it agree.
    fn first(body: &[u8]) -> Option<Result<String, String>> {
        let text = |value: &[u8]| String::from_utf8(value.to_vec()).unwrap();
        let found = first_value(body).map(|value| value.map(text)).transpose();
        assert_eq!(
            found.as_ref(),
            all(body, body.len().max(1)).first(),
            "{:?}",
            String::from_utf8_lossy(body)
        );
        found
    }

    #[test]
    fn the_first_value_of_a_whole_body_is_the_one_that_comes_first() {
        for body in
            [" {\"a\":[1]} {}", "12", "12 ", " 12x", "[]x", "\"s\"", "", " \n", "{", "-", "tru", "x", "[1,]"]
        {
            drop(first(body.as_bytes()));
        }
        assert_eq!(first(b"\n[1] {}"), Some(Ok("[1]".to_owned())));
        assert_eq!(first(b"  "), None);
    }

    #[test]
    fn values_come_out_however_the_body_is_cut() {
        let body = b" {\"a\":[1,{\"b\":\"x\\u0041\"}]}\n[]  12 -0.5e+3\ttrue null\"s\" {}";
        for step in 1..body.len() {
            let expected =
                ["{\"a\":[1,{\"b\":\"x\\u0041\"}]}", "[]", "12", "-0.5e+3", "true", "null", "\"s\"", "{}"];
            assert_eq!(all(body, step), expected.map(|value| Ok(value.to_owned())));
        }
    }

    #[test]
    fn what_is_wrong_is_said_as_go_says_it() {
        for (body, why) in [
            ("{\"a\":", "unexpected EOF"),
            ("{", "unexpected EOF"),
            ("\"abc", "unexpected EOF"),
            ("-", "unexpected EOF"),
            ("x", "invalid character 'x' looking for beginning of value"),
            ("{a}", "invalid character 'a' looking for beginning of object key string"),
            ("{\"a\" 1}", "invalid character '1' after object key"),
            ("{\"a\":1 \"b\"}", "invalid character '\"' after object key:value pair"),
            ("{\"a\":1,}", "invalid character '}' looking for beginning of object key string"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("[1 2]", "invalid character '2' after array element"),
            ("\"\n\"", "invalid character '\\n' in string literal"),
            ("\"\\x\"", "invalid character 'x' in string escape code"),
            ("\"\\u00g\"", "invalid character 'g' in \\u hexadecimal character escape"),
            ("-a", "invalid character 'a' in numeric literal"),
            ("[1.a]", "invalid character 'a' after decimal point in numeric literal"),
            ("[1ea]", "invalid character 'a' in exponent of numeric literal"),
            ("[01]", "invalid character '1' after array element"),
            ("tru ", "invalid character ' ' in literal true (expecting 'e')"),
            ("nul", "unexpected EOF"),
            ("{]", "invalid character ']' looking for beginning of object key string"),
            ("[}", "invalid character '}' looking for beginning of value"),
            ("\u{feff}{}", "invalid character 'ï' looking for beginning of value"),
        ] {
            for step in 1..=body.len() {
                assert_eq!(all(body.as_bytes(), step), [Err(why.to_owned())], "{body}");
            }
        }
        assert_eq!(
            all(b"{}}", 1),
            [Ok("{}".to_owned()), Err("invalid character '}' looking for beginning of value".to_owned())]
        );
        assert!(all(b" \n", 1).is_empty());
    }

    #[test]
    fn a_large_value_leaves_no_memory_behind() {
        let mut values = Values::default();
        let large = format!("\"{}\" {{", "a".repeat(1 << 20));
        large.as_bytes().chunks(8192).for_each(|part| values.push(part));
        assert!(values.capacity() > 1 << 20);
        assert!(matches!(values.next(false), Next::Value(value) if value.len() == (1 << 20) + 2));
        assert_eq!(values.next(false), Next::More);
        assert!(values.capacity() <= 2 * BUFFER_BYTES, "{}", values.capacity());
        values.push(b"}");
        assert_eq!(values.next(false), Next::Value(b"{}".to_vec()));
    }

    #[test]
    fn nesting_is_bounded() {
        let deep = "[".repeat(NESTING_MAX + 1);
        assert_eq!(all(deep.as_bytes(), 4096), [Err("invalid character '[' exceeded max depth".to_owned())]);
    }
}
