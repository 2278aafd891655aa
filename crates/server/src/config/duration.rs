//! Durations in Go's notation, the one every etcd flag, manifest and log line uses.

use std::fmt::Write as _;

const NANOS_PER_SECOND: i64 = 1_000_000_000;

/// The units of Go's notation with their length in nanoseconds. Both spellings of micro (U+00B5 and U+03BC)
/// are accepted, as in Go.
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

/// Reads `1h30m`, `1.5s`, `-20ms` or `0` as nanoseconds. The error is the text Go's parser gives.
pub fn parse_go_duration(text: &str) -> Result<i64, String> {
    let invalid = || format!("time: invalid duration {}", quote(text));
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
            return Err(format!("time: missing unit in duration {}", quote(text)));
        }
        let Some((_, unit_nanos)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("time: unknown unit {} in duration {}", quote(unit), quote(text)));
        };
        // Nineteen digits hold every i64; more only overflow, which is an error anyway.
        if whole.trim_start_matches('0').len() > 19 {
            return Err(invalid());
        }
        let whole: i128 = if whole.is_empty() { 0 } else { whole.parse().map_err(|_| invalid())? };
        nanos += whole * i128::from(*unit_nanos);
        // Digits below a nanosecond of an hour are beyond the resolution: eighteen are plenty.
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

/// Writes nanoseconds as Go prints a duration: `1h30m0s`, `1.5s`, `20ms`, `0s`.
pub fn format_go_duration(nanos: i64) -> String {
    let mut out = String::new();
    write_go_duration(&mut out, nanos);
    out
}

/// As [`format_go_duration`], appending to `out`.
pub fn write_go_duration(out: &mut String, nanos: i64) {
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
    // Writing to a String cannot fail, so the results below carry nothing.
    if seconds >= 3_600 {
        let _ = write!(out, "{}h", seconds / 3_600);
    }
    if seconds >= 60 {
        let _ = write!(out, "{}m", seconds / 60 % 60);
    }
    write_decimal(out, seconds % 60, nanos % second, second);
    out.push('s');
}

/// Writes `whole.fraction` without trailing zeros, where the fraction counts parts of `size`, a power of ten.
fn write_decimal(out: &mut String, whole: u64, fraction: u64, size: u64) {
    let _ = write!(out, "{whole}");
    if fraction != 0 {
        let width = size.ilog10() as usize;
        let digits = format!("{fraction:0width$}");
        out.push('.');
        out.push_str(digits.trim_end_matches('0'));
    }
}

/// Text in double quotes, escaped as Go's `%q` does for everything an option can hold.
pub(crate) fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if (c as u32) < 0x20 || c as u32 == 0x7f => {
                let _ = write!(out, "\\x{:02x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

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
            assert_eq!(parse_go_duration(text), Ok(nanos), "{text}");
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
            assert_eq!(parse_go_duration(text), Err(error.to_string()), "{text}");
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
            assert_eq!(format_go_duration(nanos), text);
        }
    }
}
