//! Records all events of a run: as a digest and, on request, as text.

use std::fmt::Arguments;

/// Hashes every event as it happens, and prints it if requested.
pub struct Trace {
    digest: u64,
    events: u64,
    prints: bool,
    kinds: [u64; 16],
    /// Last lines of the trace, for the report of a failure in a run that did not print them.
    last: std::collections::VecDeque<String>,
}

/// Number of lines kept for a failure.
const LAST_MAX: usize = 40;

impl Trace {
    /// Returns an empty trace.
    pub fn new(prints: bool) -> Trace {
        Trace { digest: 0xcbf2_9ce4_8422_2325, events: 0, prints, kinds: [0; 16], last: Default::default() }
    }

    /// Returns the digest of all events so far. Two runs of the same seed must have the same digest.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// Returns the number of events so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Returns the number of events of each kind so far.
    pub fn kinds(&self) -> &[u64] {
        &self.kinds
    }

    /// Returns true if lines are printed.
    pub fn prints(&self) -> bool {
        self.prints
    }

    /// Returns the last lines written, the oldest first.
    pub fn last(&self) -> impl Iterator<Item = &str> {
        self.last.iter().map(String::as_str)
    }

    /// Adds an event, given as numbers, to the digest. This is cheap and happens for every event.
    pub fn event(&mut self, now: u64, kind: u8, numbers: &[u64]) {
        self.events += 1;
        self.kinds[usize::from(kind) % 16] += 1;
        self.mix(now ^ (u64::from(kind) << 56));
        for number in numbers {
            self.mix(*number);
        }
    }

    /// Adds a line about what just happened, for a human reader. The digest includes the line.
    pub fn note(&mut self, now: u64, line: Arguments<'_>) {
        use std::fmt::Write as _;
        let mut text = String::new();
        let (s, us) = (now / 1_000_000_000, now / 1000 % 1_000_000);
        // Writing to a string cannot fail.
        let _ = write!(text, "{s:4}.{us:06} {line}");
        for chunk in text.as_bytes().chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
        if self.prints {
            println!("{text}");
        }
        if self.last.len() == LAST_MAX {
            self.last.pop_front();
        }
        self.last.push_back(text);
    }

    fn mix(&mut self, word: u64) {
        let wide = u128::from(self.digest ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        self.digest = (wide >> 64) as u64 ^ wide as u64;
    }
}
