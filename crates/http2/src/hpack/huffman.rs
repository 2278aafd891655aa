//! Decodes Huffman-coded strings (RFC 7541, section 5.2 and appendix B). The code is canonical, so the
//! decoding tables are computed from the code lengths alone.

use super::Damaged;

/// Number of bits of the first table look-up. It suffices for most symbols, because letters, digits and most
/// punctuation have codes of 5 to 8 bits.
const FAST_BITS: u32 = 9;

/// End-of-string symbol, which must not occur in a string.
const END: u16 = 256;

/// The codes of one length. They are `count` consecutive numbers from `first` on, whose symbols are
/// consecutive entries of [`Codes::symbols`] from `start` on.
#[derive(Clone, Copy)]
struct Row {
    first: u32,
    count: u32,
    start: u32,
}

struct Codes {
    rows: [Row; 31],
    symbols: [u16; 257],
    /// Symbol and code length, indexed by the first [`FAST_BITS`] bits; length 0 if the code is longer.
    fast: [(u8, u8); 1 << FAST_BITS],
}

static CODES: Codes = codes();

const fn codes() -> Codes {
    let mut rows = [Row { first: 0, count: 0, start: 0 }; 31];
    let mut symbols = [0_u16; 257];
    let mut fast = [(0, 0); 1 << FAST_BITS];
    let (mut filled, mut code, mut length) = (0, 0_u32, 1);
    while length <= 30 {
        code <<= 1;
        rows[length] = Row { first: code, count: 0, start: filled as u32 };
        let mut symbol = 0;
        while symbol < 257 {
            if LENGTHS[symbol] as usize == length {
                symbols[filled] = symbol as u16;
                if length <= FAST_BITS as usize {
                    let spare = FAST_BITS as usize - length;
                    let mut at = 0;
                    while at < 1 << spare {
                        fast[((code as usize) << spare) + at] = (symbol as u8, length as u8);
                        at += 1;
                    }
                }
                filled += 1;
                code += 1;
                rows[length].count += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    Codes { rows, symbols, fast }
}

/// Decodes a string and appends it to `out`. The result has at most 8/5 of the input's length, because the
/// shortest code has 5 bits.
pub(crate) fn decode(bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Damaged> {
    out.reserve(bytes.len() * 8 / 5);
    // The first `held` bits of `window`, from the top, are undecoded input; all bits below them are ones,
    // like padding.
    let (mut window, mut held) = (u64::MAX, 0_u32);
    let mut rest = bytes;
    loop {
        while held <= 56 {
            let Some((byte, after)) = rest.split_first() else { break };
            let shift = 56 - held;
            window = window & !(0xff << shift) | u64::from(*byte) << shift;
            held += 8;
            rest = after;
        }
        if held == 0 {
            return Ok(());
        }
        let (symbol, length) = CODES.fast[(window >> (64 - FAST_BITS)) as usize];
        let (symbol, length) =
            if length == 0 { long(window)? } else { (u16::from(symbol), u32::from(length)) };
        if length > held {
            // The remaining bits are not a complete code, so they must be padding, which has fewer than eight
            // bits, all ones.
            return if held < 8 && window == u64::MAX { Ok(()) } else { Err(Damaged) };
        }
        if symbol == END {
            return Err(Damaged);
        }
        out.push(symbol as u8);
        window = window << length | ((1 << length) - 1);
        held -= length;
    }
}

/// Finds the code at the top of the window if it has more than [`FAST_BITS`] bits. Returns its symbol and
/// length.
#[cold]
fn long(window: u64) -> Result<(u16, u32), Damaged> {
    for length in FAST_BITS + 1..=30 {
        let row = &CODES.rows[length as usize];
        let code = (window >> (64 - length)) as u32;
        if let Some(at) = code.checked_sub(row.first)
            && at < row.count
        {
            return Ok((CODES.symbols[(row.start + at) as usize], length));
        }
    }
    Err(Damaged)
}

/// Code length in bits of each byte value and of the end-of-string symbol (RFC 7541, appendix B).
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
    use testkit::Random;

    use super::*;

    /// Returns code and length of each symbol, computed from the canonical order.
    fn table() -> Vec<(u32, u32)> {
        let mut codes = vec![(0, 0); 257];
        for length in 1..=30 {
            let row = CODES.rows[length];
            for at in 0..row.count {
                codes[usize::from(CODES.symbols[(row.start + at) as usize])] =
                    (row.first + at, length as u32);
            }
        }
        codes
    }

    pub(crate) fn encode(text: &[u8]) -> Vec<u8> {
        let table = table();
        let (mut bits, mut held, mut out) = (0_u64, 0, Vec::new());
        for byte in text {
            let (code, length) = table[usize::from(*byte)];
            bits = bits << length | u64::from(code);
            held += length;
            while held >= 8 {
                held -= 8;
                out.push((bits >> held) as u8);
            }
        }
        if held > 0 {
            out.push((bits << (8 - held)) as u8 | (0xff >> held) as u8);
        }
        out
    }

    #[test]
    fn codes_are_those_of_the_appendix() {
        let table = table();
        // The first and last symbol, symbols of different lengths, and the end of string.
        assert_eq!(table[0], (0x1ff8, 13));
        assert_eq!(table[usize::from(b' ')], (0x14, 6));
        assert_eq!(table[usize::from(b'0')], (0, 5));
        assert_eq!(table[usize::from(b'Z')], (0xfd, 8));
        assert_eq!(table[usize::from(b'\\')], (0x7fff0, 19));
        assert_eq!(table[255], (0x3ff_ffee, 26));
        assert_eq!(table[256], (0x3fff_ffff, 30));
    }

    #[test]
    fn any_text_comes_back() {
        let mut random = Random::new(7);
        for _ in 0..5_000 {
            let len = random.index(40);
            let text: Vec<u8> = if random.percent(50) {
                (0..len).map(|_| b' ' + random.below(95) as u8).collect()
            } else {
                random.bytes(len)
            };
            let mut back = Vec::new();
            decode(&encode(&text), &mut back).unwrap();
            assert_eq!(back, text);
        }
    }

    #[test]
    fn padding_is_ones_and_less_than_a_byte_and_the_end_does_not_occur() {
        let mut out = Vec::new();
        // "0" is five zero bits, followed by padding.
        assert_eq!(decode(&[0b0000_0111], &mut out), Ok(()));
        assert_eq!(out, b"0");
        for wrong in
            [&[0b0000_0110][..], &[0b0000_0111, 0xff], &[0xff], &[0xff; 4], &[0xff, 0xff, 0xff, 0xfc]]
        {
            assert_eq!(decode(wrong, &mut out), Err(Damaged), "{wrong:?}");
        }
    }
}
