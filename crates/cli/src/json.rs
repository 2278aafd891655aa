//! Encodes strings and bytes as JSON in the format of Go's `encoding/json`.

use std::fmt::Write as _;

/// Returns a JSON string with its quotes. As Go does by default, `<`, `>` and `&` are escaped; invalid UTF-8
/// becomes U+FFFD.
pub fn string(text: impl AsRef<[u8]>) -> String {
    let mut out = String::from("\"");
    for c in String::from_utf8_lossy(text.as_ref()).chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' | '\0'..='\u{1f}' => {
                write!(out, "\\u{:04x}", c as u32).expect("strings take everything");
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Returns bytes as Go encodes them: base64 with padding, without quotes.
pub fn base64(bytes: impl AsRef<[u8]>) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in bytes.as_ref().chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for (at, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            let letter = LETTERS[(bits >> shift & 63) as usize];
            out.push(if at <= three.len() { char::from(letter) } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_as_go_writes_them() {
        assert_eq!(string("a<b>&\"\\\u{1}\n\u{2028}ü"), r#""a\u003cb\u003e\u0026\"\\\u0001\n\u2028ü""#);
        assert_eq!(string([0xff, b'x']), "\"\u{fffd}x\"");
    }

    #[test]
    fn base64_with_padding() {
        for (bytes, text) in [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(base64(bytes), text);
        }
    }
}
