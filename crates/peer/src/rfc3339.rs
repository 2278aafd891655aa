use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SECONDS_PER_DAY: u64 = 86_400;

/// A time as Go's JSON writes it: UTC, nanoseconds without trailing zeros.
pub(crate) fn format(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let (days, seconds) = (since.as_secs() / SECONDS_PER_DAY, since.as_secs() % SECONDS_PER_DAY);
    let (year, month, day) = civil(days as i64);
    let mut text = format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60
    );
    if since.subsec_nanos() > 0 {
        let fraction = format!(".{:09}", since.subsec_nanos());
        text.push_str(fraction.trim_end_matches('0'));
    }
    text + "Z"
}

/// Reads a time with any offset and up to nine digits behind the point; None when it is none.
pub(crate) fn parse(text: &str) -> Option<SystemTime> {
    let number = |at: std::ops::Range<usize>| -> Option<i64> {
        let part = text.get(at)?;
        part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?
    };
    let separators = [(4, "-"), (7, "-"), (10, "T"), (13, ":"), (16, ":")];
    if separators.iter().any(|(at, separator)| text.get(*at..at + 1) != Some(separator)) {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let rest = text.get(19..)?;
    let zone_at = rest.find(['Z', '+', '-'])?;
    let (fraction, zone) = rest.split_at_checked(zone_at)?;
    let nanos = match fraction.strip_prefix('.') {
        Some(digits) if (1..=9).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()) => {
            digits.parse::<u64>().ok()? * 10_u64.pow(9 - digits.len() as u32)
        }
        None if fraction.is_empty() => 0,
        _ => return None,
    };
    let offset_minutes = match zone.as_bytes() {
        b"Z" => 0,
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] => {
            let digits = [h1, h2, m1, m2];
            if !digits.iter().all(|digit| digit.is_ascii_digit()) {
                return None;
            }
            let [h1, h2, m1, m2] = digits.map(|digit| i64::from(digit - b'0'));
            let minutes = (h1 * 10 + h2) * 60 + m1 * 10 + m2;
            if *sign == b'+' { minutes } else { -minutes }
        }
        _ => return None,
    };
    let seconds = days(year, month, day) * SECONDS_PER_DAY as i64
        + hour * 3600
        + (minute - offset_minutes) * 60
        + second;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds.try_into().ok()?) + Duration::from_nanos(nanos))
}

/// Days since 1970-01-01 of a date (Howard Hinnant's `days_from_civil`).
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

/// The other way round (`civil_from_days`).
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day_of_year - (153 * shifted + 2) / 5 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_go_out_as_go_writes_them_and_come_back() {
        let time = |seconds, nanos| UNIX_EPOCH + Duration::new(seconds, nanos);
        assert_eq!(format(time(0, 0)), "1970-01-01T00:00:00Z");
        assert_eq!(format(time(951_782_400, 120_000_000)), "2000-02-29T00:00:00.12Z");
        assert_eq!(format(time(1_795_258_253, 873_938_335)), "2026-11-21T10:50:53.873938335Z");
        for (seconds, nanos) in [(0, 0), (951_782_399, 1), (4_107_542_400, 999_999_999), (1_709_164_800, 5)] {
            assert_eq!(parse(&format(time(seconds, nanos))), Some(time(seconds, nanos)));
        }
        assert_eq!(parse("2026-11-21T12:50:53.5+02:00"), Some(time(1_795_258_253, 500_000_000)));
        assert_eq!(parse("2026-11-21T03:20:53-07:30"), Some(time(1_795_258_253, 0)));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for bad in [
            "",
            "2026-11-21",
            "2026-11-21T10:50:53",
            "2026-13-21T10:50:53Z",
            "2026-11-21T10:50:53.Z",
            "1969-12-31T23:59:59Z",
            "2026-11-21T10:50:53+2:00",
            "2026-11-21T10:5x:53Z",
            "２026-11-21T10:50:53Z",
        ] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
