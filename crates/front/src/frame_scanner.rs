/// Bytes of an HTTP/2 frame header (RFC 9113, section 4.1): length 24 bits, type 8, flags 8, stream 32.
const HEADER_BYTES: usize = 9;

/// Type of a DATA frame.
pub(crate) const DATA: u8 = 0;
/// Type of a HEADERS frame.
pub(crate) const HEADERS: u8 = 1;
/// Type of a SETTINGS frame.
pub(crate) const SETTINGS: u8 = 4;
/// Type of a CONTINUATION frame.
pub(crate) const CONTINUATION: u8 = 9;
/// The flag that ends a header block.
pub(crate) const END_HEADERS: u8 = 4;
/// Type of a PING frame.
pub(crate) const PING: u8 = 6;
/// The flag that makes a PING or SETTINGS an answer.
pub(crate) const ACK: u8 = 1;

/// A frame header as it passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passing {
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: u32,
}

/// Follows the frame headers in a byte stream, which the HTTP/2 library does not show.
#[derive(Debug)]
pub(crate) struct FrameScanner {
    /// Bytes to pass over: the client's preface at first, then payloads.
    skip: usize,
    header: [u8; HEADER_BYTES],
    have: usize,
}

impl FrameScanner {
    /// A scanner that first passes over `preface_bytes`.
    pub(crate) fn after(preface_bytes: usize) -> FrameScanner {
        FrameScanner { skip: preface_bytes, header: [0; HEADER_BYTES], have: 0 }
    }

    /// Returns true if the next byte begins a frame.
    pub(crate) fn at_boundary(&self) -> bool {
        self.skip == 0 && self.have == 0
    }

    /// The type of the frame whose payload comes next, if a frame's header has passed and its payload has not.
    pub(crate) fn amid(&self) -> Option<u8> {
        (self.skip > 0).then_some(self.header[3])
    }

    /// Follows `bytes`, which come next in the stream.
    pub(crate) fn scan(&mut self, bytes: &[u8], mut seen: impl FnMut(Passing)) {
        self.scan_until(bytes, |frame| {
            seen(frame);
            false
        });
    }

    /// Follows `bytes` to the end of the first frame header for which `seen` is true. Returns how many bytes those are.
    pub(crate) fn scan_until(&mut self, all: &[u8], mut seen: impl FnMut(Passing) -> bool) -> usize {
        let mut bytes = all;
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if bytes.is_empty() {
                return all.len();
            }
            let taken = (HEADER_BYTES - self.have).min(bytes.len());
            self.header[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have < HEADER_BYTES {
                return all.len();
            }
            let [a, b, c, kind, flags, s0, s1, s2, s3] = self.header;
            self.have = 0;
            self.skip = u32::from_be_bytes([0, a, b, c]) as usize;
            if seen(Passing { kind, flags, stream: u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]) }) {
                return all.len() - bytes.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_however_the_bytes_are_cut() {
        let mut bytes = b"PRI".to_vec();
        bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
        bytes.extend([0, 0, 8, PING, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        bytes.extend([0, 0, 1, HEADERS, 4, 0x80, 0, 1, 3, 0xff]);
        let expected = [(4, 0, 0), (PING, 0, 0), (HEADERS, 4, 259)];
        for step in 1..bytes.len() {
            let (mut scanner, mut seen) = (FrameScanner::after(3), Vec::new());
            for part in bytes.chunks(step) {
                scanner.scan(part, |frame| seen.push((frame.kind, frame.flags, frame.stream)));
            }
            assert_eq!(seen, expected);
            assert!(scanner.at_boundary());
        }
    }

    #[test]
    fn a_scan_ends_behind_the_header_it_looks_for() {
        let ping = [0, 0, 1, PING, 0, 0, 0, 0, 0, 7];
        let settings = [0, 0, 1, SETTINGS, 0, 0, 0, 0, 0, 9];
        let bytes = [&ping[..], &settings, &settings, &ping].concat();
        for step in 1..bytes.len() {
            let (mut scanner, mut ends, mut at) = (FrameScanner::after(0), Vec::new(), 0);
            while at < bytes.len() {
                let part = &bytes[at..bytes.len().min(at + step)];
                let mut found = false;
                at += scanner.scan_until(part, |frame| {
                    found = frame.kind == SETTINGS;
                    found
                });
                ends.extend(found.then_some(at));
            }
            assert_eq!(ends, [19, 29]);
            assert!(scanner.at_boundary());
        }
    }
}
