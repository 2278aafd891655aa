//! Formats numbers as Go does, for reports that must equal those of etcd's tool.

/// Formats a number like Go's `%g`: with the shortest digits that identify it, and with an exponent below
/// 1e-4 and from 1e6 on.
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
}
