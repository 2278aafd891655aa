//! Parses numbers in arguments, with the error messages of Go's strconv.

use std::fmt;
use std::num::IntErrorKind;

use cli::go::quote;

/// Reason why a text is not a number. It displays as the error of Go's strconv.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumberError {
    /// Name of the function of strconv that would return this error; part of the message.
    function: &'static str,
    /// The text that is not a number, in quotes.
    text: String,
    /// Reason for the failure.
    reason: &'static str,
}

impl fmt::Display for NumberError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NumberError { function, text, reason } = self;
        write!(f, "strconv.{function}: parsing {text}: {reason}")
    }
}

/// Parses a signed number.
///
/// # Errors
/// Returns an error with the message of Go's `strconv.ParseInt`.
pub fn signed(text: &[u8], radix: u32) -> Result<i64, NumberError> {
    let number = std::str::from_utf8(text).ok().map(|text| i64::from_str_radix(text, radix));
    parsed("ParseInt", text, number)
}

/// Parses an unsigned number. A sign is not allowed.
///
/// # Errors
/// Returns an error with the message of Go's `strconv.ParseUint`.
pub fn unsigned(text: &[u8], radix: u32) -> Result<u64, NumberError> {
    let plain = std::str::from_utf8(text).ok().filter(|text| !text.starts_with('+'));
    parsed("ParseUint", text, plain.map(|text| u64::from_str_radix(text, radix)))
}

fn parsed<N>(
    function: &'static str,
    text: &[u8],
    number: Option<Result<N, std::num::ParseIntError>>,
) -> Result<N, NumberError> {
    let reason = match number {
        Some(Ok(number)) => return Ok(number),
        Some(Err(error)) => match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        },
        None => "invalid syntax",
    };
    Err(NumberError { function, text: quote(text), reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_go_reads_them() {
        assert_eq!(signed(b"-12", 10), Ok(-12));
        assert_eq!(signed(b"+ff", 16), Ok(255));
        assert_eq!(unsigned(b"FF", 16), Ok(255));
        assert_eq!(
            signed(b"1_0", 10).unwrap_err().to_string(),
            r#"strconv.ParseInt: parsing "1_0": invalid syntax"#
        );
        assert_eq!(
            unsigned(b"+1", 16).unwrap_err().to_string(),
            r#"strconv.ParseUint: parsing "+1": invalid syntax"#
        );
        assert_eq!(
            unsigned(b"", 16).unwrap_err().to_string(),
            r#"strconv.ParseUint: parsing "": invalid syntax"#
        );
        let long = signed(b"8000000000000000", 16).unwrap_err().to_string();
        assert_eq!(long, r#"strconv.ParseInt: parsing "8000000000000000": value out of range"#);
    }
}
