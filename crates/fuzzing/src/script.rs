//! Reads the arbitrary bytes of a fuzzer as a script: a sequence of numbers and byte strings that controls
//! what a target does.

/// Reads numbers and byte strings from an input, beginning at its front. After the end of the input, every
/// value is zero or empty, so every input is a valid script.
pub struct Script<'a> {
    rest: &'a [u8],
}

impl<'a> Script<'a> {
    /// Creates a script that reads these bytes.
    pub fn new(bytes: &'a [u8]) -> Script<'a> {
        Script { rest: bytes }
    }

    /// Returns true if no bytes are left.
    pub fn is_done(&self) -> bool {
        self.rest.is_empty()
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let len = N.min(self.rest.len());
        let (taken, rest) = self.rest.split_at(len);
        array[..len].copy_from_slice(taken);
        self.rest = rest;
        array
    }

    /// Reads one byte.
    pub fn u8(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Reads two bytes, little-endian.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Reads four bytes, little-endian.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Reads eight bytes, little-endian.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// Reads one byte, and returns a number below `bound`.
    pub fn below(&mut self, bound: u8) -> u8 {
        self.u8() % bound.max(1)
    }

    /// Reads one byte, and returns its lowest bit.
    pub fn flip(&mut self) -> bool {
        self.u8() & 1 == 1
    }

    /// Reads one byte, and returns the element that it selects.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[usize::from(self.u8()) % of.len()]
    }

    /// Returns a number that is mostly close to one of the numbers in `near`, and sometimes arbitrary.
    pub fn near(&mut self, near: &[u64]) -> u64 {
        let how = self.u8();
        let base = near[usize::from(how >> 3) % near.len()];
        match how & 7 {
            0 => self.u64(),
            1 => base.wrapping_add(1),
            2 => base.wrapping_sub(1),
            3 => base.wrapping_add(u64::from(self.u8())),
            4 => base.wrapping_sub(u64::from(self.u8())),
            _ => base,
        }
    }

    /// Reads a length (two bytes, little-endian) and that many bytes. If fewer bytes are left, returns all of
    /// them.
    pub fn run(&mut self) -> &'a [u8] {
        let len = usize::from(self.u16()).min(self.rest.len());
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        taken
    }

    /// Returns all remaining bytes.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }
}

/// Writes scripts that [`Script`] reads; used for seeds.
#[derive(Default)]
pub struct Scribe(Vec<u8>);

impl Scribe {
    /// Appends bytes unchanged.
    #[must_use]
    pub fn raw(mut self, bytes: &[u8]) -> Scribe {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Appends one byte.
    #[must_use]
    pub fn u8(self, byte: u8) -> Scribe {
        self.raw(&[byte])
    }

    /// Appends a length and bytes, which [`Script::run`] reads.
    ///
    /// # Panics
    ///
    /// Panics if there are more than 65,535 bytes.
    #[must_use]
    pub fn run(self, bytes: &[u8]) -> Scribe {
        let len = u16::try_from(bytes.len()).expect("seeds are small");
        self.raw(&len.to_le_bytes()).raw(bytes)
    }

    /// Returns the script.
    #[must_use]
    pub fn done(self) -> Vec<u8> {
        self.0
    }
}

/// Divides bytes into pieces, since data from a network may arrive divided at any position. The seed
/// determines the lengths of the pieces.
pub fn pieces(bytes: &[u8], seed: u8) -> impl Iterator<Item = &[u8]> {
    let (mut rest, mut state) = (bytes, u32::from(seed));
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let len = match seed {
            0 => rest.len(),
            1 => 1,
            _ => 1 + (state >> 16) as usize % (usize::from(seed) * 2),
        };
        let (piece, left) = rest.split_at(len.min(rest.len()));
        rest = left;
        Some(piece)
    })
}
