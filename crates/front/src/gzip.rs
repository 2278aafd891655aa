use std::io::{self, Read, Write};

use api::{Code, Status};
use bytes::Bytes;
use flate2::Compression;
use flate2::bufread::GzDecoder;
use flate2::write::GzEncoder;

/// Fixed cost of creating a decoder, counted as work as if it were this many bytes of output.
const DECODER_BYTES: usize = 2 * 1024;

/// Maximum number of concatenated gzip members in a message; a message with more is refused. Ordinary
/// programs write one member. The limit is needed because each member requires a new decoder, even if it is
/// only 20 bytes long.
const MEMBERS_MAX: usize = 64;

/// Decompresses one message. Fails if the result is longer than `bytes_max` bytes, and stops soon after that
/// length, so that a decompression bomb does not cost more memory. The cost is added to `work` in bytes, on
/// success and on failure.
pub(crate) fn unpack(packed: &[u8], bytes_max: usize, work: &mut usize) -> Result<Bytes, Status> {
    let mut plain = Vec::with_capacity(packed.len().saturating_mul(2).min(bytes_max).min(64 * 1024));
    let read = unpack_members(packed, bytes_max, &mut plain, work);
    *work += plain.len();
    match read {
        Ok(()) if plain.len() > bytes_max => Err(Status::with(
            Code::ResourceExhausted,
            format!(
                "grpc: received message after decompression larger than max ({} vs. {bytes_max})",
                plain.len()
            ),
        )),
        Ok(()) => Ok(Bytes::from(plain)),
        Err(error) => {
            Err(Status::with(Code::Internal, format!("grpc: failed to decompress the message: {error}")))
        }
    }
}

/// Decompresses the members of a message, but at most `bytes_max + 1` bytes, by which the caller detects a
/// message that is too long.
fn unpack_members(
    mut packed: &[u8],
    bytes_max: usize,
    plain: &mut Vec<u8>,
    work: &mut usize,
) -> io::Result<()> {
    for _ in 0..MEMBERS_MAX {
        *work += DECODER_BYTES;
        let mut decoder = GzDecoder::new(packed);
        let room = bytes_max.saturating_add(1).saturating_sub(plain.len());
        decoder.by_ref().take(room as u64).read_to_end(plain)?;
        packed = decoder.into_inner();
        if plain.len() > bytes_max || packed.is_empty() {
            return Ok(());
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "it is made of too many parts"))
}

/// Compresses one message.
pub(crate) fn pack(plain: &[u8]) -> io::Result<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 2 + 64), Compression::fast());
    encoder.write_all(plain)?;
    Ok(Bytes::from(encoder.finish()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_unpacks() -> Result<(), Box<dyn std::error::Error>> {
        let plain = b"etcd ".repeat(1000);
        let packed = pack(&plain)?;
        assert!(packed.len() < plain.len());
        let mut work = 7;
        assert_eq!(unpack(&packed, plain.len(), &mut work)?, plain);
        assert_eq!(work, 7 + DECODER_BYTES + plain.len());
        Ok(())
    }

    #[test]
    fn a_bomb_and_garbage_are_refused() -> Result<(), Box<dyn std::error::Error>> {
        let packed = pack(&vec![0; 1 << 20])?;
        let mut work = 0;
        let unpacked = unpack(&packed, 1000, &mut work).map_err(|status| status.code);
        assert_eq!((unpacked, work), (Err(Code::ResourceExhausted), DECODER_BYTES + 1001));
        let unpacked = unpack(b"no gzip", 1000, &mut work).map_err(|status| status.code);
        assert_eq!((unpacked, work), (Err(Code::Internal), 2 * DECODER_BYTES + 1001));
        Ok(())
    }

    #[test]
    fn a_message_of_many_parts_is_refused_before_most_of_them() -> Result<(), Box<dyn std::error::Error>> {
        let (empty, part) = (pack(b"")?, pack(b"part")?);
        let mut work = 0;
        assert_eq!(unpack(&[&part[..], &empty, &part].concat(), 8, &mut work)?, &b"partpart"[..]);
        assert_eq!(work, 3 * DECODER_BYTES + 8);
        let mut work = 0;
        let unpacked = unpack(&empty.repeat(100_000), 1000, &mut work).map_err(|status| status.code);
        assert_eq!((unpacked, work), (Err(Code::Internal), MEMBERS_MAX * DECODER_BYTES));
        Ok(())
    }
}
