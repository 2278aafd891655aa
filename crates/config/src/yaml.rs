//! Parses the YAML (or JSON) text of a configuration file into a tree. Depth and number of nodes are limited.
//! Scalars and tags are those of YAML 1.1 that etcd's reader supports (`yes`, `0x10`, `1_000`, `!!int "7"`).
//! As in etcd, only the first document is read. The crate `saphyr-parser` splits the text into events.

use std::collections::{HashMap, HashSet};
use std::fmt;

use saphyr_parser::{Event, Parser, ScalarStyle};

use input::TabTolerant;
use scalar::scalar;

mod input;
mod scalar;

/// Maximum nesting of lists and maps.
const DEPTH_MAX: usize = 16;
/// Maximum number of scalars, lists and maps in a document; an alias counts as the nodes that it stands for.
const NODES_MAX: usize = 16_384;
/// Tag that a merge key may have.
const MERGE_TAG: &str = "tag:yaml.org,2002:merge";

/// A YAML value.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Yaml {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<Yaml>),
    /// Entries in the order of the document, with the line of each key; keys may be repeated.
    Map(Vec<(String, usize, Yaml)>),
}

impl Yaml {
    /// Returns the kind of the value as Go's JSON reader names it.
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

/// Error with the reason why a text cannot be read as YAML.
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

/// A list or map of which the parser has not reached the end.
enum Open {
    List(Vec<Yaml>),
    Map(OpenMap),
}

#[derive(Default)]
struct OpenMap {
    entries: Vec<(String, usize, Yaml)>,
    /// Values of merge keys, in the order of the document.
    merges: Vec<Yaml>,
    /// Key whose value comes next.
    key: Option<Key>,
}

enum Key {
    /// `<<` without quotes, see <https://yaml.org/type/merge.html>.
    Merge,
    /// A key, with its line.
    Named(String, usize),
}

impl OpenMap {
    /// Adds the next node: a key, or the value of the previous key.
    fn push(&mut self, next: Yaml, line: usize, is_merge: bool) -> Result<(), &'static str> {
        match self.key.take() {
            Some(Key::Merge) => self.merges.push(next),
            Some(Key::Named(key, line)) => self.entries.push((key, line, next)),
            None if is_merge => self.key = Some(Key::Merge),
            None => self.key = Some(Key::Named(key_text(next).ok_or("a key that is not text")?, line)),
        }
        Ok(())
    }

    /// Returns the map together with the entries that its merge keys add. If several merged maps have the
    /// same key, the earlier map takes precedence. A key of the map itself overrides merged keys.
    fn finish(self) -> Result<Yaml, &'static str> {
        let mut entries = self.entries;
        let maps = self.merges.into_iter().flat_map(|value| match value {
            Yaml::List(maps) => maps,
            one => vec![one],
        });
        for map in maps {
            let Yaml::Map(more) = map else {
                return Err("map merge requires map or sequence of maps as the value");
            };
            let known: HashSet<&String> = entries.iter().map(|(key, ..)| key).collect();
            let mut all: Vec<_> = more.into_iter().filter(|(key, ..)| !known.contains(key)).collect();
            // Put the entries of the map itself last, so that they override the merged ones: the code that
            // reads flags uses the last of several equal keys, and treats `Name` and `name` as equal.
            all.append(&mut entries);
            entries = all;
        }
        Ok(Yaml::Map(entries))
    }
}

/// Parses the first document of a text; an empty text is null.
pub(super) fn read(text: &str) -> Result<Yaml, YamlError> {
    if let Some((line, _)) = (1..).zip(text.split('\n')).find(|(_, line)| line.chars().any(is_control)) {
        return Err(YamlError { line, why: "control characters are not allowed".to_owned() });
    }
    let mut parser = Parser::new(TabTolerant::new(text));
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
        let mut is_merge = false;
        let (whole, anchor) = match event {
            Event::StreamEnd | Event::DocumentEnd => return Ok(Yaml::Null),
            Event::Nothing | Event::StreamStart | Event::DocumentStart(_) => continue,
            Event::SequenceStart(anchor, _) => {
                open.push((Open::List(Vec::new()), anchor));
                bounded(&open, &mut nodes, 1, 0).map_err(failed)?;
                continue;
            }
            Event::MappingStart(anchor, _) => {
                open.push((Open::Map(OpenMap::default()), anchor));
                bounded(&open, &mut nodes, 1, 0).map_err(failed)?;
                continue;
            }
            Event::SequenceEnd | Event::MappingEnd => match open.pop() {
                Some((Open::List(items), anchor)) => (Yaml::List(items), anchor),
                Some((Open::Map(map), anchor)) => (map.finish().map_err(failed)?, anchor),
                None => return Err(failed("an end without a beginning")),
            },
            Event::Scalar(text, style, anchor, tag) => {
                bounded(&open, &mut nodes, 1, 0).map_err(failed)?;
                let tag = tag.map(|tag| format!("{}{}", tag.handle, tag.suffix));
                let is_plain = style == ScalarStyle::Plain;
                is_merge = is_plain && text == "<<" && tag.as_deref().is_none_or(|tag| tag == MERGE_TAG);
                (scalar(text, is_plain, tag.as_deref()).map_err(|why| failed(&why))?, anchor)
            }
            Event::Alias(anchor) => {
                let value =
                    anchors.get(&anchor).ok_or_else(|| failed("an alias inside its own definition"))?;
                bounded(&open, &mut nodes, value.nodes(), value.depth()).map_err(failed)?;
                (value.clone(), 0)
            }
        };
        if anchor != 0 {
            // Count the nodes of an anchored value a second time, because `anchors` keeps a copy of it.
            bounded(&open, &mut nodes, whole.nodes(), 0).map_err(failed)?;
            anchors.insert(anchor, whole.clone());
        }
        match open.last_mut() {
            None => return Ok(whole),
            Some((Open::List(items), _)) => items.push(whole),
            Some((Open::Map(map), _)) => map.push(whole, line, is_merge).map_err(failed)?,
        }
    }
}

/// Returns true for characters that etcd's reader refuses everywhere.
fn is_control(c: char) -> bool {
    c.is_control() && !matches!(c, '\t' | '\r' | '\n' | '\u{85}')
}

/// Adds `more` to the number of nodes. Returns an error if there are too many nodes, or if nodes that are
/// `depth` levels deep would be nested too deeply below the open lists and maps.
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
        Yaml::Null | Yaml::List(_) | Yaml::Map(_) => None,
    }
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
    fn a_tab_separates_a_value_from_its_colon() {
        for written in ["a:\t7", "a:\t\t7", "a: \t7", "a\t:\t7", "{a:\t7}", "'a':\t7", "a:\t7\t# c"] {
            assert_eq!(entries(written), [("a".to_owned(), Yaml::Int(7))], "{written:?}");
        }
        assert_eq!(entries("a:\tx-y\nb:\t-1")[1].1, Yaml::Int(-1));
        for written in ["a:\tb: 1", "a:\t- 1", "a:\n\tb: 1", "a: |\n\tx"] {
            assert!(read(written).is_err(), "{written:?}");
        }
    }

    #[test]
    fn tags_say_what_a_scalar_is() {
        for (written, value) in [
            ("!!int \"7\"", Yaml::Int(7)),
            ("!!int '0x10'", Yaml::Int(16)),
            ("!!int >-\n  7\n", Yaml::Int(7)),
            ("!<tag:yaml.org,2002:int> '7'", Yaml::Int(7)),
            ("%TAG !e! tag:yaml.org,2002:\n--- !e!int '7'", Yaml::Int(7)),
            ("!!float 7", Yaml::Float(7.0)),
            ("!!float \"7.5\"", Yaml::Float(7.5)),
            ("!!bool 'on'", Yaml::Bool(true)),
            ("!!null '~'", Yaml::Null),
            ("!!str", text("")),
            ("!!str yes", text("yes")),
            ("!!binary aGk=", text("hi")),
            ("!!binary '/w=='", text("\u{fffd}")),
            ("!!timestamp '2001-01-01'", text("2001-01-01")),
            ("!!foo 7", text("7")),
            ("!foo 7", text("7")),
            ("! 7", text("7")),
            ("!!seq x", text("x")),
            ("!!seq [1]", Yaml::List(vec![Yaml::Int(1)])),
            ("!!str [1]", Yaml::List(vec![Yaml::Int(1)])),
        ] {
            assert_eq!(read(written), Ok(value), "{written}");
        }
        for (written, why) in [
            ("!!int 7.0", "cannot decode !!float `7.0` as a !!int"),
            ("!!int x", "cannot decode !!str `x` as a !!int"),
            ("!!int", "cannot decode !!null `` as a !!int"),
            ("!!bool 1", "cannot decode !!int `1` as a !!bool"),
            ("!!float true", "cannot decode !!bool `true` as a !!float"),
            ("!!null x", "cannot decode !!str `x` as a !!null"),
            ("!!timestamp x", "cannot decode !!str `x` as a !!timestamp"),
            ("!!binary '!!'", "!!binary value contains invalid base64 data"),
            ("-.inf", "json: unsupported value: -Inf"),
            ("!!float '.nan'", "json: unsupported value: NaN"),
            ("\"a\u{1}\"", "control characters are not allowed"),
            ("~: a", "a key that is not text"),
        ] {
            assert_eq!(read(written).unwrap_err().why, why, "{written}");
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
        let quoted = entries("'<<': {a: 1}\n!!str <<: {b: 2}\n");
        assert_eq!(quoted.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["<<", "<<"]);
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
        // Each line expands to nine times the nodes of the previous line.
        let mut laughs = "a0: &a0 [x,x,x,x,x,x,x,x,x]\n".to_owned();
        for at in 1..9 {
            let before = format!("*a{}", at - 1);
            laughs.push_str(&format!("a{at}: &a{at} [{}]\n", [before.as_str(); 9].join(",")));
        }
        assert_eq!(read(&laughs).unwrap_err().why, "the document is too large");
    }
}
