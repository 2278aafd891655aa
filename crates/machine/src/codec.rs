//! Encodes and decodes the basic values of checkpoints: LEB128 varints, zigzag encoding for signed numbers,
//! and bytes with a length prefix.
//!
//! Decoding never panics and never allocates more bytes than the input has, because the input comes from a
//! disk and may be damaged.

use api::wire::put_varint;

/// Error for an input that ends early, or contains bytes that no writer produces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "malformed checkpoint: {}", self.0)
    }
}

impl std::error::Error for Malformed {}

pub(crate) fn put_u64(out: &mut Vec<u8>, n: u64) {
    put_varint(out, n);
}

pub(crate) fn put_i64(out: &mut Vec<u8>, n: i64) {
    put_u64(out, ((n << 1) ^ (n >> 63)) as u64);
}

pub(crate) fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u64(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Input that is decoded from its front; decoded bytes are removed.
pub(crate) struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[inline]
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        if let [byte @ ..0x80, rest @ ..] = self.0 {
            self.0 = rest;
            return Ok(u64::from(*byte));
        }
        // Most longer numbers end within eight bytes. For these, the code below combines the seven bits of
        // each byte without a loop.
        if let Some(eight) = self.0.first_chunk::<8>() {
            let eight = u64::from_le_bytes(*eight);
            let ends = !eight & 0x8080_8080_8080_8080;
            if ends != 0 {
                // The mask keeps all bits up to the end of the last byte of the number.
                let n = eight & (ends ^ (ends - 1)) & 0x7f7f_7f7f_7f7f_7f7f;
                let n = (n & 0x007f_007f_007f_007f) | (n & 0x7f00_7f00_7f00_7f00) >> 1;
                let n = (n & 0x0000_3fff_0000_3fff) | (n & 0x3fff_0000_3fff_0000) >> 2;
                let n = (n & 0x0000_0000_0fff_ffff) | (n & 0x0fff_ffff_0000_0000) >> 4;
                self.0 = &self.0[(ends.trailing_zeros() / 8) as usize + 1..];
                return Ok(n);
            }
        }
        self.u64_bytewise()
    }

    fn u64_bytewise(&mut self) -> Result<u64, Malformed> {
        let mut n = 0u64;
        for (at, &byte) in self.0.iter().enumerate().take(10) {
            let part = u64::from(byte & 0x7f);
            if at == 9 && byte > 1 {
                return Err(Malformed("a number over 64 bits"));
            }
            n |= part << (7 * at);
            if byte < 0x80 {
                self.0 = &self.0[at + 1..];
                return Ok(n);
            }
        }
        Err(Malformed("a number without an end"))
    }

    #[inline]
    pub fn i64(&mut self) -> Result<i64, Malformed> {
        let n = self.u64()?;
        Ok((n >> 1) as i64 ^ -((n & 1) as i64))
    }

    #[inline]
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.u64()?).map_err(|_| Malformed("a number over 32 bits"))
    }

    pub fn bool(&mut self) -> Result<bool, Malformed> {
        match self.u64()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a truth value other than 0 and 1")),
        }
    }

    #[inline]
    pub fn raw(&mut self, len: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(Malformed("bytes beyond the end"))?;
        self.0 = rest;
        Ok(taken)
    }

    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let len = usize::try_from(self.u64()?).map_err(|_| Malformed("a length beyond the end"))?;
        self.raw(len)
    }

    pub fn text(&mut self) -> Result<String, Malformed> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| Malformed("a text that is not UTF-8"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_the_same_whatever_comes_behind_them() {
        let mut out = Vec::new();
        for bits in 0..=64_u32 {
            // Numbers of each length in bytes: with all bits set, with only the highest bit set, and a
            // mixture.
            let ones = u64::MAX.checked_shr(64 - bits).unwrap_or(0);
            for n in [ones, ones ^ (ones >> 1), ones & 0xa5c3_96f0_5a3c_690f] {
                for behind in 0..10 {
                    out.clear();
                    put_u64(&mut out, n);
                    out.resize(out.len() + behind, 0xff);
                    let mut input = Input(&out);
                    assert_eq!((input.u64(), input.0.len()), (Ok(n), behind));
                    for cut in 1..out.len() - behind {
                        assert!(Input(&out[..cut]).u64().is_err());
                    }
                }
            }
        }
        // Ten bytes are valid if the number fits in 64 bits.
        let ten = |last: u8| [[0x80; 9].as_slice(), &[last]].concat();
        assert_eq!(Input(&ten(0)).u64(), Ok(0));
        assert_eq!(Input(&ten(1)).u64(), Ok(1 << 63));
        assert!(Input(&ten(2)).u64().is_err());
        assert!(Input(&[0x80; 12]).u64().is_err());
    }

    #[test]
    fn numbers_come_back() {
        let mut out = Vec::new();
        let numbers = [0, 1, -1, 63, 64, -64, -65, 300, i64::MAX, i64::MIN];
        for n in numbers {
            put_i64(&mut out, n);
            put_u64(&mut out, n as u64);
        }
        let mut input = Input(&out);
        for n in numbers {
            assert_eq!(input.i64(), Ok(n));
            assert_eq!(input.u64(), Ok(n as u64));
        }
        assert!(input.is_empty());
    }

    #[test]
    fn cut_short_is_an_error() {
        let mut out = Vec::new();
        put_bytes(&mut out, b"hello");
        for len in 0..out.len() {
            assert!(Input(&out[..len]).bytes().is_err(), "{len}");
        }
        assert!(Input(&[0xff; 11]).u64().is_err());
    }
}
