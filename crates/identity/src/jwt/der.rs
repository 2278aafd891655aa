//! Decodes the subset of DER that keys and certificates use.

/// A cursor over the elements of a DER encoding.
#[derive(Clone, Copy)]
pub(super) struct Der<'a>(&'a [u8]);

pub(super) const INTEGER: u8 = 0x02;
pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const OCTET_STRING: u8 = 0x04;
pub(super) const OBJECT: u8 = 0x06;
pub(super) const SEQUENCE: u8 = 0x30;

impl<'a> Der<'a> {
    pub fn new(bytes: &'a [u8]) -> Der<'a> {
        Der(bytes)
    }

    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Returns the tag byte of the next element, without taking the element; `None` at the end.
    pub fn peek(self) -> Option<u8> {
        self.0.first().copied()
    }

    /// Takes the next element of any type; returns its tag and contents.
    pub fn any(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        // Tags of more than one byte do not occur in keys and are refused.
        if tag & 0x1f == 0x1f {
            return None;
        }
        let (&first, rest) = rest.split_first()?;
        let (len, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (digits, rest) = rest.split_at_checked(usize::from(first & 0x7f))?;
                (digits.iter().fold(0, |len, digit| len << 8 | usize::from(*digit)), rest)
            }
            _ => return None,
        };
        let (contents, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((tag, contents))
    }

    /// Takes the next element if it has this tag; returns its contents.
    pub fn take(&mut self, tag: u8) -> Option<&'a [u8]> {
        if self.peek() != Some(tag) {
            return None;
        }
        self.any().map(|(_, contents)| contents)
    }

    /// Takes the next element if it is a sequence; returns a cursor over its elements.
    pub fn sequence(&mut self) -> Option<Der<'a>> {
        self.take(SEQUENCE).map(Der)
    }

    /// Takes a non-negative integer; returns its bytes without leading zeros.
    pub fn unsigned(&mut self) -> Option<&'a [u8]> {
        let bytes = self.take(INTEGER)?;
        if bytes.first()? & 0x80 != 0 {
            return None;
        }
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        Some(&bytes[zeros..])
    }

    /// Takes a bit string of whole bytes; returns the bytes. `None` if the next element is something else.
    pub fn bits(&mut self) -> Option<&'a [u8]> {
        self.take(BIT_STRING)?.strip_prefix(&[0])
    }
}

/// Returns a cursor over the elements of a sequence; `None` if `bytes` is not exactly one sequence.
pub(super) fn only_sequence(bytes: &[u8]) -> Option<Der<'_>> {
    let mut der = Der(bytes);
    let sequence = der.sequence()?;
    der.is_empty().then_some(sequence)
}
