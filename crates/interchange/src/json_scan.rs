//! Finds one value in a JSON text without parsing the rest into memory, because the text may be large and
//! come from another member.

/// Returns the JSON text of the value at `path`, a list of names to follow from object to object. All other
/// values are skipped without checking that they are valid JSON.
///
/// # Errors
///
/// Returns an error if a value on the path is not an object or lacks the name, or if the text is incomplete
/// or continues after the value that it must contain.
pub(crate) fn member_at<'t>(text: &'t [u8], path: &[&str]) -> Result<&'t [u8], &'static str> {
    let mut at = text;
    for name in path {
        at = member(at, name)?;
    }
    Ok(at)
}

/// Returns the JSON text of the value that has this name in an object. The object must be the whole `text`.
/// If the name occurs several times, the last value is returned, as in Go.
fn member<'t>(text: &'t [u8], name: &str) -> Result<&'t [u8], &'static str> {
    let mut scan = Scan { text, at: 0 };
    let mut found = None;
    scan.expect(b'{')?;
    if scan.peek() == Some(b'}') {
        scan.at += 1;
    } else {
        loop {
            let key = scan.value()?;
            scan.expect(b':')?;
            let value = scan.value()?;
            if key.strip_prefix(b"\"").and_then(|key| key.strip_suffix(b"\"")) == Some(name.as_bytes()) {
                found = Some(value);
            }
            match scan.peek() {
                Some(b',') => scan.at += 1,
                _ => break,
            }
        }
        scan.expect(b'}')?;
    }
    match scan.peek() {
        None => found.ok_or("it has no members"),
        Some(_) => Err("there is data after its end"),
    }
}

struct Scan<'t> {
    text: &'t [u8],
    at: usize,
}

impl<'t> Scan<'t> {
    /// Skips white space, and returns the byte after it.
    fn peek(&mut self) -> Option<u8> {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
        self.text.get(self.at).copied()
    }

    fn expect(&mut self, byte: u8) -> Result<(), &'static str> {
        let is_there = self.peek() == Some(byte);
        self.at += 1;
        if is_there { Ok(()) } else { Err("it is not JSON, or it lacks an object") }
    }

    /// Skips a value and returns it: a string, a number or word, or everything between two brackets.
    fn value(&mut self) -> Result<&'t [u8], &'static str> {
        self.peek();
        let begin = self.at;
        let mut depth = 0_usize;
        while let Some(byte) = self.text.get(self.at).copied() {
            match byte {
                b'"' => self.string()?,
                b'[' | b'{' => {
                    depth += 1;
                    self.at += 1;
                }
                b']' | b'}' | b',' | b':' if depth == 0 => break,
                b']' | b'}' => {
                    depth -= 1;
                    self.at += 1;
                }
                _ => self.at += 1,
            }
            if depth == 0 && matches!(byte, b'"' | b']' | b'}') {
                break;
            }
        }
        let value = self.text.get(begin..self.at).unwrap_or_default();
        if depth == 0 && !value.is_empty() { Ok(value) } else { Err("it ends too early") }
    }

    /// Skips a string; the current position is its opening quote.
    fn string(&mut self) -> Result<(), &'static str> {
        self.at += 1;
        while let Some(byte) = self.text.get(self.at).copied() {
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == b'"' {
                return Ok(());
            }
        }
        Err("it ends too early")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, path: &[&str]) -> Result<String, &'static str> {
        member_at(text.as_bytes(), path).map(|found| String::from_utf8_lossy(found).into_owned())
    }

    #[test]
    fn a_part_is_found_between_others() {
        let text = r#" { "a" : [1, {"b":"}"}] , "x\"" : {} ,"b":{"c": 12 ,"d":"\\"}, "e":null}
"#;
        assert_eq!(found(text, &["b", "c"]).as_deref().map(str::trim), Ok("12"));
        assert_eq!(found(text, &["b", "d"]).as_deref(), Ok(r#""\\""#));
        assert_eq!(found(text, &["a"]).as_deref(), Ok(r#"[1, {"b":"}"}]"#));
        assert_eq!(found(text, &["e"]).as_deref(), Ok("null"));
        assert_eq!(found(r#"{"a":1,"a":2}"#, &["a"]).as_deref(), Ok("2"));
        assert_eq!(found(text, &["b", "e"]), Err("it has no members"));
        assert_eq!(found("{}", &["a"]), Err("it has no members"));
        for (at, _) in text.trim().char_indices() {
            assert!(found(&text.trim_start()[..at], &["e"]).is_err(), "{at}");
        }
        for text in [
            "",
            "[]",
            "{]",
            "{,}",
            r#"{"a"}"#,
            r#"{"a":}"#,
            r#"{"a":1}}"#,
            r#"{"a":1,}"#,
            r#"{"a":1 2}"#,
            r#"{"a""#,
        ] {
            assert!(
                found(text, &["b"]).is_err() && (text.contains("1 2") || found(text, &["a"]).is_err()),
                "{text}"
            );
        }
    }

    #[test]
    fn deep_texts_take_no_stack() {
        let deep = "[".repeat(1 << 20) + &"]".repeat(1 << 20);
        assert_eq!(found(&format!(r#"{{"a":{deep},"b":1}}"#), &["b"]).as_deref(), Ok("1"));
    }
}
