//! Encodes a history for files, and decodes it: one JSON object per line, with a field `is` that gives its
//! type. Unknown fields are ignored, and absent fields have their default value. A key or value that is UTF-8
//! and does not begin with `hex:` is written as a string; any other one as `hex:` with its bytes in
//! hexadecimal.

use std::fmt;

use serde::de::{DeserializeOwned, IgnoredAny};
use serde::ser::SerializeMap as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::{Header, History, KeyValue, Response, Target};

/// Error for a line that is not part of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Number of the line, counted from 1.
    pub line: usize,
    /// Description of the error.
    pub text: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

impl std::error::Error for Malformed {}

impl History {
    /// Returns the history as lines of JSON, with the fields of each line in alphabetical order.
    pub fn to_lines(&self) -> String {
        let mut text = String::new();
        write_line(&mut text, "settings", &self.settings);
        self.operations.iter().for_each(|operation| write_line(&mut text, "operation", operation));
        self.watches.iter().for_each(|watch| write_line(&mut text, "watch", watch));
        self.holdings.iter().for_each(|holding| write_line(&mut text, "holding", holding));
        self.finals.iter().for_each(|last| write_line(&mut text, "final", last));
        self.grants.iter().for_each(|grant| write_line(&mut text, "grant", grant));
        self.askers.iter().for_each(|asker| write_line(&mut text, "asker", asker));
        self.notes.iter().for_each(|note| write_line(&mut text, "note", note));
        text
    }

    /// Reads the format that [`History::to_lines`] writes; blank lines are ignored.
    pub fn from_lines(text: &str) -> Result<History, Malformed> {
        let mut history = History::default();
        for (number, line) in text.lines().enumerate() {
            if !line.trim().is_empty() {
                history.take(line).map_err(|text| Malformed { line: number + 1, text })?;
            }
        }
        Ok(history)
    }

    fn take(&mut self, line: &str) -> Result<(), String> {
        let value: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let is = value.get("is").and_then(Value::as_str).unwrap_or_default().to_owned();
        match is.as_str() {
            "settings" => self.settings = read(value)?,
            "operation" => self.operations.push(read(value)?),
            "watch" => self.watches.push(read(value)?),
            "holding" => self.holdings.push(read(value)?),
            "final" => self.finals.push(read(value)?),
            "grant" => self.grants.push(read(value)?),
            "asker" => self.askers.push(read(value)?),
            "note" => self.notes.push(read(value)?),
            _ => return Err(format!("there is no kind of line {is:?}")),
        }
        Ok(())
    }
}

fn write_line(text: &mut String, is: &str, part: &impl Serialize) {
    let mut value = serde_json::to_value(part).expect("every part of a history is a JSON object");
    value
        .as_object_mut()
        .expect("every part of a history is a JSON object")
        .insert("is".to_owned(), is.into());
    text.push_str(&value.to_string());
    text.push('\n');
}

fn read<T: DeserializeOwned>(value: Value) -> Result<T, String> {
    serde_json::from_value(value).map_err(|error| error.to_string())
}

/// Returns true if the value is the default. A field with its default value is left out, so that lines stay
/// short.
pub(crate) fn zero<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

const HEX: &str = "hex:";

fn blob_text(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.starts_with(HEX) => text.to_owned(),
        _ => {
            let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            format!("{HEX}{digits}")
        }
    }
}

fn blob_bytes(text: &str) -> Result<Vec<u8>, String> {
    let Some(digits) = text.strip_prefix(HEX) else { return Ok(text.as_bytes().to_vec()) };
    let byte = |pair: &[u8]| {
        let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
        u8::from_str_radix(pair, 16).ok()
    };
    let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
    bytes.ok_or_else(|| format!("{text:?} is no hexadecimal"))
}

/// Encoding of a key or value.
pub(crate) mod blob {
    use super::*;

    pub fn serialize<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&blob_text(bytes))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
        blob_bytes(&String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
    }
}

/// Encoding of a list of keys.
pub(crate) mod blobs {
    use super::*;

    pub fn serialize<S: Serializer>(list: &[Vec<u8>], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(list.iter().map(|bytes| blob_text(bytes)))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<u8>>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| blob_bytes(text).map_err(serde::de::Error::custom)).collect()
    }
}

/// Encoding of a variant without contents: an empty object.
pub(crate) mod empty {
    use super::*;

    pub fn serialize<S: Serializer>(serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_map(Some(0))?.end()
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
        IgnoredAny::deserialize(deserializer).map(|_| ())
    }
}

/// Encoding of a variant with one field: the field's value alone.
pub(crate) mod bare {
    use super::*;

    pub fn serialize<S: Serializer>(number: &i64, serializer: S) -> Result<S::Ok, S::Error> {
        number.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
        i64::deserialize(deserializer)
    }
}

/// Encoding of the response to a put: an object with the previous value, if there is one.
pub(crate) mod previous {
    use super::*;

    #[derive(Deserialize)]
    struct Previous {
        #[serde(default)]
        prev_kv: Option<KeyValue>,
    }

    pub fn serialize<S: Serializer>(kv: &Option<KeyValue>, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(kv) = kv {
            map.serialize_entry("prev_kv", kv)?;
        }
        map.end()
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<KeyValue>, D::Error> {
        Previous::deserialize(deserializer).map(|previous| previous.prev_kv)
    }
}

/// Encoding of a response with its header as one object.
pub(crate) mod done {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Done<R> {
        #[serde(flatten)]
        header: Header,
        response: R,
    }

    pub fn serialize<S: Serializer>(
        header: &Header,
        response: &Response,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        Done { header: *header, response }.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(Header, Response), D::Error> {
        Done::deserialize(deserializer).map(|done| (done.header, done.response))
    }
}

/// Encoding of the result of `HashKV`.
pub(crate) mod hash {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Hash {
        #[serde(default)]
        hash: u32,
        #[serde(default)]
        revision: i64,
        #[serde(default)]
        compact_revision: i64,
    }

    pub fn serialize<S: Serializer>(
        hash: &Option<(u32, i64, i64)>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        let hash = hash.map(|(hash, revision, compact_revision)| Hash { hash, revision, compact_revision });
        hash.serialize(serializer)
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<(u32, i64, i64)>, D::Error> {
        let hash = Option::<Hash>::deserialize(deserializer)?;
        Ok(hash.map(|hash| (hash.hash, hash.revision, hash.compact_revision)))
    }
}

/// A comparison's target, written as two fields of the comparison: the kind of target, and the value to
/// compare with.
#[derive(Serialize, Deserialize)]
pub(crate) struct TargetLine {
    target: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    with: Value,
}

impl From<Target> for TargetLine {
    fn from(target: Target) -> TargetLine {
        let (target, with) = match target {
            Target::Version(number) => ("version", Value::from(number)),
            Target::Create(number) => ("create", number.into()),
            Target::Mod(number) => ("mod", number.into()),
            Target::Value(value) => ("value", blob_text(&value).into()),
            Target::Lease(number) => ("lease", number.into()),
        };
        let with = if with == 0 || with == "" { Value::Null } else { with };
        TargetLine { target: target.to_owned(), with }
    }
}

impl TryFrom<TargetLine> for Target {
    type Error = String;

    fn try_from(TargetLine { target, with }: TargetLine) -> Result<Target, String> {
        let number = || match &with {
            Value::Null => Ok(0),
            with => with.as_i64().ok_or_else(|| format!("with: {with} is no number")),
        };
        Ok(match target.as_str() {
            "version" => Target::Version(number()?),
            "create" => Target::Create(number()?),
            "mod" => Target::Mod(number()?),
            "value" => Target::Value(blob_bytes(with.as_str().unwrap_or_default())?),
            "lease" => Target::Lease(number()?),
            _ => return Err(format!("there is no target {target:?}")),
        })
    }
}
