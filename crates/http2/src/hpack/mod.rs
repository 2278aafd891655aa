//! Header compression (RFC 7541): [`Decoder`] for one direction of a connection, [`Encoder`] for the other.

mod decoder;
mod encoder;
mod huffman;
mod shared;
mod static_table;

pub(crate) use decoder::Decoder;
pub(crate) use encoder::{Encoder, OwnedBlock, check_all};
pub use encoder::{InvalidField, Template};

/// Default size of a dynamic table in bytes, as RFC 7541, section 4.1 counts them. Neither direction uses a
/// larger table, whatever the peer allows.
pub(crate) const TABLE_BYTES: usize = 4096;

/// Bytes that a dynamic table entry counts besides its name and value (RFC 7541, section 4.1).
pub(crate) const ENTRY_BYTES: usize = 32;

/// Error: a header block cannot be decoded. The tables of both ends differ from here on, so the connection
/// must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

/// Reason why a block was not decoded completely. Each ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undecoded {
    Damaged,
    /// The decoded list is several times larger than the largest list accepted.
    Excessive,
}

impl From<Damaged> for Undecoded {
    fn from(Damaged: Damaged) -> Undecoded {
        Undecoded::Damaged
    }
}

/// Decodes an integer with a prefix of `bits` bits (RFC 7541, section 5.1).
fn number(block: &mut &[u8], bits: u32) -> Result<usize, Damaged> {
    let (first, mut rest) = block.split_first().ok_or(Damaged)?;
    let mask = (1_usize << bits) - 1;
    let mut value = usize::from(*first) & mask;
    if value == mask {
        let mut shift = 0;
        loop {
            let (byte, more) = rest.split_first().ok_or(Damaged)?;
            rest = more;
            // No length or index of an accepted block comes near 2^28. Trailing zero digits are refused too,
            // because they could continue forever.
            if shift > 21 {
                return Err(Damaged);
            }
            value += (usize::from(*byte) & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                break;
            }
        }
    }
    *block = rest;
    Ok(value)
}

/// Appends an integer; `pattern` holds the bits above the prefix.
fn put_number(out: &mut Vec<u8>, pattern: u8, bits: u32, mut value: usize) {
    let mask = (1_usize << bits) - 1;
    if value < mask {
        out.push(pattern | value as u8);
        return;
    }
    out.push(pattern | mask as u8);
    value -= mask;
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests;
