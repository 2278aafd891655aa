//! Implements header compression (RFC 7541): [`Decoder`] for received header blocks, [`Encoder`] for sent
//! ones.

mod decoder;
mod encoder;
mod huffman;
mod shared;
mod static_table;

pub(crate) use decoder::Decoder;
pub(crate) use encoder::{Encoder, OwnedBlock, check_all};
pub use encoder::{InvalidField, Template};

/// Default size limit of a dynamic table in bytes, as RFC 7541, section 4.1 counts them. Neither direction
/// uses a larger table, even if the peer allows it.
pub(crate) const TABLE_BYTES: usize = 4096;

/// Bytes by which an entry counts against the size of a dynamic table in addition to its name and value (RFC
/// 7541, section 4.1).
pub(crate) const ENTRY_BYTES: usize = 32;

/// Error: a header block cannot be decoded. The connection must end, because the tables of both ends would
/// differ from here on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Damaged;

/// Reason why a header block was not decoded to its end. Either reason ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undecoded {
    Damaged,
    /// The decoded list is several times larger than the maximum size that is accepted.
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
            // A number with more bytes is an error: no length or index of an accepted block comes near 2^28.
            // That includes numbers with superfluous zero digits, of which there could be any number.
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

/// Appends an integer with a prefix of `bits` bits. `pattern` contains the bits above the prefix in the first
/// byte.
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
