//! Determines the values of YAML scalars, from their text and tag.

use std::borrow::Cow;

use super::Yaml;

/// Prefix of the tags that YAML defines; `!!int` stands for `tag:yaml.org,2002:int`.
const CORE: &str = "tag:yaml.org,2002:";

/// Returns the value of a scalar, or the reason why etcd's reader refuses it. `tag` is the full tag. A scalar
/// with a tag that YAML does not define is a string.
pub(super) fn scalar(text: Cow<'_, str>, is_plain: bool, tag: Option<&str>) -> Result<Yaml, String> {
    let Some(tag) = tag else {
        return if is_plain { plain(&text) } else { Ok(Yaml::Text(text.into_owned())) };
    };
    let kind = tag.strip_prefix(CORE).unwrap_or("");
    let value = match kind {
        "binary" => return binary(&text),
        "null" | "bool" | "int" | "float" => plain(&text)?,
        "timestamp" if is_date(&text) => return Ok(Yaml::Text(text.into_owned())),
        "timestamp" => plain(&text)?,
        _ => return Ok(Yaml::Text(text.into_owned())),
    };
    match (kind, value) {
        ("float", Yaml::Int(number)) => Ok(Yaml::Float(number as f64)),
        ("null", value @ Yaml::Null)
        | ("bool", value @ Yaml::Bool(_))
        | ("int", value @ Yaml::Int(_))
        | ("float", value @ Yaml::Float(_)) => Ok(value),
        (_, value) => {
            let is = match value {
                Yaml::Null => "null",
                Yaml::Bool(_) => "bool",
                Yaml::Int(_) => "int",
                Yaml::Float(_) => "float",
                _ => "str",
            };
            Err(format!("cannot decode !!{is} `{text}` as a !!{kind}"))
        }
    }
}

fn binary(text: &str) -> Result<Yaml, String> {
    let bytes = base64(text).ok_or("!!binary value contains invalid base64 data")?;
    Ok(Yaml::Text(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Decodes base64 with Go's rules: with padding, over several lines, and ignoring unused bits of the last
/// letter.
fn base64(text: &str) -> Option<Vec<u8>> {
    let text: Vec<u8> = text.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count();
    let digits = text.get(..text.len() - padding).filter(|_| padding <= 2)?;
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    for four in digits.chunks(4) {
        let mut bits = 0_u32;
        for byte in four {
            let digit = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(digit);
        }
        let [_, all @ ..] = (bits << (6 * (4 - four.len()))).to_be_bytes();
        bytes.extend_from_slice(&all[..four.len() - 1]);
    }
    Some(bytes)
}

/// Returns true if the text begins like a date, with four digits and a dash. The rest is not checked, because
/// no flag has a date as its value.
fn is_date(text: &str) -> bool {
    text.split_once('-').is_some_and(|(year, _)| year.len() == 4 && year.bytes().all(|b| b.is_ascii_digit()))
}

/// Returns the value of an unquoted scalar.
fn plain(text: &str) -> Result<Yaml, String> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Ok(Yaml::Null),
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Ok(Yaml::Bool(true));
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Ok(Yaml::Bool(false));
        }
        // Refuse these numbers with the error of etcd's reader, which converts YAML to JSON: JSON does not
        // have them.
        ".nan" | ".NaN" | ".NAN" => return Err("json: unsupported value: NaN".to_owned()),
        ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" => {
            return Err("json: unsupported value: +Inf".to_owned());
        }
        "-.inf" | "-.Inf" | "-.INF" => return Err("json: unsupported value: -Inf".to_owned()),
        _ => {}
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return Ok(Yaml::Text(text.to_owned()));
    }
    let digits = text.replace('_', "");
    if let Some(number) = integer(&digits) {
        return Ok(Yaml::Int(number));
    }
    let is_decimal =
        digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e' | b'E'));
    Ok(match digits.parse::<f64>() {
        Ok(number) if is_decimal && number.is_finite() => Yaml::Float(number),
        _ => Yaml::Text(text.to_owned()),
    })
}

/// Parses Go's integers of any base: `10`, `0x1f`, `0o17`, `017`, `0b11`. As in etcd's reader, integers of
/// more than 64 bits are floats.
fn integer(text: &str) -> Option<i128> {
    let (negative, digits) = match text.split_at_checked(1)? {
        ("-", digits) => (true, digits),
        ("+", digits) => (false, digits),
        _ => (false, text),
    };
    let (radix, digits) = match digits.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        Some(two) if two.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let number = i128::from(u64::from_str_radix(digits, radix).ok()?);
    Some(if negative { -number } else { number })
}
