//! Numbers as Go prints them, since etcd's report is made of them.

use std::time::Duration;

/// `%g`: the shortest digits that say exactly this number, with an exponent below 1e-4 and from 1e6 on.
pub fn general(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return match value {
            v if v.is_nan() => "NaN".to_owned(),
            v if v == f64::INFINITY => "+Inf".to_owned(),
            v if v == f64::NEG_INFINITY => "-Inf".to_owned(),
            _ => "0".to_owned(),
        };
    }
    let scientific = format!("{value:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if !(-4..6).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{mantissa}e{sign}{:02}", exponent.abs());
    }
    format!("{value}")
}

/// `Duration.String`, for a duration below some centuries.
pub fn duration(time: Duration) -> String {
    let nanos = time.as_nanos();
    let fraction = |value: f64, unit: &str| format!("{value}{unit}");
    match nanos {
        0 => "0s".to_owned(),
        1..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => fraction(nanos as f64 / 1e3, "\u{b5}s"),
        1_000_000..1_000_000_000 => fraction(nanos as f64 / 1e6, "ms"),
        _ => {
            let (hours, minutes) = (time.as_secs() / 3600, time.as_secs() / 60 % 60);
            let rest = nanos % 60_000_000_000;
            let whole = rest / 1_000_000_000;
            let part = format!("{:09}", rest % 1_000_000_000);
            let part = part.trim_end_matches('0');
            let seconds = if part.is_empty() { format!("{whole}s") } else { format!("{whole}.{part}s") };
            match (hours, minutes) {
                (0, 0) => seconds,
                (0, _) => format!("{minutes}m{seconds}"),
                _ => format!("{hours}h{minutes}m{seconds}"),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats() {
        for (value, text) in [
            (0.0, "0"),
            (0.000123, "0.000123"),
            (0.0000123, "1.23e-05"),
            (1234.5, "1234.5"),
            (123456.789, "123456.789"),
            (1234567.0, "1.234567e+06"),
            (12345678.9, "1.23456789e+07"),
            (1e20, "1e+20"),
            (0.1, "0.1"),
        ] {
            assert_eq!(general(value), text);
        }
    }

    #[test]
    fn durations() {
        for (nanos, text) in [
            (0, "0s"),
            (999, "999ns"),
            (1_500, "1.5\u{b5}s"),
            (2_000_000, "2ms"),
            (1_234_567, "1.234567ms"),
            (1_500_000_000, "1.5s"),
            (61_000_000_000, "1m1s"),
            (3_600_000_000_000, "1h0m0s"),
        ] {
            assert_eq!(duration(Duration::from_nanos(nanos)), text);
        }
    }
}
