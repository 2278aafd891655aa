//! YAML, and with it JSON, as a tree: bounded in bytes, depth and nodes, with the scalars of YAML 1.1 that etcd's reader knows
//! (`yes`, `0x10`, `1_000`). Only the first document is read, as etcd does. `saphyr-parser` cuts the text into events.

use std::collections::{HashMap, HashSet};
use std::fmt;

use saphyr_parser::{Event, Parser, ScalarStyle};

/// Lists and maps inside of each other.
const DEPTH_MAX: usize = 16;
/// Scalars, lists and maps of a document; an alias counts as what it stands for.
const NODES_MAX: usize = 16_384;

/// A value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Yaml {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Yaml>),
    /// In the order of the document, with the line of each key; a key may be there more than once.
    Map(Vec<(String, usize, Yaml)>),
}

impl Yaml {
    /// The kind of the value in the words of Go's JSON reader.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Yaml::Null => "null",
            Yaml::Bool(_) => "bool",
            Yaml::Int(_) | Yaml::Float(_) => "number",
            Yaml::Text(_) => "string",
            Yaml::List(_) => "array",
            Yaml::Map(_) => "object",
        }
    }

    fn nodes(&self) -> usize {
        1 + match self {
            Yaml::List(items) => items.iter().map(Yaml::nodes).sum(),
            Yaml::Map(entries) => entries.iter().map(|(_, _, value)| value.nodes()).sum(),
            _ => 0,
        }
    }

    fn depth(&self) -> usize {
        match self {
            Yaml::List(items) => 1 + items.iter().map(Yaml::depth).max().unwrap_or(0),
            Yaml::Map(entries) => 1 + entries.iter().map(|(_, _, value)| value.depth()).max().unwrap_or(0),
            _ => 0,
        }
    }
}

/// Why a text is no YAML that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct YamlError {
    line: usize,
    why: String,
}

impl fmt::Display for YamlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "yaml: line {}: {}", self.line, self.why)
    }
}

/// A list or map whose end is still to come.
enum Open {
    List(Vec<Yaml>),
    /// The entries, and the key whose value is next, with its line.
    Map(Vec<(String, usize, Yaml)>, Option<(String, usize)>),
}

/// Reads the first document; an empty text is null.
pub(super) fn read(text: &str) -> Result<Yaml, YamlError> {
    let mut parser = Parser::new_from_str(text);
    let mut open: Vec<(Open, usize)> = Vec::new();
    let mut anchors: HashMap<usize, Yaml> = HashMap::new();
    let mut nodes = 0;
    loop {
        let (event, span) = match parser.next_event() {
            None => return Ok(Yaml::Null),
            Some(Ok(next)) => next,
            Some(Err(error)) => {
                return Err(YamlError { line: error.marker().line(), why: error.info().to_owned() });
            }
        };
        let line = span.start.line();
        let failed = |why: &str| YamlError { line, why: why.to_owned() };
        let (whole, anchor) = match event {
            Event::StreamEnd | Event::DocumentEnd => return Ok(Yaml::Null),
            Event::Nothing | Event::StreamStart | Event::DocumentStart(_) => continue,
            Event::SequenceStart(anchor, _) => {
                open.push((Open::List(Vec::new()), anchor));
                bounded(&open, &mut nodes, 1, 0).map_err(failed)?;
                continue;
            }
            Event::MappingStart(anchor, _) => {
                open.push((Open::Map(Vec::new(), None), anchor));
                bounded(&open, &mut nodes, 1, 0).map_err(failed)?;
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some((Open::List(items), anchor)) => (Yaml::List(items), anchor),
                Some((Open::Map(entries, _), anchor)) => {
                    (Yaml::Map(merged(entries).map_err(failed)?), anchor)
                }
                None => return Err(failed("an end without a beginning")),
            },
            Event::Scalar(text, style, anchor, tag) => {
                bounded(&open, &mut nodes, 1, 0).map_err(failed)?;
                let is_text = tag.is_some_and(|tag| tag.is_yaml_core_schema() && tag.suffix == "str");
                let value = match style {
                    ScalarStyle::Plain if !is_text => plain(&text),
                    _ => Yaml::Text(text.into_owned()),
                };
                (value, anchor)
            }
            Event::Alias(anchor) => {
                let value =
                    anchors.get(&anchor).ok_or_else(|| failed("an alias within what it stands for"))?;
                bounded(&open, &mut nodes, value.nodes(), value.depth()).map_err(failed)?;
                (value.clone(), 0)
            }
        };
        if anchor != 0 {
            // What an anchor keeps is a copy, and counts as one.
            bounded(&open, &mut nodes, whole.nodes(), 0).map_err(failed)?;
            anchors.insert(anchor, whole.clone());
        }
        match open.last_mut() {
            None => return Ok(whole),
            Some((Open::List(items), _)) => items.push(whole),
            Some((Open::Map(entries, key), _)) => match key.take() {
                Some((key, line)) => entries.push((key, line, whole)),
                None => *key = Some((key_text(whole).ok_or_else(|| failed("a key that is no text"))?, line)),
            },
        }
    }
}

/// The entries of a map after its merge keys (`<<`, <https://yaml.org/type/merge.html>): those of the map named there, or of the maps
/// of the list there, the earlier ones first. A key that the map has itself stays as it is.
fn merged(entries: Vec<(String, usize, Yaml)>) -> Result<Vec<(String, usize, Yaml)>, &'static str> {
    let (merges, mut entries): (Vec<_>, Vec<_>) = entries.into_iter().partition(|(key, ..)| key == "<<");
    let maps = merges.into_iter().flat_map(|(_, _, value)| match value {
        Yaml::List(maps) => maps,
        one => vec![one],
    });
    for map in maps {
        let Yaml::Map(more) = map else {
            return Err("map merge requires map or sequence of maps as the value");
        };
        let known: HashSet<&String> = entries.iter().map(|(key, ..)| key).collect();
        let mut all: Vec<_> = more.into_iter().filter(|(key, ..)| !known.contains(key)).collect();
        // Behind the merged ones, since the last of two counts, and the reader of flags takes `Name` for `name`.
        all.append(&mut entries);
        entries = all;
    }
    Ok(entries)
}

/// Counts nodes in, which bring this depth; an error if there are too many.
fn bounded(open: &[(Open, usize)], nodes: &mut usize, more: usize, depth: usize) -> Result<(), &'static str> {
    *nodes += more;
    if *nodes > NODES_MAX {
        return Err("the document is too large");
    }
    if open.len() + depth > DEPTH_MAX { Err("the document is nested too deeply") } else { Ok(()) }
}

fn key_text(key: Yaml) -> Option<String> {
    match key {
        Yaml::Text(text) => Some(text),
        Yaml::Int(number) => Some(number.to_string()),
        Yaml::Float(number) => Some(number.to_string()),
        Yaml::Bool(value) => Some(value.to_string()),
        Yaml::Null => Some("null".to_owned()),
        Yaml::List(_) | Yaml::Map(_) => None,
    }
}

/// The value of a scalar without quotes.
fn plain(text: &str) -> Yaml {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Yaml::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            return Yaml::Bool(true);
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            return Yaml::Bool(false);
        }
        _ => {}
    }
    if !text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return Yaml::Text(text.to_owned());
    }
    let digits = text.replace('_', "");
    if let Some(number) = integer(&digits) {
        return Yaml::Int(number);
    }
    let is_decimal =
        digits.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e' | b'E'));
    match digits.parse::<f64>() {
        Ok(number) if is_decimal && number.is_finite() => Yaml::Float(number),
        _ => Yaml::Text(text.to_owned()),
    }
}

/// Go's integers with any base: `10`, `0x1f`, `0o17`, `017`, `0b11`. Larger ones than 64 bits have are floats, as in etcd's reader.
fn integer(text: &str) -> Option<i128> {
    let (negative, digits) = match text.split_at_checked(1)? {
        ("-", digits) => (true, digits),
        ("+", digits) => (false, digits),
        _ => (false, text),
    };
    let (radix, digits) = match digits.get(..2).map(str::to_ascii_lowercase).as_deref() {
        Some("0x") => (16, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0b") => (2, &digits[2..]),
        Some(two) if two.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    if digits.starts_with(['+', '-']) {
        return None;
    }
    let number = i128::from(u64::from_str_radix(digits, radix).ok()?);
    Some(if negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Yaml {
        Yaml::Text(text.to_owned())
    }

    fn entries(text: &str) -> Vec<(String, Yaml)> {
        match read(text) {
            Ok(Yaml::Map(entries)) => entries.into_iter().map(|(key, _, value)| (key, value)).collect(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn scalars_are_those_of_yaml_1_1() {
        for (written, value) in [
            ("", Yaml::Null),
            ("~", Yaml::Null),
            ("yes", Yaml::Bool(true)),
            ("Off", Yaml::Bool(false)),
            ("'yes'", text("yes")),
            ("!!str 5", text("5")),
            ("200", Yaml::Int(200)),
            ("-1", Yaml::Int(-1)),
            ("0x64", Yaml::Int(100)),
            ("010", Yaml::Int(8)),
            ("1_000", Yaml::Int(1000)),
            ("18446744073709551615", Yaml::Int(i128::from(u64::MAX))),
            ("1e2", Yaml::Float(100.0)),
            ("1.50", Yaml::Float(1.5)),
            ("10s", text("10s")),
            ("127.0.0.1:2379", text("127.0.0.1:2379")),
            ("+-5", text("+-5")),
            ("-", Yaml::List(vec![Yaml::Null])),
            ("\"a\\n\"", text("a\n")),
        ] {
            assert!(read(&format!("k: {written}\n")).is_ok() || written == "-", "{written}");
            assert_eq!(read(written), Ok(value), "{written}");
        }
    }

    #[test]
    fn maps_keep_their_order_and_doubles() {
        let read = entries("# a comment\na: 1\nb: [x, {c: 2}]\na: 3\n5: 6\n---\nsecond: document\n");
        let inner = Yaml::Map(vec![("c".to_owned(), 3, Yaml::Int(2))]);
        let expected = [
            ("a", Yaml::Int(1)),
            ("b", Yaml::List(vec![text("x"), inner])),
            ("a", Yaml::Int(3)),
            ("5", Yaml::Int(6)),
        ];
        assert_eq!(read, expected.map(|(key, value)| (key.to_owned(), value)));
        assert_eq!(entries("{\"a\": \"b\",\n\"c\": true}").len(), 2);
    }

    #[test]
    fn aliases_stand_for_what_they_name() {
        assert_eq!(entries("a: &x [1]\nb: *x\n")[1].1, Yaml::List(vec![Yaml::Int(1)]));
        assert!(read("a: *x\n").is_err());
    }

    #[test]
    fn merge_keys_bring_what_the_map_does_not_have_itself() {
        let read = entries("x: &x {a: 1, b: 2}\ny: &y {b: 3, c: 4}\nz: {b: 5, <<: *x}\nw: {<<: [*y, *x]}\n");
        let map = |entries: &[(&str, i128)]| {
            entries.iter().map(|(key, value)| ((*key).to_owned(), Yaml::Int(*value))).collect::<Vec<_>>()
        };
        let of = |at: usize| match &read[at].1 {
            Yaml::Map(entries) => {
                entries.iter().map(|(key, _, value)| (key.clone(), value.clone())).collect()
            }
            other => panic!("{other:?}"),
        };
        let (z, w): (Vec<_>, Vec<_>) = (of(2), of(3));
        assert_eq!(z, map(&[("a", 1), ("b", 5)]));
        assert_eq!(w, map(&[("a", 1), ("b", 3), ("c", 4)]));
        let error = super::read("a: {<<: 5}\n").unwrap_err();
        assert_eq!(error.why, "map merge requires map or sequence of maps as the value");
    }

    #[test]
    fn errors_name_the_line() {
        let error = read("a: 1\nb: [1\n").unwrap_err().to_string();
        assert!(error.starts_with("yaml: line "), "{error}");
        assert!(read("a: 1\n\tb: 2\n").is_err());
    }

    #[test]
    fn depth_and_size_are_bounded() {
        assert!(read(&"[".repeat(16)).is_err(), "not closed");
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(read(&nested(16)).is_ok());
        assert_eq!(read(&nested(17)).unwrap_err().why, "the document is nested too deeply");
        assert!(read(&"[".repeat(1 << 20)).is_err());
        assert!(read(&"- ".repeat(1 << 20)).is_err());
        // Each line has nine times what the one before has.
        let mut laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
        for at in 1..9 {
            let before = format!("*a{}", at - 1);
            laughs.push_str(&format!("a{at}: &a{at} [{}]\n", [before.as_str(); 9].join(",")));
        }
        assert_eq!(read(&laughs).unwrap_err().why, "the document is too large");
    }
}
