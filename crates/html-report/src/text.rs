//! Formats texts and numbers for a page, with escaping.

/// Escapes a text for the content of an element, or for a quoted attribute. Replaces control characters and
/// bidirectional marks, which could make the text look like another one.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\n' | '\t' => out.push(letter),
            letter if stdx::log_text::is_unprintable(letter) => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
    }
    out
}

/// Formats a number briefly: with three significant digits from 1 to 1000, with all digits of its integer
/// part above, and with three decimals below.
pub fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

/// Formats a number like [`short`], followed by a non-breaking space and the unit.
pub(crate) fn with_unit(value: f64, unit: &str) -> String {
    format!("{}\u{a0}{unit}", short(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, text) in
            [(0.0, "0"), (1234.5, "1234"), (12.34, "12.3"), (1.234, "1.23"), (0.1234, "0.123")]
        {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn markup_is_text() {
        assert_eq!(
            escape("<script>alert(\"1\")</script>&\u{202e}x\u{7}\n"),
            "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;\u{fffd}x\u{fffd}\n"
        );
    }
}
