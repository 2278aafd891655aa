//! Computes the CRC-32C of two concatenated byte strings from their own CRCs.
//!
//! A CRC is the remainder of the string, as a polynomial over GF(2), modulo the generator. Each byte appended
//! to a string multiplies the polynomial by x^8. Powers of x^8 are in a table, so combining takes one
//! multiplication per set bit of the length of the second string. (The function of the `crc32c` crate squares
//! a matrix for each bit, and takes a hundred times as long.)

/// The generator polynomial of CRC-32C. As in all polynomials in this file, the bits are reflected: the
/// highest bit is the coefficient of x^0.
const GENERATOR: u32 = 0x82f6_3b78;
/// The polynomial x^8, by which one appended byte multiplies a string.
const BYTE: u32 = 1 << (31 - 8);
/// Entry n is x to the power of 8 * 2^n, by which 2^n appended bytes multiply a string.
const POWERS: [u32; 32] = {
    let mut powers = [BYTE; 32];
    let mut n = 1;
    while n < powers.len() {
        powers[n] = multiply(powers[n - 1], powers[n - 1]);
        n += 1;
    }
    powers
};

/// Returns the product of two polynomials modulo the generator.
const fn multiply(a: u32, mut b: u32) -> u32 {
    let mut product = 0;
    let mut n = 0;
    while n < 32 {
        // The masks replace branches, which would be mispredicted, because the bits of a checksum are random.
        product ^= b & ((a << n) >> 31).wrapping_neg();
        b = (b >> 1) ^ (GENERATOR & (b & 1).wrapping_neg());
        n += 1;
    }
    product
}

/// Returns the CRC-32C of two concatenated strings. `first` and `second` are the CRCs of the strings,
/// `second_len` is the length of the second string in bytes.
pub fn combine(first: u32, second: u32, second_len: u32) -> u32 {
    let (mut shifted, mut left) = (first, second_len);
    while left != 0 {
        shifted = multiply(POWERS[left.trailing_zeros() as usize], shifted);
        left &= left - 1;
    }
    shifted ^ second
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_the_checksum_of_both_together() {
        let bytes: Vec<u8> = (0..70_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for first_len in [0, 1, 3, 17, 4096] {
            for second_len in [0, 1, 2, 7, 8, 9, 255, 256, 1000, 65_535, 65_536] {
                let (first, rest) = bytes.split_at(first_len);
                let second = &rest[..second_len];
                let combined = combine(crc32c::crc32c(first), crc32c::crc32c(second), second_len as u32);
                let whole = crc32c::crc32c(&bytes[..first_len + second_len]);
                assert_eq!(combined, whole, "{first_len} + {second_len}");
            }
        }
        let (first, second) = (0xdead_beef, 0x1234_5678);
        for len in [u32::MAX, 1 << 31, 0x8765_4321] {
            assert_eq!(combine(first, second, len), crc32c::crc32c_combine(first, second, len as usize));
        }
    }
}
