//! Escapes strings from clients and other sources, so that they cannot manipulate the terminal of a person
//! who reads the log.

use std::fmt::Write as _;

/// Appends `text` to `out` as a JSON string. Escapes all characters that could move a terminal's cursor, end
/// a line, or change the order or the look of the characters around them.
pub fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if is_unprintable(c) => {
                let mut units = [0; 2];
                for unit in c.encode_utf16(&mut units) {
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Returns true for control characters, line separators, marks of the writing direction, and invisible
/// characters.
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(
            c,
            '\u{ad}'
                | '\u{34f}'
                | '\u{61c}'
                | '\u{115f}'..='\u{1160}'
                | '\u{17b4}'..='\u{17b5}'
                | '\u{180b}'..='\u{180f}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{3164}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{feff}'
                | '\u{ffa0}'
                | '\u{fff0}'..='\u{fffb}'
                | '\u{1bca0}'..='\u{1bca3}'
                | '\u{1d173}'..='\u{1d17a}'
                | '\u{e0000}'..='\u{e0fff}'
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_seen_or_moves_others_is_escaped_and_the_rest_stays() {
        for (text, expected) in [
            ("plain, ünïcödé 漢字 🦀", r#""plain, ünïcödé 漢字 🦀""#),
            ("\"\\\n\r\t", r#""\"\\\n\r\t""#),
            ("\0\u{1b}[2J\u{7f}", r#""\u0000\u001b[2J\u007f""#),
            ("\u{80}\u{85}\u{9b}\u{9f}\u{a0}", "\"\\u0080\\u0085\\u009b\\u009f\u{a0}\""),
            ("\u{2028}\u{2029}\u{202e}\u{feff}", r#""\u2028\u2029\u202e\ufeff""#),
            ("\u{e0041}", r#""\udb40\udc41""#),
        ] {
            let mut out = String::new();
            write_text(&mut out, text);
            assert_eq!(out, expected);
        }
    }
}
