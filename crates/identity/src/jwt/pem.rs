//! Reads PEM files: blocks of base64 between lines of BEGIN and END.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

/// Maximum size of a PEM file in bytes. A larger file counts as a file without blocks.
const FILE_BYTES_MAX: usize = 1 << 20;

/// A PEM block: the label of its BEGIN line, and its decoded contents.
pub(super) struct Block<'a> {
    pub label: &'a str,
    pub bytes: Zeroizing<Vec<u8>>,
}

/// Returns all blocks of a file. Text between blocks and incomplete blocks are ignored.
pub(super) fn blocks(file: &[u8]) -> Vec<Block<'_>> {
    let mut found = Vec::new();
    if file.len() > FILE_BYTES_MAX {
        return found;
    }
    let lines = file.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii_end);
    let mut begun: Option<(&str, Zeroizing<Vec<u8>>)> = None;
    for line in lines {
        if let Some(label) = between(line, b"-----BEGIN ") {
            begun = Some((label, Zeroizing::new(Vec::new())));
        } else if let Some(label) = between(line, b"-----END ") {
            if let Some((begun, letters)) = begun.take()
                && begun == label
                && let Ok(bytes) = STANDARD.decode(&*letters)
            {
                found.push(Block { label, bytes: Zeroizing::new(bytes) });
            }
        } else if let Some((_, letters)) = &mut begun {
            // A line with a colon is a header, as in encrypted keys, and is skipped; base64 contains no
            // colons.
            if !line.contains(&b':') {
                letters.extend(line.iter().filter(|letter| !letter.is_ascii_whitespace()));
            }
        }
    }
    found
}

fn between<'a>(line: &'a [u8], begin: &[u8]) -> Option<&'a str> {
    let label = line.strip_prefix(begin)?.strip_suffix(b"-----")?;
    std::str::from_utf8(label).ok()
}
