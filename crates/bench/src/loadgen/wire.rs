//! Encodes the few protobuf messages of a load by hand, into a buffer that is reused, and decodes single
//! fields of responses.

use api::wire::{put_varint, wide_tag};

use crate::loadgen::Error;

/// Encodes a message: its methods append fields to the buffer.
pub struct Message<'a>(pub &'a mut Vec<u8>);

impl Message<'_> {
    /// Appends a number, unless it is 0: proto3 omits default values.
    pub fn uint(&mut self, field: u32, value: u64) -> &mut Self {
        if value != 0 { self.uint_always(field, value) } else { self }
    }

    /// Appends a number even if it is 0. This is necessary for a field of a `oneof`.
    pub fn uint_always(&mut self, field: u32, value: u64) -> &mut Self {
        put_varint(self.0, u64::from(field << 3));
        put_varint(self.0, value);
        self
    }

    /// Appends a signed number of type int64.
    pub fn int(&mut self, field: u32, value: i64) -> &mut Self {
        self.uint(field, value as u64)
    }

    /// Appends a bool, unless it is false.
    pub fn flag(&mut self, field: u32, value: bool) -> &mut Self {
        self.uint(field, u64::from(value))
    }

    /// Appends bytes, unless they are empty.
    pub fn bytes(&mut self, field: u32, value: &[u8]) -> &mut Self {
        if !value.is_empty() {
            self.bytes_always(field, value);
        }
        self
    }

    /// Appends bytes even if they are empty. This is necessary for a field of a `oneof`.
    pub fn bytes_always(&mut self, field: u32, value: &[u8]) -> &mut Self {
        put_varint(self.0, wide_tag(field));
        put_varint(self.0, value.len() as u64);
        self.0.extend_from_slice(value);
        self
    }

    /// Appends a nested message.
    pub fn message(&mut self, field: u32, write: impl FnOnce(&mut Message)) -> &mut Self {
        put_varint(self.0, wide_tag(field));
        let start = self.0.len();
        write(&mut Message(self.0));
        let length = self.0.len() - start;
        // The length must precede the message, but is known only after it. So append the length, and then
        // rotate it to the front. It mostly takes only one byte.
        put_varint(self.0, length as u64);
        self.0[start..].rotate_left(length);
        self
    }
}

/// Value of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// Varint or fixed-size number.
    Number(u64),
    /// Bytes, text, or a nested message.
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    /// Returns the bytes; empty if the value is a number.
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Field::Bytes(bytes) => bytes,
            Field::Number(_) => &[],
        }
    }

    /// Returns the number; 0 if the value is not a number.
    pub fn number(self) -> u64 {
        match self {
            Field::Number(number) => number,
            Field::Bytes(_) => 0,
        }
    }
}

/// Iterates over the fields of an encoded message. Ends early if the message is malformed.
#[derive(Clone, Copy)]
pub struct Fields<'a>(pub &'a [u8]);

impl<'a> Fields<'a> {
    /// Returns the last occurrence of a field, which is the one that counts if there are several.
    pub fn last(self, number: u32) -> Option<Field<'a>> {
        self.filter(|(at, _)| *at == number).last().map(|(_, field)| field)
    }

    /// Returns the number in a field; 0 if the field is missing.
    pub fn number(self, field: u32) -> u64 {
        self.last(field).map_or(0, Field::number)
    }

    /// Returns the bytes in a field; empty if the field is missing.
    pub fn bytes(self, field: u32) -> &'a [u8] {
        self.last(field).map_or(&[], Field::bytes)
    }

    fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for (at, byte) in self.0.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7f) << (7 * at).min(63);
            if byte & 0x80 == 0 {
                self.0 = &self.0[at + 1..];
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = (u32, Field<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).ok()?;
        let field = match tag & 7 {
            0 => Field::Number(self.varint()?),
            1 => Field::Number(u64::from_le_bytes(self.take(8)?.try_into().ok()?)),
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Field::Bytes(self.take(length)?)
            }
            5 => Field::Number(u64::from(u32::from_le_bytes(self.take(4)?.try_into().ok()?))),
            _ => return None,
        };
        Some((number, field))
    }
}

/// Writes a number over the first bytes of a key, in the zigzag varint encoding of Go's `binary.PutVarint`.
///
/// Returns an error if the key is too short for the number. etcd's tool panics in this case.
pub fn number_key(key: &mut [u8], number: i64) -> Result<(), Error> {
    let mut rest = (number << 1 ^ number >> 63) as u64;
    let size = key.len();
    let mut at = 0;
    loop {
        let byte = key.get_mut(at).ok_or(Error::KeyTooShort { number, bytes: size })?;
        *byte = rest as u8 & 0x7f | if rest >= 0x80 { 0x80 } else { 0 };
        rest >>= 7;
        at += 1;
        if rest == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let mut out = Vec::new();
        Message(&mut out).bytes(1, b"key").uint(2, 300).message(3, |inner| {
            inner.bytes(1, &[7; 200]).flag(2, true).flag(3, false).int(4, -1);
        });
        let fields: Vec<_> = Fields(&out).collect();
        assert_eq!(fields[0], (1, Field::Bytes(b"key")));
        assert_eq!(fields[1], (2, Field::Number(300)));
        let inner = Fields(fields[2].1.bytes());
        assert_eq!(inner.bytes(1), [7; 200]);
        assert_eq!((inner.number(2), inner.number(3), inner.number(4) as i64), (1, 0, -1));
        assert_eq!(fields.len(), 3);
    }

    #[test]
    fn damage_ends_the_walk() {
        for bytes in [&[0x0a, 5, 1][..], &[0xff; 11], &[0x0b], &[0x09, 1]] {
            assert_eq!(Fields(bytes).count(), 0);
        }
    }

    #[test]
    fn keys_are_numbered_as_go_numbers_them() {
        let mut key = [0; 4];
        number_key(&mut key, 1).unwrap();
        assert_eq!(key, [2, 0, 0, 0]);
        number_key(&mut key, 300).unwrap();
        assert_eq!(key, [0xd8, 4, 0, 0]);
        // The second key byte is from the previous number, because the number overwrites only one byte.
        // etcd's tool reuses its buffer in the same way.
        number_key(&mut key, 1).unwrap();
        assert_eq!(key, [2, 4, 0, 0]);
        assert!(number_key(&mut key[..1], 64).is_err());
    }
}
