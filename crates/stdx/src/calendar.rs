//! Converts between times and dates of the Gregorian calendar in UTC, and formats and parses them. Leap
//! seconds are not counted.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SECONDS_PER_DAY: u64 = 86_400;

/// A date and time in UTC, in whole seconds. Displayed as in RFC 3339, without the zone:
/// `2026-11-21T07:44:36`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Utc {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

impl Utc {
    /// Returns the date and time this many seconds after 1970-01-01T00:00:00.
    ///
    /// The calculation counts days from 0000-03-01, because then a leap day is the last day of its year (H.
    /// Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`).
    pub fn from_unix(seconds: u64) -> Utc {
        let days = seconds / SECONDS_PER_DAY + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month + 2) / 5 + 1;
        let (month, next_year) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        let second = seconds % SECONDS_PER_DAY;
        Utc {
            year: era * 400 + year_of_era + next_year,
            month,
            day,
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
        }
    }

    /// Returns a date and time; `None` if the year is not from 1970 to 9999, or another number is out of
    /// range. A second of 60 (a leap second) and a day up to 31 in every month are accepted: they stand for
    /// the first second of the next minute, and for a day of the next month.
    pub fn new(year: u64, [month, day]: [u64; 2], [hour, minute, second]: [u64; 3]) -> Option<Utc> {
        let sound = (1970..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=31).contains(&day)
            && hour < 24
            && minute < 60
            && second <= 60;
        sound.then_some(Utc { year, month, day, hour, minute, second })
    }

    /// Returns the seconds since 1970-01-01T00:00:00, with Hinnant's algorithm `days_from_civil` (see
    /// [`Utc::from_unix`]).
    pub fn unix_seconds(self) -> u64 {
        let (year, month) =
            if self.month > 2 { (self.year, self.month - 3) } else { (self.year - 1, self.month + 9) };
        let days =
            365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + self.day - 1 - 719_468;
        ((days * 24 + self.hour) * 60 + self.minute) * 60 + self.second
    }
}

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Utc { year, month, day, hour, minute, second } = self;
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}")
    }
}

/// Formats a time in the format of RFC 3339 as Go's JSON does: in UTC, with up to nine fractional digits
/// without trailing zeros. A time before 1970 is formatted as the beginning of 1970.
pub fn format_rfc3339(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let mut text = Utc::from_unix(since.as_secs()).to_string();
    if since.subsec_nanos() > 0 {
        let fraction = format!(".{:09}", since.subsec_nanos());
        text.push_str(fraction.trim_end_matches('0'));
    }
    text + "Z"
}

/// Parses a time of RFC 3339 with any offset and up to nine fractional digits; `None` if `text` is malformed
/// or the time is before 1970.
pub fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    let separators = [(4, "-"), (7, "-"), (10, "T"), (13, ":"), (16, ":")];
    if separators.iter().any(|(at, separator)| text.get(*at..at + 1) != Some(separator)) {
        return None;
    }
    let number = |from: usize, to: usize| digits(text.get(from..to)?);
    let utc = Utc::new(
        number(0, 4)?,
        [number(5, 7)?, number(8, 10)?],
        [number(11, 13)?, number(14, 16)?, number(17, 19)?],
    )?;
    let rest = text.get(19..)?;
    let zone_at = rest.find(['Z', '+', '-'])?;
    let (fraction, zone) = rest.split_at_checked(zone_at)?;
    let nanos = match fraction.strip_prefix('.') {
        Some(part) if (1..=9).contains(&part.len()) => digits(part)? * 10_u64.pow(9 - part.len() as u32),
        None if fraction.is_empty() => 0,
        _ => return None,
    };
    let offset_minutes = match zone.as_bytes() {
        b"Z" => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let minutes = digits(zone.get(1..3)?)? * 60 + digits(zone.get(4..6)?)?;
            let minutes = i64::try_from(minutes).ok()?;
            if *sign == b'+' { minutes } else { -minutes }
        }
        _ => return None,
    };
    let seconds = i64::try_from(utc.unix_seconds()).ok()? - offset_minutes * 60;
    UNIX_EPOCH.checked_add(Duration::from_secs(seconds.try_into().ok()?) + Duration::from_nanos(nanos))
}

/// Parses an HTTP date in the form that RFC 9110 prefers, such as `Sun, 06 Nov 1994 08:49:37 GMT`. Returns
/// the seconds since 1970; `None` if `text` is malformed.
pub fn parse_http_date(text: &str) -> Option<u64> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, rest) = text.split_once(", ")?;
    let words: Vec<&str> = rest.split(' ').collect();
    let [day, month, year, time, "GMT"] = words[..] else { return None };
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let mut parts = time.split(':').map(digits);
    let clock = [parts.next()??, parts.next()??, parts.next()??];
    Some(Utc::new(digits(year)?, [month, digits(day)?], clock)?.unix_seconds())
}

/// Parses a number that consists only of decimal digits.
fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(seconds: u64, nanos: u32) -> SystemTime {
        UNIX_EPOCH + Duration::new(seconds, nanos)
    }

    #[test]
    fn seconds_are_dates_and_dates_are_seconds() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00"),
            (951_782_399, "2000-02-28T23:59:59"),
            (951_782_400, "2000-02-29T00:00:00"),
            (951_827_696, "2000-02-29T12:34:56"),
            (1_709_251_200, "2024-03-01T00:00:00"),
            (1_767_225_599, "2025-12-31T23:59:59"),
            (1_795_282_288, "2026-11-21T17:31:28"),
            (4_107_542_400, "2100-03-01T00:00:00"),
            (253_402_300_799, "9999-12-31T23:59:59"),
        ] {
            let utc = Utc::from_unix(seconds);
            assert_eq!((utc.to_string().as_str(), utc.unix_seconds()), (text, seconds));
        }
    }

    #[test]
    fn what_is_no_date_is_refused() {
        assert!(Utc::new(2000, [2, 29], [23, 59, 60]).is_some());
        for (year, date, clock) in [
            (1969, [12, 31], [23, 59, 59]),
            (2000, [0, 1], [0, 0, 0]),
            (2000, [13, 1], [0, 0, 0]),
            (2000, [1, 0], [0, 0, 0]),
            (2000, [1, 32], [0, 0, 0]),
            (2000, [1, 1], [24, 0, 0]),
            (2000, [1, 1], [0, 60, 0]),
            (2000, [1, 1], [0, 0, 61]),
        ] {
            assert_eq!(Utc::new(year, date, clock), None);
        }
    }

    #[test]
    fn times_go_out_as_go_writes_them_and_come_back() {
        assert_eq!(format_rfc3339(time(0, 0)), "1970-01-01T00:00:00Z");
        assert_eq!(format_rfc3339(time(951_782_400, 120_000_000)), "2000-02-29T00:00:00.12Z");
        assert_eq!(format_rfc3339(time(1_795_258_253, 873_938_335)), "2026-11-21T10:50:53.873938335Z");
        for (seconds, nanos) in [(0, 0), (951_782_399, 1), (4_107_542_400, 999_999_999), (1_709_164_800, 5)] {
            assert_eq!(parse_rfc3339(&format_rfc3339(time(seconds, nanos))), Some(time(seconds, nanos)));
        }
        assert_eq!(parse_rfc3339("2026-11-21T12:50:53.5+02:00"), Some(time(1_795_258_253, 500_000_000)));
        assert_eq!(parse_rfc3339("2026-11-21T03:20:53-07:30"), Some(time(1_795_258_253, 0)));
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
            "\u{ff12}026-11-21T10:50:53Z",
        ] {
            assert_eq!(parse_rfc3339(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn dates_of_http_are_read() {
        assert_eq!(parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT"), Some(784_111_777));
        assert_eq!(parse_http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        for wrong in
            ["", "Sun, 06 Nov 1994 08:49 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "x, 99 Nov 1994 1:1:1 GMT"]
        {
            assert_eq!(parse_http_date(wrong), None, "{wrong}");
        }
    }
}
