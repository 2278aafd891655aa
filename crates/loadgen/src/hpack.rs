//! Header blocks (RFC 7541): a decoder that reads everything and keeps only what a load needs, and an encoder of
//! headers that are the same in every request.

use std::collections::VecDeque;

/// A header block that is not as RFC 7541 wants it; the connection cannot go on, since both ends' tables differ.
#[derive(Debug, PartialEq, Eq)]
pub struct Damaged;

/// The names of headers that this crate reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// `grpc-status`
    GrpcStatus,
    /// `grpc-message`
    GrpcMessage,
    /// `:status`
    Status,
    /// `:path`
    Path,
    /// Any other.
    Other,
}

impl Name {
    fn of(name: &[u8]) -> Self {
        match name {
            b"grpc-status" => Name::GrpcStatus,
            b"grpc-message" => Name::GrpcMessage,
            b":status" => Name::Status,
            b":path" => Name::Path,
            _ => Name::Other,
        }
    }
}

struct Entry {
    name: Name,
    name_bytes: usize,
    value: Box<[u8]>,
}

impl Entry {
    fn size(&self) -> usize {
        self.name_bytes + self.value.len() + 32
    }
}

/// The size of a dynamic table where nothing else was agreed.
pub const TABLE_BYTES: usize = 4096;

/// Decodes the header blocks of one direction of a connection, in order.
pub struct Decoder {
    dynamic: VecDeque<Entry>,
    bytes: usize,
    limit: usize,
    scratch: Vec<u8>,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { dynamic: VecDeque::new(), bytes: 0, limit: TABLE_BYTES, scratch: Vec::new() }
    }
}

impl Decoder {
    /// Goes through a whole block and hands over each header.
    pub fn decode(&mut self, mut block: &[u8], mut see: impl FnMut(Name, &[u8])) -> Result<(), Damaged> {
        while let Some(&first) = block.first() {
            if first & 0x80 != 0 {
                let index = number(&mut block, 7)?;
                match self.entry(index)? {
                    Found::Static(name, value) => see(Name::of(name), value),
                    Found::Dynamic(entry) => see(entry.name, &entry.value),
                }
                continue;
            }
            if first & 0xe0 == 0x20 {
                let limit = number(&mut block, 5)?;
                if limit > TABLE_BYTES {
                    return Err(Damaged);
                }
                self.limit = limit;
                self.shrink(0);
                continue;
            }
            let keep = first & 0x40 != 0;
            let index = number(&mut block, if keep { 6 } else { 4 })?;
            let (name, name_bytes) = if index == 0 {
                self.scratch.clear();
                text(&mut block, &mut self.scratch)?;
                (Name::of(&self.scratch), self.scratch.len())
            } else {
                match self.entry(index)? {
                    Found::Static(name, _) => (Name::of(name), name.len()),
                    Found::Dynamic(entry) => (entry.name, entry.name_bytes),
                }
            };
            self.scratch.clear();
            text(&mut block, &mut self.scratch)?;
            see(name, &self.scratch);
            if keep {
                let entry = Entry { name, name_bytes, value: self.scratch.as_slice().into() };
                self.shrink(entry.size());
                // An entry that is larger than the table empties it, and is not kept.
                if entry.size() <= self.limit {
                    self.bytes += entry.size();
                    self.dynamic.push_front(entry);
                }
            }
        }
        Ok(())
    }

    fn entry(&self, index: usize) -> Result<Found<'_>, Damaged> {
        let at = index.checked_sub(1).ok_or(Damaged)?;
        if let Some((name, value)) = STATIC.get(at) {
            return Ok(Found::Static(name.as_bytes(), value.as_bytes()));
        }
        self.dynamic.get(at - STATIC.len()).map(Found::Dynamic).ok_or(Damaged)
    }

    fn shrink(&mut self, room: usize) {
        while self.bytes + room > self.limit {
            let Some(oldest) = self.dynamic.pop_back() else { break };
            self.bytes -= oldest.size();
        }
    }
}

enum Found<'a> {
    Static(&'static [u8], &'static [u8]),
    Dynamic(&'a Entry),
}

fn number(block: &mut &[u8], bits: u32) -> Result<usize, Damaged> {
    let (first, mut rest) = block.split_first().ok_or(Damaged)?;
    let mask = (1_usize << bits) - 1;
    let mut value = usize::from(*first) & mask;
    if value == mask {
        let mut shift = 0;
        loop {
            let (byte, more) = rest.split_first().ok_or(Damaged)?;
            rest = more;
            // Nothing in a header block of ours comes near 2^28.
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

fn text(block: &mut &[u8], out: &mut Vec<u8>) -> Result<(), Damaged> {
    let huffman = block.first().ok_or(Damaged)? & 0x80 != 0;
    let length = number(block, 7)?;
    let (bytes, rest) = block.split_at_checked(length).ok_or(Damaged)?;
    *block = rest;
    if huffman {
        return unhuffman(bytes, out);
    }
    out.extend_from_slice(bytes);
    Ok(())
}

/// Canonical decoding: the codes of one length are consecutive, and go to the symbols in order.
fn unhuffman(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Damaged> {
    let (mut code, mut length) = (0_u32, 0_usize);
    for byte in bytes {
        for bit in (0..8).rev() {
            code = code << 1 | u32::from(byte >> bit & 1);
            length += 1;
            let row = CODES.rows.get(length).ok_or(Damaged)?;
            if let Some(at) = code.checked_sub(row.first).filter(|at| *at < row.count) {
                match CODES.symbols.get((row.start + at) as usize) {
                    Some(symbol) if *symbol < 256 => out.push(*symbol as u8),
                    _ => return Err(Damaged),
                }
                (code, length) = (0, 0);
            }
        }
    }
    // What is left is padding: fewer than eight bits, all ones.
    if length < 8 && code == (1 << length) - 1 { Ok(()) } else { Err(Damaged) }
}

#[derive(Clone, Copy)]
struct Row {
    first: u32,
    count: u32,
    start: u32,
}

struct Codes {
    rows: [Row; 31],
    symbols: [u16; 257],
}

static CODES: Codes = codes();

const fn codes() -> Codes {
    let mut rows = [Row { first: 0, count: 0, start: 0 }; 31];
    let mut symbols = [0_u16; 257];
    let (mut filled, mut code, mut length) = (0, 0_u32, 1);
    while length <= 30 {
        code <<= 1;
        rows[length] = Row { first: code, count: 0, start: filled as u32 };
        let mut symbol = 0;
        while symbol < 257 {
            if LENGTHS[symbol] as usize == length {
                symbols[filled] = symbol as u16;
                filled += 1;
                code += 1;
                rows[length].count += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    Codes { rows, symbols }
}

/// Name and value.
type Header = (Box<[u8]>, Box<[u8]>);

/// Encodes blocks of headers that come again and again: each is put into the table the first time, and is one byte
/// or two from then on.
pub struct Encoder {
    /// Newest last; what the other end's table holds.
    known: Vec<Header>,
    bytes: usize,
    limit: usize,
    announce: Option<usize>,
}

impl Default for Encoder {
    fn default() -> Self {
        Self { known: Vec::new(), bytes: 0, limit: TABLE_BYTES, announce: None }
    }
}

impl Encoder {
    /// The other end's `SETTINGS_HEADER_TABLE_SIZE`; we never use more than the usual size.
    pub fn set_limit(&mut self, limit: usize) {
        let limit = limit.min(TABLE_BYTES);
        if limit != self.limit {
            self.limit = limit;
            self.known.clear();
            self.bytes = 0;
            self.announce = Some(limit);
        }
    }

    /// A counter that changes when blocks made before are no longer right.
    pub fn state(&self) -> (usize, usize) {
        (self.known.len(), self.limit)
    }

    /// Appends a block. Names are lower case.
    pub fn encode<'a>(&mut self, headers: impl IntoIterator<Item = (&'a [u8], &'a [u8])>, out: &mut Vec<u8>) {
        if let Some(limit) = self.announce.take() {
            // Through 0, so that both tables are surely empty.
            out.push(0x20);
            put_number(out, 0x20, 5, limit);
        }
        for (name, value) in headers {
            if let Some(at) = STATIC
                .iter()
                .position(|(n, v)| n.as_bytes() == name && v.as_bytes() == value && !v.is_empty())
            {
                put_number(out, 0x80, 7, at + 1);
                continue;
            }
            if let Some(at) = self.known.iter().position(|(n, v)| **n == *name && **v == *value) {
                put_number(out, 0x80, 7, STATIC.len() + self.known.len() - at);
                continue;
            }
            let size = name.len() + value.len() + 32;
            let keep = self.bytes + size <= self.limit;
            let (pattern, bits) = if keep { (0x40, 6) } else { (0, 4) };
            match STATIC.iter().position(|(n, _)| n.as_bytes() == name) {
                Some(at) => put_number(out, pattern, bits, at + 1),
                None => {
                    put_number(out, pattern, bits, 0);
                    put_number(out, 0, 7, name.len());
                    out.extend_from_slice(name);
                }
            }
            put_number(out, 0, 7, value.len());
            out.extend_from_slice(value);
            if keep {
                self.bytes += size;
                self.known.push((name.into(), value.into()));
            }
        }
    }
}

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

/// RFC 7541, appendix A.
static STATIC: [(&str, &str); 61] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];

/// RFC 7541, appendix B: how many bits the code of each byte has, and that of the end of a string.
#[rustfmt::skip]
const LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11,
    10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8,
    15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6, 5,
    6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7,
    7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23,
    23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21,
    23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25,
    26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26,
    28, 27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26, 30,
];

#[cfg(test)]
mod tests {
    use super::*;
    use testkit::Random;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits
            .chunks(2)
            .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
            .collect()
    }

    fn values(decoder: &mut Decoder, block: &str) -> Vec<String> {
        let mut seen = Vec::new();
        decoder
            .decode(&hex(block), |_, value| seen.push(String::from_utf8(value.to_vec()).unwrap()))
            .unwrap();
        seen
    }

    /// RFC 7541, C.4: requests with Huffman codes and a table that fills.
    #[test]
    fn requests_of_the_rfc() {
        let mut decoder = Decoder::default();
        assert_eq!(
            values(&mut decoder, "8286 8441 8cf1 e3c2 e5f2 3a6b a0ab 90f4 ff"),
            ["GET", "http", "/", "www.example.com"]
        );
        assert_eq!(
            values(&mut decoder, "8286 84be 5886 a8eb 1064 9cbf"),
            ["GET", "http", "/", "www.example.com", "no-cache"]
        );
        assert_eq!(
            values(&mut decoder, "8287 85bf 4088 25a8 49e9 5ba9 7d7f 8925 a849 e95b b8e8 b4bf"),
            ["GET", "https", "/index.html", "www.example.com", "custom-value"]
        );
        assert_eq!(decoder.bytes, 164);
    }

    /// RFC 7541, C.6: answers, with a table of 256 bytes, so that entries fall out of it.
    #[test]
    fn answers_of_the_rfc() {
        let mut decoder = Decoder { limit: 256, ..Decoder::default() };
        assert_eq!(
            values(
                &mut decoder,
                "4882 6402 5885 aec3 771a 4b61 96d0 7abe 9410 54d4 44a8 2005 9504 0b81 66e0 82a6 2d1b ff6e 919d 29ad
                 1718 63c7 8f0b 97c8 e9ae 82ae 43d3"
            ),
            ["302", "private", "Mon, 21 Oct 2013 20:13:21 GMT", "https://www.example.com"]
        );
        assert_eq!(decoder.bytes, 222);
        assert_eq!(values(&mut decoder, "4883 640e ffc1 c0bf")[0], "307");
        assert_eq!(decoder.bytes, 222);
        let third = values(
            &mut decoder,
            "88c1 6196 d07a be94 1054 d444 a820 0595 040b 8166 e084 a62d 1bff c05a 839b d9ab 77ad 94e7 821d d7f2 e6c7
             b335 dfdf cd5b 3960 d5af 2708 7f36 72c1 ab27 0fb5 291f 9587 3160 65c0 03ed 4ee5 b106 3d50 07",
        );
        assert_eq!(third[5], "foo=ASDJKHQKBZXOQWEOPIUAXQWEOIU; max-age=3600; version=1");
        assert_eq!(decoder.bytes, 215);
    }

    #[test]
    fn what_the_encoder_writes_the_decoder_reads_and_the_second_time_it_is_short() {
        let (mut encoder, mut decoder) = (Encoder::default(), Decoder::default());
        let headers: [(&[u8], &[u8]); 4] = [
            (b":method", b"POST"),
            (b":path", b"/etcdserverpb.KV/Put"),
            (b"grpc-status", b"7"),
            (b"content-type", b"application/grpc"),
        ];
        for round in 0..3 {
            let mut block = Vec::new();
            encoder.encode(headers, &mut block);
            let mut seen = Vec::new();
            decoder.decode(&block, |name, value| seen.push((name, value.to_vec()))).unwrap();
            assert_eq!(seen[1], (Name::Path, b"/etcdserverpb.KV/Put".to_vec()));
            assert_eq!(seen[2], (Name::GrpcStatus, b"7".to_vec()));
            assert_eq!(block.len() == 4, round > 0, "{block:?}");
        }
        encoder.set_limit(40);
        let mut block = Vec::new();
        encoder.encode(headers, &mut block);
        let mut seen = 0;
        decoder.decode(&block, |_, _| seen += 1).unwrap();
        assert_eq!(seen, 4);
        assert!(decoder.bytes <= 40);
    }

    #[test]
    fn damaged_blocks_are_refused() {
        for block in
            [&[0x80][..], &[0xff, 0x80], &[0xbe], &[0x40, 3, 1], &[0x3f, 0xff, 0x7f], &[0x40, 0x81, 0]]
        {
            assert_eq!(Decoder::default().decode(block, |_, _| ()), Err(Damaged), "{block:?}");
        }
    }

    /// Any bytes at all: refused or read, never more than the table may hold, never a panic.
    #[test]
    fn any_bytes_are_borne() {
        let mut random = Random::new(1);
        let mut decoder = Decoder::default();
        for _ in 0..20_000 {
            let block: Vec<u8> = (0..random.below(40)).map(|_| random.number() as u8).collect();
            if decoder.decode(&block, |_, _| ()).is_err() {
                decoder = Decoder::default();
            }
            assert!(decoder.bytes <= TABLE_BYTES);
        }
    }
}
