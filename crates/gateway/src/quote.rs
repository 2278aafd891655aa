//! Quotes strings in error messages as Go does.

use std::fmt::Write as _;

/// Escapes bytes as Go's `strconv.Quote` does, without adding quotation marks. `mark` is the quotation mark
/// that is escaped.
fn quoted(bytes: &[u8], mark: char) -> String {
    let mut out = String::with_capacity(bytes.len() + 2);
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\\' => out.push_str("\\\\"),
                c if c == mark => {
                    out.push('\\');
                    out.push(c);
                }
                '\x07' => out.push_str("\\a"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x0b' => out.push_str("\\v"),
                // The result is ignored, because writing to a `String` cannot fail.
                c if c < ' ' || c == '\x7f' => {
                    let _ = write!(out, "\\x{:02x}", u32::from(c));
                }
                c if c.is_control()
                    || matches!(c, '\u{a0}' | '\u{ad}' | '\u{2028}' | '\u{2029}' | '\u{feff}') =>
                {
                    let _ = write!(out, "\\u{:04x}", u32::from(c));
                }
                c => out.push(c),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

/// Quotes bytes as Go's `%q` does.
pub(crate) fn bytes(bytes: &[u8]) -> String {
    format!("\"{}\"", quoted(bytes, '"'))
}

/// Quotes a byte as Go's `encoding/json` does in its errors.
pub(crate) fn character(byte: u8) -> String {
    match byte {
        b'\'' => "'\\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        byte => format!("'{}'", quoted(char::from(byte).to_string().as_bytes(), '"')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_shown_as_go_shows_them() {
        for (byte, shown) in [
            (b'x', "'x'"),
            (b'\'', "'\\''"),
            (b'"', "'\"'"),
            (b'\\', "'\\\\'"),
            (b'\n', "'\\n'"),
            (0, "'\\x00'"),
            (0x7f, "'\\x7f'"),
            (0x80, "'\\u0080'"),
            (0xff, "'ÿ'"),
        ] {
            assert_eq!(character(byte), shown);
        }
        assert_eq!(bytes(b"\\ud\"\xff"), "\"\\\\ud\\\"\\xff\"");
    }
}
