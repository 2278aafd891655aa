//! Numbers in arguments, with the errors of Go's strconv.

use std::num::IntErrorKind;

use cli::go::quote;

/// A signed number.
///
/// # Errors
/// The text of Go's `strconv.ParseInt`.
pub fn signed(text: &[u8], radix: u32) -> Result<i64, String> {
    let number = std::str::from_utf8(text).ok().map(|text| i64::from_str_radix(text, radix));
    parsed("ParseInt", text, number)
}

/// An unsigned number; a sign is not part of one.
///
/// # Errors
/// The text of Go's `strconv.ParseUint`.
pub fn unsigned(text: &[u8], radix: u32) -> Result<u64, String> {
    let plain = std::str::from_utf8(text).ok().filter(|text| !text.starts_with('+'));
    parsed("ParseUint", text, plain.map(|text| u64::from_str_radix(text, radix)))
}

fn parsed<N>(
    function: &str,
    text: &[u8],
    number: Option<Result<N, std::num::ParseIntError>>,
) -> Result<N, String> {
    let reason = match number {
        Some(Ok(number)) => return Ok(number),
        Some(Err(error)) => match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => "value out of range",
            _ => "invalid syntax",
        },
        None => "invalid syntax",
    };
    Err(format!("strconv.{function}: parsing {}: {reason}", quote(text)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_go_reads_them() {
        assert_eq!(signed(b"-12", 10), Ok(-12));
        assert_eq!(signed(b"+ff", 16), Ok(255));
        assert_eq!(unsigned(b"FF", 16), Ok(255));
        assert_eq!(signed(b"1_0", 10).unwrap_err(), r#"strconv.ParseInt: parsing "1_0": invalid syntax"#);
        assert_eq!(unsigned(b"+1", 16).unwrap_err(), r#"strconv.ParseUint: parsing "+1": invalid syntax"#);
        assert_eq!(unsigned(b"", 16).unwrap_err(), r#"strconv.ParseUint: parsing "": invalid syntax"#);
        let long = signed(b"8000000000000000", 16).unwrap_err();
        assert_eq!(long, r#"strconv.ParseInt: parsing "8000000000000000": value out of range"#);
    }
}
