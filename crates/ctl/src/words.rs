//! Splits a line of `txn` or of an interactive `watch` into words.

use cli::Failure;

use crate::unquote::{QuoteError, quoted};

/// Splits a line into words. A word is `"…"` with Go's escapes, `'…'` without escapes, or any other text up
/// to the next white space. As in etcdctl, an opening quote without a closing one is skipped.
///
/// # Errors
/// Returns an error with exit code 3 if a double-quoted string contains an escape that Go does not know.
pub fn words(line: &[u8]) -> Result<Vec<Vec<u8>>, Failure> {
    let mut words = Vec::new();
    let mut rest = line;
    while let Some((first, tail)) = rest.split_first() {
        rest = match first {
            b'"' => match quoted(rest) {
                Ok((word, tail)) => {
                    words.push(word);
                    tail
                }
                Err(QuoteError::Syntax) => {
                    return Err(Failure::new(Failure::INVALID_INPUT, QuoteError::Syntax.to_string()));
                }
                Err(QuoteError::UnexpectedEnd | QuoteError::Expected) => tail,
            },
            b'\'' => match tail.iter().position(|b| *b == b'\'') {
                Some(end) => {
                    words.push(tail[..end].to_vec());
                    &tail[end + 1..]
                }
                None => tail,
            },
            _ if is_space(*first) => tail,
            _ => {
                let end = rest.iter().position(|b| is_space(*b)).unwrap_or(rest.len());
                words.push(rest[..end].to_vec());
                &rest[end..]
            }
        };
    }
    Ok(words)
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b'\t' | b'\n' | 0x0c | b'\r' | b' ')
}

/// Returns a line without leading and trailing white space.
pub fn trimmed(line: &[u8]) -> &[u8] {
    line.trim_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(line: &str) -> Vec<String> {
        let words = words(line.as_bytes()).unwrap();
        words.into_iter().map(|word| String::from_utf8(word).unwrap()).collect()
    }

    #[test]
    fn quotes_hold_words_together() {
        assert_eq!(split(r#"put "a b" 'c "d'"#), ["put", "a b", "c \"d"]);
        assert_eq!(split(r#"put a\"b  x"y"#), ["put", "a\\\"b", "x\"y"]);
        assert_eq!(split(r#"  "open x"#), ["open", "x"]);
        assert_eq!(split("'open"), ["open"]);
        assert_eq!(split(r#""" '' a"#), ["", "", "a"]);
        assert_eq!(words(br#"get "\q""#), Err(Failure::new(3, "invalid syntax")));
    }
}
