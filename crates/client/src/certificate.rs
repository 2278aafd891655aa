use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stdx::calendar::Utc;

/// Returns the time at which a DER certificate expires, or `None` if `der` is not a certificate.
///
/// Parses only as much of the certificate as is needed, by RFC 5280 section 4.1: enters Certificate and
/// TBSCertificate, skips version, serial number, algorithm and issuer, and reads Validity. This avoids a
/// dependency on a parser for whole certificates, which would be larger than this crate.
pub fn not_after(der: &[u8]) -> Option<SystemTime> {
    let (certificate, _) = inside(der, SEQUENCE)?;
    let (tbs, _) = inside(certificate, SEQUENCE)?;
    let mut rest = tbs;
    if rest.first() == Some(&VERSION) {
        rest = element(rest)?.2;
    }
    for _ in ["serial number", "signature algorithm", "issuer"] {
        rest = element(rest)?.2;
    }
    let (validity, _) = inside(rest, SEQUENCE)?;
    let (_, _, after_not_before) = element(validity)?;
    let (tag, text, _) = element(after_not_before)?;
    let text = std::str::from_utf8(text).ok()?;
    match tag {
        UTC_TIME => {
            let year: u64 = digits(text, 0, 2)?;
            instant(if year < 50 { 2000 + year } else { 1900 + year }, text.get(2..)?)
        }
        GENERALIZED_TIME => instant(digits(text, 0, 4)?, text.get(4..)?),
        _ => None,
    }
}

const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// Returns the tag and the contents of the first DER element, and the bytes after it.
fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, rest) = der.split_first()?;
    let (&first, mut rest) = rest.split_first()?;
    let mut len = usize::from(first);
    if first >= 0x80 {
        let bytes = usize::from(first & 0x7f);
        if bytes == 0 || bytes > 4 {
            return None;
        }
        let (long, after) = rest.split_at_checked(bytes)?;
        len = long.iter().fold(0, |len, byte| (len << 8) | usize::from(*byte));
        rest = after;
    }
    let (contents, after) = rest.split_at_checked(len)?;
    Some((tag, contents, after))
}

fn inside(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    element(der).filter(|found| found.0 == tag).map(|found| (found.1, found.2))
}

fn digits(text: &str, from: usize, count: usize) -> Option<u64> {
    let part = text.get(from..from + count)?;
    part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?
}

/// Parses `MMDDhhmmssZ`, the only form that RFC 5280 allows, and returns the time in the given year.
fn instant(year: u64, rest: &str) -> Option<SystemTime> {
    let field = |at: usize| digits(rest, at, 2);
    let (month, day, hour, minute, second) = (field(0)?, field(2)?, field(4)?, field(6)?, field(8)?);
    let whole = rest.len() == 11 && rest.ends_with('Z');
    if !whole {
        return None;
    }
    let utc = Utc::new(year, [month, day], [hour, minute, second])?;
    UNIX_EPOCH.checked_add(Duration::from_secs(utc.unix_seconds()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        let seconds = |time: Option<SystemTime>| {
            time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map(|since| since.as_secs())
        };
        assert_eq!(seconds(instant(1970, "0101000000Z")), Some(0));
        assert_eq!(seconds(instant(2000, "0229235959Z")), Some(951_868_799));
        assert_eq!(seconds(instant(2026, "1121172059Z")), Some(1_795_281_659));
        assert_eq!(seconds(instant(9999, "1231235959Z")), Some(253_402_300_799));
        for wrong in ["1321000000Z", "0101000000", "0101000000+0100", "01x1000000Z", "ü10100000Z"] {
            assert_eq!(instant(2000, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_end() {
        assert_eq!(not_after(b""), None);
        assert_eq!(not_after(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
        assert_eq!(not_after(&[0x30, 0x02, 0x30, 0x00]), None);
    }
}
