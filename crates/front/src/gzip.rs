use std::io::{self, Read, Write};

use api::{Code, Status};
use bytes::Bytes;
use flate2::Compression;
use flate2::read::MultiGzDecoder;
use flate2::write::GzEncoder;

/// Unpacks one message of at most `bytes_max` bytes; a bomb costs no more memory than that.
pub(crate) fn unpack(packed: &[u8], bytes_max: usize) -> Result<Bytes, Status> {
    let mut decoder = MultiGzDecoder::new(packed);
    let mut plain = Vec::with_capacity(packed.len().saturating_mul(2).min(bytes_max).min(64 * 1024));
    let limit = bytes_max as u64 + 1;
    match decoder.by_ref().take(limit).read_to_end(&mut plain) {
        Ok(_) if plain.len() > bytes_max => Err(Status::with(
            Code::ResourceExhausted,
            format!(
                "grpc: received message after decompression larger than max ({} vs. {bytes_max})",
                plain.len()
            ),
        )),
        Ok(_) => Ok(Bytes::from(plain)),
        Err(error) => {
            Err(Status::with(Code::Internal, format!("grpc: failed to decompress the message: {error}")))
        }
    }
}

/// Packs one message.
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
        assert_eq!(unpack(&packed, plain.len())?, plain);
        Ok(())
    }

    #[test]
    fn a_bomb_and_garbage_are_refused() -> Result<(), Box<dyn std::error::Error>> {
        let packed = pack(&vec![0; 1 << 20])?;
        assert_eq!(unpack(&packed, 1000).map_err(|status| status.code), Err(Code::ResourceExhausted));
        assert_eq!(unpack(b"no gzip", 1000).map_err(|status| status.code), Err(Code::Internal));
        Ok(())
    }
}
