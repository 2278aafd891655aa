//! Encodes profiles in pprof's format: the message `Profile` of `profile.proto`, compressed with gzip.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::io::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;

use crate::names::{Mapping, Names, mappings};
use crate::threads;

/// A recorded stack: its addresses, from the innermost frame outwards, and its thread.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Stack {
    pub thread: usize,
    pub frames: Vec<usize>,
}

/// Field numbers of the message `Profile`.
mod field {
    pub const SAMPLE_TYPE: u32 = 1;
    pub const SAMPLE: u32 = 2;
    pub const MAPPING: u32 = 3;
    pub const LOCATION: u32 = 4;
    pub const FUNCTION: u32 = 5;
    pub const STRING: u32 = 6;
    pub const TIME_NS: u32 = 9;
    pub const DURATION_NS: u32 = 10;
    pub const PERIOD_TYPE: u32 = 11;
    pub const PERIOD: u32 = 12;
    pub const COMMENT: u32 = 13;
    pub const DEFAULT_SAMPLE_TYPE: u32 = 14;
}

/// Encoder of the fields of a message. A field with the value 0 is omitted, as in protobuf.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn number(&mut self, field: u32, value: u64) -> &mut Message {
        if value != 0 {
            self.varint(u64::from(field) << 3);
            self.varint(value);
        }
        self
    }

    fn bytes(&mut self, field: u32, bytes: &[u8]) -> &mut Message {
        self.varint(u64::from(field) << 3 | 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn packed(&mut self, field: u32, values: &[u64]) -> &mut Message {
        let mut packed = Message::default();
        values.iter().for_each(|value| packed.varint(*value));
        self.bytes(field, &packed.0)
    }
}

/// A profile that is being encoded. Each string and function is stored only once, and other records refer to
/// it by a number.
pub(crate) struct Profile {
    message: Message,
    strings: HashMap<String, u64>,
    table: Vec<String>,
    functions: HashMap<String, u64>,
}

impl Profile {
    pub(crate) fn new() -> Profile {
        let mut profile = Profile {
            message: Message::default(),
            strings: HashMap::new(),
            table: Vec::new(),
            functions: HashMap::new(),
        };
        // pprof requires that the first string is empty.
        profile.string("");
        profile
    }

    fn string(&mut self, text: &str) -> u64 {
        if let Some(known) = self.strings.get(text) {
            return *known;
        }
        let number = self.table.len() as u64;
        self.table.push(text.to_owned());
        self.strings.insert(text.to_owned(), number);
        number
    }

    fn value_type(&mut self, field: u32, (kind, unit): (&str, &str)) {
        let (kind, unit) = (self.string(kind), self.string(unit));
        let mut message = Message::default();
        message.number(1, kind).number(2, unit);
        self.message.bytes(field, &message.0);
    }

    /// Sets the kinds of values that each sample has.
    pub(crate) fn values(&mut self, kinds: &[(&str, &str)]) {
        kinds.iter().for_each(|kind| self.value_type(field::SAMPLE_TYPE, *kind));
    }

    /// Sets the kind of value that tools show first.
    pub(crate) fn shows_first(&mut self, kind: &str) {
        let kind = self.string(kind);
        self.message.number(field::DEFAULT_SAMPLE_TYPE, kind);
    }

    fn function(&mut self, name: &str) -> u64 {
        if let Some(known) = self.functions.get(name) {
            return *known;
        }
        let id = self.functions.len() as u64 + 1;
        self.functions.insert(name.to_owned(), id);
        let name = self.string(name);
        let mut message = Message::default();
        // Use the mangled name as the name to display too, because tools demangle it.
        message.number(1, id).number(2, name).number(3, name);
        self.message.bytes(field::FUNCTION, &message.0);
        id
    }

    /// Adds a location in the code. `id` must not be 0, and each id may be used only once.
    pub(crate) fn location(&mut self, id: u64, mapping: u64, address: u64, name: &str) {
        let function = self.function(name);
        let mut line = Message::default();
        line.number(1, function);
        let mut message = Message::default();
        message.number(1, id).number(2, mapping).number(3, address).bytes(4, &line.0);
        self.message.bytes(field::LOCATION, &message.0);
    }

    fn mapping(&mut self, id: u64, mapping: &Mapping) {
        let file = self.string(&mapping.file);
        let mut message = Message::default();
        message.number(1, id).number(2, mapping.start).number(3, mapping.end);
        message.number(4, mapping.offset).number(5, file).number(7, 1);
        self.message.bytes(field::MAPPING, &message.0);
    }

    /// Adds a sample at these locations, from the innermost outwards, with labels.
    pub(crate) fn sample(&mut self, locations: &[u64], values: &[u64], labels: &[(&str, &str)]) {
        let mut message = Message::default();
        message.packed(1, locations).packed(2, values);
        for (key, value) in labels {
            let (key, value) = (self.string(key), self.string(value));
            let mut label = Message::default();
            label.number(1, key).number(2, value);
            message.bytes(3, &label.0);
        }
        self.message.bytes(field::SAMPLE, &message.0);
    }

    /// Returns the encoded and compressed profile.
    pub(crate) fn finish(mut self, began: SystemTime) -> Vec<u8> {
        let nanos = began.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        self.message.number(field::TIME_NS, u64::try_from(nanos).unwrap_or(0));
        for text in &self.table {
            self.message.bytes(field::STRING, text.as_bytes());
        }
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        // Ignore the result, because writing into memory cannot fail. The same is true of `finish`.
        let _ = encoder.write_all(&self.message.0);
        encoder.finish().unwrap_or_default()
    }
}

/// Encodes a profile of processor time.
pub(crate) fn cpu(
    stacks: &[Stack],
    lost: usize,
    period: Duration,
    took: Duration,
    began: SystemTime,
) -> Vec<u8> {
    let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let mut profile = Profile::new();
    profile.values(&[("samples", "count"), ("cpu", "nanoseconds")]);
    profile.value_type(field::PERIOD_TYPE, ("cpu", "nanoseconds"));
    profile.message.number(field::PERIOD, nanos(period)).number(field::DURATION_NS, nanos(took));
    if lost > 0 {
        let comment = profile.string(&format!("{lost} more samples were dropped for lack of space"));
        profile.message.number(field::COMMENT, comment);
    }
    let mappings = mappings();
    for (mapping, id) in mappings.iter().zip(1..) {
        profile.mapping(id, mapping);
    }
    let mut counted: BTreeMap<&Stack, u64> = BTreeMap::new();
    stacks.iter().for_each(|stack| *counted.entry(stack).or_default() += 1);
    let (mut names, mut locations) = (Names::new(), HashMap::new());
    let threads: HashMap<usize, String> = threads::names();
    for (stack, count) in counted {
        let mut places = Vec::with_capacity(stack.frames.len());
        for address in &stack.frames {
            let next = locations.len() as u64 + 1;
            let id = *locations.entry(*address).or_insert(next);
            if id == next {
                let address = *address as u64;
                let at = mappings.iter().position(|m| (m.start..m.end).contains(&address));
                let name = match at.and_then(|at| mappings.get(at)) {
                    Some(mapping) => names.at(mapping, address),
                    None => "[unknown]".to_owned(),
                };
                profile.location(id, at.map_or(0, |at| at as u64 + 1), address, &name);
            }
            places.push(id);
        }
        let thread = threads.get(&stack.thread).map_or("ended", String::as_str);
        profile.sample(&places, &[count, count.saturating_mul(nanos(period))], &[("thread", thread)]);
    }
    profile.finish(began)
}

/// Decoded contents of a profile, for tests.
#[cfg(test)]
pub(crate) struct Decoded {
    pub strings: Vec<String>,
    pub samples: u64,
}

#[cfg(test)]
pub(crate) fn decoded(profile: &[u8]) -> Decoded {
    use std::io::Read as _;
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                break;
            }
        }
        value
    }
    /// Returns number and content of each field.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let value = varint(&mut bytes);
            if tag & 7 == 2 {
                let (content, rest) = bytes.split_at(value as usize);
                fields.push((tag >> 3, content.to_vec()));
                bytes = rest;
            }
        }
        fields
    }
    let mut plain = Vec::new();
    flate2::read::GzDecoder::new(profile).read_to_end(&mut plain).expect("it is compressed");
    let all = fields(&plain);
    let of = |number: u32| all.iter().filter(move |(found, _)| *found == u64::from(number));
    let strings = of(field::STRING).map(|(_, text)| String::from_utf8(text.clone()).expect("text"));
    let count = |sample: &[u8]| {
        let values = fields(sample).into_iter().find(|(number, _)| *number == 2).expect("values").1;
        varint(&mut &values[..])
    };
    Decoded { strings: strings.collect(), samples: of(field::SAMPLE).map(|(_, sample)| count(sample)).sum() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_stacks_are_one_sample() {
        let stack = |thread, frames: &[usize]| Stack { thread, frames: frames.to_vec() };
        let stacks = [stack(1, &[1, 2]), stack(1, &[1, 2]), stack(1, &[3])];
        let told = decoded(&cpu(&stacks, 2, Duration::from_millis(10), Duration::from_secs(1), UNIX_EPOCH));
        assert_eq!(told.samples, 3);
        assert_eq!(told.strings[0], "");
        assert!(
            told.strings.contains(&"2 more samples were dropped for lack of space".to_owned()),
            "{:?}",
            told.strings
        );
        assert!(told.strings.contains(&"[unknown]".to_owned()));
    }
}
