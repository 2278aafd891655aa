//! Parses quoted strings in Go's syntax.

/// Reason why a quoted string could not be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuoteError {
    /// The text ended before the closing quote.
    UnexpectedEnd,
    /// The text does not begin with a quote.
    Expected,
    /// The string contains an escape that Go does not know.
    Syntax,
}

impl std::fmt::Display for QuoteError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            QuoteError::UnexpectedEnd => "unexpected EOF",
            QuoteError::Expected => "expected quoted string",
            QuoteError::Syntax => "invalid syntax",
        })
    }
}

/// Parses the quoted string at the beginning of `text`: `"…"` with escapes, or `` `…` `` without escapes.
/// Returns the contents of the string, and the rest of `text`. The rules are those of `%q` in Go's Sscanf and
/// of `strconv.Unquote`.
///
/// # Errors
/// Returns a [`QuoteError`] if the text does not begin with a valid quoted string.
pub fn quoted(text: &[u8]) -> Result<(Vec<u8>, &[u8]), QuoteError> {
    match text.split_first() {
        None => Err(QuoteError::UnexpectedEnd),
        Some((b'`', rest)) => {
            let end = rest.iter().position(|b| *b == b'`').ok_or(QuoteError::UnexpectedEnd)?;
            Ok((rest[..end].to_vec(), &rest[end + 1..]))
        }
        Some((b'"', rest)) => {
            let end = closing_quote(rest).ok_or(QuoteError::UnexpectedEnd)?;
            let value = unescaped(&rest[..end]).ok_or(QuoteError::Syntax)?;
            Ok((value, &rest[end + 1..]))
        }
        Some(_) => Err(QuoteError::Expected),
    }
}

fn closing_quote(text: &[u8]) -> Option<usize> {
    let mut at = 0;
    loop {
        match text.get(at)? {
            b'"' => return Some(at),
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
}

fn unescaped(text: &[u8]) -> Option<Vec<u8>> {
    let mut value = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, tail)) = rest.split_first() {
        if *first == b'\n' {
            return None;
        }
        if *first != b'\\' {
            value.push(*first);
            rest = tail;
            continue;
        }
        let (kind, tail) = tail.split_first()?;
        rest = match kind {
            b'a' => simple(&mut value, 0x07, tail),
            b'b' => simple(&mut value, 0x08, tail),
            b'f' => simple(&mut value, 0x0c, tail),
            b'n' => simple(&mut value, b'\n', tail),
            b'r' => simple(&mut value, b'\r', tail),
            b't' => simple(&mut value, b'\t', tail),
            b'v' => simple(&mut value, 0x0b, tail),
            b'\\' | b'"' => simple(&mut value, *kind, tail),
            b'x' => {
                let (number, tail) = digits(tail, 2, 16)?;
                value.push(u8::try_from(number).ok()?);
                tail
            }
            b'u' | b'U' => {
                let (number, tail) = digits(tail, if *kind == b'u' { 4 } else { 8 }, 16)?;
                let letter = char::from_u32(number)?;
                value.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                tail
            }
            b'0'..=b'7' => {
                let (number, tail) = digits(&rest[1..], 3, 8)?;
                value.push(u8::try_from(number).ok()?);
                tail
            }
            _ => return None,
        };
    }
    Some(value)
}

fn simple<'a>(value: &mut Vec<u8>, byte: u8, tail: &'a [u8]) -> &'a [u8] {
    value.push(byte);
    tail
}

fn digits(text: &[u8], count: usize, radix: u32) -> Option<(u32, &[u8])> {
    let (head, tail) = text.split_at_checked(count)?;
    let number = head.iter().try_fold(0u32, |number, byte| {
        let digit = char::from(*byte).to_digit(radix)?;
        number.checked_mul(radix)?.checked_add(digit)
    })?;
    Some((number, tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<(Vec<u8>, String), QuoteError> {
        quoted(text.as_bytes()).map(|(value, rest)| (value, String::from_utf8_lossy(rest).into_owned()))
    }

    #[test]
    fn strings_are_read_as_go_reads_them() {
        assert_eq!(read(r#""a b") > "1""#), Ok((b"a b".to_vec(), r#") > "1""#.to_owned())));
        assert_eq!(read(r#""\x00\377\u00e9\t\"\\""#), Ok((b"\0\xff\xc3\xa9\t\"\\".to_vec(), String::new())));
        assert_eq!(read("`a\\n`x"), Ok((b"a\\n".to_vec(), "x".to_owned())));
        assert_eq!(read(r#""a"#), Err(QuoteError::UnexpectedEnd));
        assert_eq!(read(r#""a\"#), Err(QuoteError::UnexpectedEnd));
        assert_eq!(read(r#""\q""#), Err(QuoteError::Syntax));
        assert_eq!(read(r#""\'""#), Err(QuoteError::Syntax));
        assert_eq!(read(r#""\ud800""#), Err(QuoteError::Syntax));
        assert_eq!(read(r#""\400""#), Err(QuoteError::Syntax));
        assert_eq!(read("a"), Err(QuoteError::Expected));
        assert_eq!(read(""), Err(QuoteError::UnexpectedEnd));
    }
}
