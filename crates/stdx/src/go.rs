//! Parses and formats durations, numbers, quoted strings and sizes in the formats of Go's standard library
//! and of the Go libraries that etcd's tools use.

use std::fmt::{self, Write as _};
use std::time::Duration;

/// Quotes a string as Go's `strconv.Quote` and the verb `%q` of Go's `fmt` do.
pub fn quote(text: impl AsRef<[u8]>) -> String {
    let mut out = String::from("\"");
    for chunk in text.as_ref().utf8_chunks() {
        for c in chunk.valid().chars() {
            escaped(&mut out, c, '"');
        }
        for byte in chunk.invalid() {
            write!(out, "\\x{byte:02x}").expect("strings take everything");
        }
    }
    out.push('"');
    out
}

/// Quotes a character as Go's `strconv.QuoteRune` does.
pub fn quote_char(c: char) -> String {
    let mut out = String::from("'");
    escaped(&mut out, c, '\'');
    out.push('\'');
    out
}

fn escaped(out: &mut String, c: char, quote: char) {
    match c {
        '\\' => out.push_str("\\\\"),
        c if c == quote => {
            out.push('\\');
            out.push(c);
        }
        '\u{7}' => out.push_str("\\a"),
        '\u{8}' => out.push_str("\\b"),
        '\u{c}' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\u{b}' => out.push_str("\\v"),
        c if is_printed(c) => out.push(c),
        c if (c as u32) < 0x80 => write!(out, "\\x{:02x}", c as u32).expect("strings take everything"),
        c if (c as u32) < 0x1_0000 => write!(out, "\\u{:04x}", c as u32).expect("strings take everything"),
        c => write!(out, "\\U{:08x}", c as u32).expect("strings take everything"),
    }
}

/// Returns true if Go does not escape a character in a quoted string. This is an approximation of Go's table
/// (`unicode.IsPrint`): Rust's rule for escaping characters, except that combining marks are not escaped.
fn is_printed(c: char) -> bool {
    let is_plain = c.escape_debug().count() == 1 || matches!(c, '"' | '\'');
    let is_combining = c.escape_debug().count() > 1 && !c.is_control() && c.is_alphanumeric();
    c == ' ' || (is_plain || is_combining) && !c.is_whitespace()
}

/// Formats a duration as Go's `time.Duration.String` does: `2.095242ms`, `1m30s`, `0s`.
pub fn duration(duration: Duration) -> String {
    nanoseconds(i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX))
}

/// Formats nanoseconds, which may be negative, as [`duration`] does.
pub fn nanoseconds(nanos: i64) -> String {
    let mut out = String::new();
    write_nanoseconds(&mut out, nanos);
    out
}

/// Appends nanoseconds to `out` as [`nanoseconds`] formats them.
pub fn write_nanoseconds(out: &mut String, nanos: i64) {
    if nanos == 0 {
        out.push_str("0s");
        return;
    }
    if nanos < 0 {
        out.push('-');
    }
    let nanos = nanos.unsigned_abs();
    let second = NANOS_PER_SECOND.unsigned_abs();
    if nanos < second {
        let (unit, size) = match nanos {
            0..1_000 => ("ns", 1),
            1_000..1_000_000 => ("\u{b5}s", 1_000),
            _ => ("ms", 1_000_000),
        };
        write_decimal(out, nanos / size, nanos % size, size);
        out.push_str(unit);
        return;
    }
    let seconds = nanos / second;
    // The results are ignored, because writing to a `String` cannot fail.
    if seconds >= 3_600 {
        let _ = write!(out, "{}h", seconds / 3_600);
    }
    if seconds >= 60 {
        let _ = write!(out, "{}m", seconds / 60 % 60);
    }
    write_decimal(out, seconds % 60, nanos % second, second);
    out.push('s');
}

/// Writes `whole.fraction` without trailing zeros. The fraction is in units of 1/`size`, and `size` is a
/// power of ten.
fn write_decimal(out: &mut String, whole: u64, fraction: u64, size: u64) {
    let _ = write!(out, "{whole}");
    if fraction != 0 {
        let width = size.ilog10() as usize;
        let digits = format!("{fraction:0width$}");
        out.push('.');
        out.push_str(digits.trim_end_matches('0'));
    }
}

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// Units of Go's durations with their length in nanoseconds. Two characters for micro are accepted (U+00B5
/// and U+03BC), as in Go.
const UNITS: [(&str, i64); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", NANOS_PER_SECOND),
    ("m", 60 * NANOS_PER_SECOND),
    ("h", 3_600 * NANOS_PER_SECOND),
];

/// Error for a string that is not a valid value, with Go's message. The type distinguishes no kinds of
/// errors, because the message is only displayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValueError(String);

impl ValueError {
    /// Returns an error with this message.
    pub fn new(why: impl Into<String>) -> ValueError {
        ValueError(why.into())
    }
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for ValueError {}

/// Parses a duration such as `1h30m`, `1.5s`, `-20ms` or `0` as Go's `time.ParseDuration` does. Returns
/// nanoseconds.
///
/// # Errors
///
/// Returns an error with Go's message if `text` is not valid.
pub fn parse_duration(text: &str) -> Result<i64, ValueError> {
    let invalid = || ValueError(format!("time: invalid duration {}", quote(text)));
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut nanos: i128 = 0;
    while !rest.is_empty() {
        let whole_len = rest.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, mut tail) = rest.split_at(whole_len);
        let mut fraction = "";
        if let Some(after_point) = tail.strip_prefix('.') {
            let fraction_len = after_point.bytes().take_while(u8::is_ascii_digit).count();
            (fraction, tail) = after_point.split_at(fraction_len);
        }
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let unit_len = tail.bytes().take_while(|b| *b != b'.' && !b.is_ascii_digit()).count();
        let (unit, after_unit) = tail.split_at(unit_len);
        if unit.is_empty() {
            return Err(ValueError(format!("time: missing unit in duration {}", quote(text))));
        }
        let Some((_, unit_nanos)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            let why = format!("time: unknown unit {} in duration {}", quote(unit), quote(text));
            return Err(ValueError(why));
        };
        // Refuse more than nineteen digits, which no valid number has, so that the calculation with `i128`
        // cannot overflow.
        if whole.trim_start_matches('0').len() > 19 {
            return Err(invalid());
        }
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        nanos += whole * i128::from(*unit_nanos);
        // Digits after the eighteenth are ignored: even as a fraction of an hour they are far below a
        // nanosecond.
        let mut scale = i128::from(*unit_nanos) * 1_000_000_000_000_000_000;
        let mut part: i128 = 0;
        for digit in fraction.bytes().take(18) {
            scale /= 10;
            part += i128::from(digit - b'0') * scale;
        }
        nanos += part / 1_000_000_000_000_000_000;
        if nanos > i128::from(i64::MAX) {
            return Err(invalid());
        }
        rest = after_unit;
    }
    let nanos = i64::try_from(nanos).map_err(|_| invalid())?;
    Ok(if negative { -nanos } else { nanos })
}

/// Parses a boolean as Go's `strconv.ParseBool` does.
///
/// # Errors
///
/// Returns an error with Go's message if `text` is not valid.
pub fn parse_bool(text: &str) -> Result<bool, ValueError> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(ValueError(format!("strconv.ParseBool: parsing {}: invalid syntax", quote(text)))),
    }
}

/// Parses a signed number as Go's `strconv.ParseInt` does with base 0 and 64 bits.
///
/// # Errors
///
/// Returns an error with Go's message if `text` is not valid.
pub fn parse_int(text: &str) -> Result<i64, ValueError> {
    let (negative, digits) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    let refused = |why| ValueError(format!("strconv.ParseInt: parsing {}: {why}", quote(text)));
    let magnitude = parse_magnitude(digits).map_err(refused)?;
    let value = if negative { 0i64.checked_sub_unsigned(magnitude) } else { i64::try_from(magnitude).ok() };
    value.ok_or_else(|| refused(IntegerError::Range))
}

/// Parses an unsigned number as Go's `strconv.ParseUint` does with base 0 and 64 bits.
///
/// # Errors
///
/// Returns an error with Go's message if `text` is not valid.
pub fn parse_uint(text: &str) -> Result<u64, ValueError> {
    parse_magnitude(text)
        .map_err(|why| ValueError(format!("strconv.ParseUint: parsing {}: {why}", quote(text))))
}

/// Parses an unsigned number as Go's `strconv.ParseUint` does with base 0 and 32 bits.
///
/// # Errors
/// Returns an error with Go's message if `text` is not valid.
pub fn parse_uint32(text: &str) -> Result<u32, ValueError> {
    let fault = |why| ValueError(format!("strconv.ParseUint: parsing {}: {why}", quote(text)));
    u32::try_from(parse_magnitude(text).map_err(fault)?).map_err(|_| fault(IntegerError::Range))
}

/// Reason why a string is not a valid number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IntegerError {
    /// The string has a wrong syntax.
    Syntax,
    /// The number does not fit into its type.
    Range,
}

impl fmt::Display for IntegerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IntegerError::Syntax => "invalid syntax",
            IntegerError::Range => "value out of range",
        })
    }
}

/// Parses a number without sign as Go does with base 0: a decimal number, or one with the prefix `0x`, `0o`,
/// `0` or `0b`. Underscores between digits are allowed.
///
/// # Errors
///
/// Returns an error if `text` is not a number or does not fit into 64 bits.
pub fn parse_magnitude(text: &str) -> Result<u64, IntegerError> {
    let lower = text.to_ascii_lowercase();
    let (base, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, &lower[..]),
    };
    let plain: String = digits.chars().filter(|c| *c != '_').collect();
    // An underscore is allowed only between two digits, or after the prefix of the base.
    let is_misplaced =
        digits.ends_with('_') || digits.contains("__") || digits.starts_with('_') && base == 10;
    if plain.is_empty() || is_misplaced || !plain.chars().all(|c| c.is_digit(base)) {
        return Err(IntegerError::Syntax);
    }
    u64::from_str_radix(&plain, base).map_err(|_| IntegerError::Range)
}

/// Formats a number of bytes as go-humanize's `Bytes` does, in powers of 1000: `25 kB`, `2.1 GB`, `12 B`.
pub fn bytes(count: u64) -> String {
    scaled(count, 1000.0, &["B", "kB", "MB", "GB", "TB", "PB", "EB"])
}

/// Formats a number of bytes as go-humanize's `IBytes` does, in powers of 1024: `25 KiB`.
pub fn ibytes(count: u64) -> String {
    scaled(count, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"])
}

fn scaled(count: u64, base: f64, units: &[&str]) -> String {
    if count < 10 {
        return format!("{count} B");
    }
    let power = ((count as f64).ln() / base.ln()).floor().min((units.len() - 1) as f64);
    let value = (count as f64 / base.powf(power) * 10.0 + 0.5).floor() / 10.0;
    let unit = units[power as usize];
    if value < 10.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_as_go_does() {
        assert_eq!(quote("a\"b\\\n\u{7f}\u{1}"), r#""a\"b\\\n\x7f\x01""#);
        assert_eq!(quote("ü 日 \u{200b}\u{a0}"), r#""ü 日 \u200b\u00a0""#);
        assert_eq!(quote([b'a', 0xff, 0xc3]), r#""a\xff\xc3""#);
        assert_eq!(quote_char('\''), r"'\''");
    }

    #[test]
    fn reads_what_go_reads() {
        for (text, nanos) in [
            ("0", 0),
            ("0s", 0),
            ("5s", 5_000_000_000),
            ("2h", 7_200_000_000_000),
            ("1h30m", 5_400_000_000_000),
            ("1.5s", 1_500_000_000),
            (".5ms", 500_000),
            ("5.s", 5_000_000_000),
            ("-20ms", -20_000_000),
            ("+3\u{b5}s", 3_000),
            ("3\u{3bc}s", 3_000),
            ("0.3333333333333333333h", 1_200_000_000_000 - 1),
        ] {
            assert_eq!(parse_duration(text), Ok(nanos), "{text}");
        }
    }

    #[test]
    fn refuses_with_the_words_of_go() {
        for (text, error) in [
            ("", "time: invalid duration \"\""),
            ("foo", "time: invalid duration \"foo\""),
            ("5", "time: missing unit in duration \"5\""),
            ("-", "time: invalid duration \"-\""),
            ("1d", "time: unknown unit \"d\" in duration \"1d\""),
            ("9999999h", "time: invalid duration \"9999999h\""),
            ("99999999999999999999999999s", "time: invalid duration \"99999999999999999999999999s\""),
        ] {
            assert_eq!(parse_duration(text), Err(ValueError::new(error)), "{text}");
        }
    }

    #[test]
    fn prints_as_go_prints() {
        for (nanos, text) in [
            (0, "0s"),
            (1, "1ns"),
            (1_100, "1.1\u{b5}s"),
            (2_200_000, "2.2ms"),
            (100_000_000, "100ms"),
            (3_300_000_000, "3.3s"),
            (60_000_000_000, "1m0s"),
            (245_001_000_000, "4m5.001s"),
            (7_200_000_000_000, "2h0m0s"),
            (-1_500_000_000, "-1.5s"),
            (i64::MIN, "-2562047h47m16.854775808s"),
        ] {
            assert_eq!(nanoseconds(nanos), text);
        }
    }

    #[test]
    fn numbers_as_go_reads_them() {
        assert_eq!(parse_int("-0x10"), Ok(-16));
        assert_eq!(parse_int("1_000"), Ok(1000));
        assert_eq!(parse_int("017"), Ok(15));
        assert_eq!(parse_int("-9223372036854775808"), Ok(i64::MIN));
        for text in ["", "-", "x", "1_", "_1", "08", "0x"] {
            let why = format!("strconv.ParseInt: parsing {}: invalid syntax", quote(text));
            assert_eq!(parse_int(text).unwrap_err(), ValueError::new(why));
        }
        let why = "strconv.ParseInt: parsing \"9223372036854775808\": value out of range";
        assert_eq!(parse_int("9223372036854775808").unwrap_err(), ValueError::new(why));
    }

    #[test]
    fn sizes_as_humanize_writes_them() {
        let sizes = [
            (0, "0 B"),
            (9, "9 B"),
            (12, "12 B"),
            (20_480, "20 kB"),
            (24_576, "25 kB"),
            (2_147_483_648, "2.1 GB"),
        ];
        for (count, text) in sizes {
            assert_eq!(bytes(count), text);
        }
        assert_eq!(ibytes(24_576), "24 KiB");
    }
}
