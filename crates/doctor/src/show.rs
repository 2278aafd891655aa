//! Formats numbers for people: durations, sizes, counts, rates and shares.

use cli::go;

/// Formats a time in seconds, in a suitable unit: `850 µs`, `12.3 ms`, `4.10 s`, `3 h`, `12 days`.
pub fn seconds(value: f64) -> String {
    let size = value.abs();
    if size < 1e-3 {
        format!("{:.0} µs", value * 1e6)
    } else if size < 1.0 {
        format!("{:.1} ms", value * 1e3)
    } else if size < 120.0 {
        format!("{value:.2} s")
    } else if size < 7200.0 {
        format!("{:.0} min", value / 60.0)
    } else if size < 48.0 * 3600.0 {
        format!("{:.0} h", value / 3600.0)
    } else {
        format!("{:.0} days", value / 86400.0)
    }
}

/// Formats a number of bytes in a suitable unit: `1.5 MB`.
pub fn bytes(value: f64) -> String {
    go::bytes(value.max(0.0) as u64)
}

/// Formats a share of one as a percentage: `81 %`.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Formats a number with thousands separators: `1,234,567`.
pub fn count(value: f64) -> String {
    let digits = format!("{:.0}", value.max(0.0));
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Formats a number followed by its noun, `one` for the number 1 and `many` otherwise.
pub fn counted(value: f64, one: &str, many: &str) -> String {
    format!("{} {}", count(value), if value == 1.0 { one } else { many })
}

/// Returns a text from a server in a form that is safe for a terminal: control characters are replaced.
pub fn clean(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

/// Formats a rate per second: `0.4/s`, `1,200/s`.
pub fn rate(value: f64) -> String {
    if value < 10.0 { format!("{value:.1}/s") } else { format!("{}/s", count(value)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!(seconds(0.00085), "850 µs");
        assert_eq!(seconds(0.0123), "12.3 ms");
        assert_eq!(seconds(-4.1), "-4.10 s");
        assert_eq!(seconds(86400.0 * 12.2), "12 days");
        assert_eq!(
            (counted(1.0, "day", "days"), counted(0.0, "day", "days")),
            ("1 day".into(), "0 days".into())
        );
        assert_eq!(clean("m\u{1b}[2J\n"), "m\u{fffd}[2J\u{fffd}");
        assert_eq!(count(1_234_567.0), "1,234,567");
        assert_eq!((rate(0.42), rate(1200.0)), ("0.4/s".to_owned(), "1,200/s".to_owned()));
        assert_eq!((percent(0.814), bytes(-1.0)), ("81 %".to_owned(), "0 B".to_owned()));
    }
}
