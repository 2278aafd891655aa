//! Parses DER (X.690), the encoding of certificates and revocation lists. The parser reads one level of
//! nested elements at a time, without recursion and without allocation.

pub(crate) const BOOLEAN: u8 = 0x01;
pub(crate) const INTEGER: u8 = 0x02;
pub(crate) const BIT_STRING: u8 = 0x03;
pub(crate) const OCTET_STRING: u8 = 0x04;
pub(crate) const OBJECT_IDENTIFIER: u8 = 0x06;
pub(crate) const UTC_TIME: u8 = 0x17;
pub(crate) const GENERALIZED_TIME: u8 = 0x18;
pub(crate) const SEQUENCE: u8 = 0x30;
pub(crate) const SET: u8 = 0x31;

/// Returns the tag of a context-specific element. `constructed` is true if the element contains other
/// elements, and false if it contains a value.
pub(crate) const fn context(number: u8, constructed: bool) -> u8 {
    0x80 | number | if constructed { 0x20 } else { 0 }
}

/// One DER element.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Element<'a> {
    pub(crate) tag: u8,
    /// Encoding of the whole element: tag, length and contents.
    pub(crate) whole: &'a [u8],
    pub(crate) contents: &'a [u8],
}

/// Reader of consecutive DER elements. All methods return `None` if the input is not strict DER: a length
/// must have the shortest form and not exceed the input, and a tag must have one byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) fn new(der: &'a [u8]) -> Reader<'a> {
        Reader { rest: der }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Reads the next element of any type.
    pub(crate) fn any(&mut self) -> Option<Element<'a>> {
        let start = self.rest;
        let (&tag, rest) = start.split_first()?;
        if tag & 0x1f == 0x1f {
            return None;
        }
        let (&first, mut rest) = rest.split_first()?;
        let mut length = usize::from(first);
        if first >= 0x80 {
            let count = usize::from(first & 0x7f);
            if count == 0 || count > 4 {
                return None;
            }
            let (bytes, after) = rest.split_at_checked(count)?;
            length = bytes.iter().fold(0, |length, byte| (length << 8) | usize::from(*byte));
            let shortest = if length < 0x80 { 0 } else { length.ilog2() as usize / 8 + 1 };
            if count != shortest {
                return None;
            }
            rest = after;
        }
        let (contents, after) = rest.split_at_checked(length)?;
        self.rest = after;
        Some(Element { tag, whole: start.get(..start.len() - after.len())?, contents })
    }

    /// Reads the next element if it has this tag; otherwise reads nothing and returns `None`.
    pub(crate) fn optional(&mut self, tag: u8) -> Option<Element<'a>> {
        (self.rest.first() == Some(&tag)).then(|| self.any()).flatten()
    }

    /// Reads the next element, which must have this tag.
    pub(crate) fn element(&mut self, tag: u8) -> Option<Element<'a>> {
        self.any().filter(|element| element.tag == tag)
    }

    /// Reads the next element, which must have this tag, and returns a reader of its contents.
    pub(crate) fn enter(&mut self, tag: u8) -> Option<Reader<'a>> {
        self.element(tag).map(|element| Reader::new(element.contents))
    }

    /// Reads a BOOLEAN. If it is omitted, it is false.
    pub(crate) fn flag(&mut self) -> Option<bool> {
        match self.optional(BOOLEAN) {
            None => (self.rest.first() != Some(&BOOLEAN)).then_some(false),
            Some(flag) => match flag.contents {
                [0] => Some(false),
                [0xff] => Some(true),
                _ => None,
            },
        }
    }

    /// Reads a BIT STRING and returns its bytes. The number of bits must be a multiple of 8.
    pub(crate) fn bit_string(&mut self) -> Option<&'a [u8]> {
        let (&unused_bits, bytes) = self.element(BIT_STRING)?.contents.split_first()?;
        (unused_bits == 0).then_some(bytes)
    }

    /// Reads an INTEGER, which must not be negative, and returns its bytes: most significant first, without
    /// leading zeros, and empty for 0.
    pub(crate) fn unsigned(&mut self) -> Option<&'a [u8]> {
        let bytes = self.element(INTEGER)?.contents;
        match bytes {
            [] => None,
            [0] => Some(&[]),
            [0, next, ..] if *next < 0x80 => None,
            [0, rest @ ..] => Some(rest),
            [first, ..] if *first >= 0x80 => None,
            bytes => Some(bytes),
        }
    }

    /// Reads a time and returns it in seconds since 1970; 0 for a time before 1970.
    pub(crate) fn time(&mut self) -> Option<u64> {
        let element = self.any()?;
        let text = std::str::from_utf8(element.contents).ok().filter(|text| text.is_ascii())?;
        match element.tag {
            UTC_TIME => {
                let year = digits(text, 0, 2)?;
                instant(if year < 50 { 2000 + year } else { 1900 + year }, text.get(2..)?)
            }
            GENERALIZED_TIME => instant(digits(text, 0, 4)?, text.get(4..)?),
            _ => None,
        }
    }
}

fn digits(text: &str, from: usize, count: usize) -> Option<u64> {
    let part = text.get(from..from + count)?;
    part.bytes().all(|byte| byte.is_ascii_digit()).then(|| part.parse().ok())?
}

/// Converts a year and the rest of a time to seconds since 1970. The rest must have the form `MMDDhhmmssZ`,
/// the only one that RFC 5280 allows.
fn instant(year: u64, rest: &str) -> Option<u64> {
    if rest.len() != 11 || !rest.ends_with('Z') {
        return None;
    }
    let field = |at: usize| digits(rest, at, 2);
    let (month, day, hour, minute, second) = (field(0)?, field(2)?, field(4)?, field(6)?, field(8)?);
    let utc = stdx::calendar::Utc::new(year.max(1970), [month, day], [hour, minute, second])?;
    Some(if year < 1970 { 0 } else { utc.unix_seconds() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_strict_der_is_read() {
        let read = |der: &[u8]| Reader::new(der).any().map(|element| element.contents.len());
        assert_eq!(read(&[0x30, 0x00]), Some(0));
        assert_eq!(read(&[0x04, 0x02, 1, 2]), Some(2));
        assert_eq!(read(&[[0x04, 0x81, 0x80].as_slice(), &[0; 128]].concat()), Some(128));
        assert_eq!(read(&[[0x04, 0x82, 0x01, 0x00].as_slice(), &[0; 256]].concat()), Some(256));
        let wrong: [&[u8]; 9] = [
            &[],
            &[0x30],
            &[0x30, 0x01],
            &[0x30, 0x80, 0, 0],
            &[0x30, 0x81, 0x01, 0],
            &[0x30, 0x82, 0x00, 0x81],
            &[0x30, 0x84, 0xff, 0xff, 0xff, 0xff],
            &[0x30, 0x85, 0, 0, 0, 0, 1, 0],
            &[0x1f, 0x81, 0x00, 0x00],
        ];
        for der in wrong {
            assert_eq!(read(der), None, "{der:x?}");
        }
    }

    #[test]
    fn integers_are_read_without_their_sign_byte() {
        let read = |contents: &[u8]| {
            let der = [&[INTEGER, contents.len() as u8], contents].concat();
            Reader::new(&der).unsigned().map(<[u8]>::to_vec)
        };
        assert_eq!(read(&[0]), Some(vec![]));
        assert_eq!(read(&[5]), Some(vec![5]));
        assert_eq!(read(&[0, 0x80]), Some(vec![0x80]));
        for wrong in [[].as_slice(), &[0, 5], &[0x80], &[0xff, 1]] {
            assert_eq!(read(wrong), None, "{wrong:x?}");
        }
    }

    #[test]
    fn a_flag_is_true_false_or_wrong() {
        let read = |der: &[u8]| Reader::new(der).flag();
        assert_eq!(read(&[]), Some(false));
        assert_eq!(read(&[INTEGER, 1, 0xff]), Some(false));
        assert_eq!(read(&[BOOLEAN, 1, 0]), Some(false));
        assert_eq!(read(&[BOOLEAN, 1, 0xff]), Some(true));
        for wrong in [&[BOOLEAN, 1, 1][..], &[BOOLEAN, 0], &[BOOLEAN, 1], &[BOOLEAN]] {
            assert_eq!(read(wrong), None, "{wrong:x?}");
        }
    }

    #[test]
    fn times_are_read() {
        let read = |tag: u8, text: &str| {
            let der = [&[tag, text.len() as u8], text.as_bytes()].concat();
            Reader::new(&der).time()
        };
        assert_eq!(read(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(read(UTC_TIME, "500101000000Z"), Some(0));
        assert_eq!(read(UTC_TIME, "261121172059Z"), Some(1_795_281_659));
        assert_eq!(read(GENERALIZED_TIME, "99991231235959Z"), Some(253_402_300_799));
        assert_eq!(read(GENERALIZED_TIME, "00000101000000Z"), Some(0));
        for wrong in [
            "",
            "1321000000Z",
            "261321000000Z",
            "261121172059",
            "261121172059+0100",
            "2611211720Z",
            "ü1121172059Z",
        ] {
            assert_eq!(read(UTC_TIME, wrong), None, "{wrong}");
        }
        assert_eq!(read(INTEGER, "261121172059Z"), None);
    }
}
