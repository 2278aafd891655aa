//! Converts the bytes of a protobuf message to JSON, as etcd's gateway writes it: [`encode`].
//! [`RangeEncoder`] converts a large response chunk by chunk.

use api::descriptor::{Field, Kind, Message};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::DEPTH_MAX;

/// Error returned when bytes are not a valid encoding of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed;

/// Tells which characters are escaped in strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Texts {
    Plain,
    /// `<`, `>` and `&` are escaped, too. Go does this in streamed responses.
    ForHtml,
}

/// Appends a message as JSON. The fields have the order and the names of the `.proto` file. Fields with their
/// zero value are omitted.
///
/// # Errors
///
/// Returns an error if the bytes are not a valid encoding of the message. The contents of `out` are then
/// undefined.
pub fn encode(message: &'static Message, bytes: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
    encode_as(message, bytes, Texts::Plain, out)
}

pub(crate) fn encode_as(
    message: &'static Message,
    bytes: &[u8],
    texts: Texts,
    out: &mut Vec<u8>,
) -> Result<(), Malformed> {
    Writer { out, texts, found: Vec::new() }.message(message, bytes, 0)
}

/// The encoded value of a field.
#[derive(Clone, Copy)]
enum Wire<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// Iterator over the fields of an encoded message.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn next(&mut self) -> Result<Option<(u32, Wire<'a>)>, Malformed> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let number = u32::try_from(tag >> 3).map_err(|_| Malformed)?;
        let value = match tag & 7 {
            0 => Wire::Number(self.varint()?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| Malformed)?;
                let (value, rest) = self.0.split_at_checked(length).ok_or(Malformed)?;
                self.0 = rest;
                Wire::Bytes(value)
            }
            _ => return Err(Malformed),
        };
        Ok(Some((number, value)))
    }

    fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0u64;
        for (at, byte) in self.0.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f) << (7 * at);
            if byte & 0x80 == 0 {
                self.0 = &self.0[at + 1..];
                return Ok(value);
            }
        }
        Err(Malformed)
    }
}

struct Writer<'a, 'b> {
    out: &'b mut Vec<u8>,
    texts: Texts,
    /// Fields of the message that is being written and of the messages around it. Each has its index in the
    /// description of its message.
    found: Vec<(usize, Wire<'a>)>,
}

impl<'a> Writer<'a, '_> {
    fn message(&mut self, message: &'static Message, bytes: &'a [u8], depth: usize) -> Result<(), Malformed> {
        if depth > DEPTH_MAX {
            return Err(Malformed);
        }
        let base = self.found.len();
        self.find(message, bytes, base)?;
        self.out.push(b'{');
        let (mut at, mut is_first) = (base, true);
        while let Some(&(index, value)) = self.found.get(at) {
            let field = &message.fields[index];
            at += 1;
            if field.repeated {
                self.name(field, &mut is_first);
                self.out.push(b'[');
                self.element(field, value, depth, true)?;
                while let Some(&(next, value)) = self.found.get(at)
                    && next == index
                {
                    at += 1;
                    self.element(field, value, depth, false)?;
                }
                self.out.push(b']');
                continue;
            }
            // Skip this value if the field occurs again, because the last value counts.
            if self.found.get(at).is_some_and(|(next, _)| *next == index) {
                continue;
            }
            let is_zero = match value {
                Wire::Number(number) => number == 0,
                Wire::Bytes(bytes) => bytes.is_empty() && !matches!(field.kind, Kind::Message(_)),
            };
            if is_zero && field.oneof.is_none() {
                continue;
            }
            self.name(field, &mut is_first);
            self.value(field, value, depth)?;
        }
        self.out.push(b'}');
        self.found.truncate(base);
        Ok(())
    }

    /// Appends the fields of a message to `found`, in the order of the message's description. `base` is the
    /// length of `found` before.
    fn find(&mut self, message: &'static Message, bytes: &'a [u8], base: usize) -> Result<(), Malformed> {
        let (mut fields, mut last, mut is_ordered) = (Fields(bytes), 0, true);
        while let Some((number, value)) = fields.next()? {
            // Search from the last field on, because fields are usually in order.
            let place = |(_, field): &(usize, &Field)| field.number == number;
            let numbered = || message.fields.iter().enumerate();
            let Some((index, _)) = numbered().skip(last).find(place).or_else(|| numbered().find(place))
            else {
                continue;
            };
            is_ordered &= index >= last;
            last = index;
            self.found.push((index, value));
        }
        if !is_ordered {
            self.found[base..].sort_by_key(|(index, _)| *index);
        }
        Ok(())
    }

    fn name(&mut self, field: &Field, is_first: &mut bool) {
        if !std::mem::take(is_first) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(field.name.as_bytes());
        self.out.extend_from_slice(b"\":");
    }

    /// Writes one element of a list, or several elements that are packed into one field.
    fn element(
        &mut self,
        field: &'static Field,
        value: Wire<'a>,
        depth: usize,
        mut is_first: bool,
    ) -> Result<(), Malformed> {
        let mut comma = |out: &mut Vec<u8>| {
            if !std::mem::take(&mut is_first) {
                out.push(b',');
            }
        };
        match (field.kind, value) {
            (Kind::String | Kind::Bytes | Kind::Message(_), value) | (_, value @ Wire::Number(_)) => {
                comma(self.out);
                self.value(field, value, depth)
            }
            (_, Wire::Bytes(packed)) => {
                let mut rest = Fields(packed);
                while !rest.0.is_empty() {
                    let number = rest.varint()?;
                    comma(self.out);
                    self.value(field, Wire::Number(number), depth)?;
                }
                Ok(())
            }
        }
    }

    fn value(&mut self, field: &'static Field, value: Wire<'a>, depth: usize) -> Result<(), Malformed> {
        match (field.kind, value) {
            (Kind::Message(message), Wire::Bytes(bytes)) => return self.message(message, bytes, depth + 1),
            (Kind::Bytes, Wire::Bytes(bytes)) => base64_text(bytes, self.out),
            (Kind::String, Wire::Bytes(bytes)) => {
                text(std::str::from_utf8(bytes).map_err(|_| Malformed)?, self.texts, self.out);
            }
            (Kind::Bool, Wire::Number(number)) => {
                self.out.extend_from_slice(if number == 0 { b"false" } else { b"true" });
            }
            (Kind::Int32, Wire::Number(number)) => integer(i64::from(number as i32), self.out),
            (Kind::Uint32, Wire::Number(number)) => unsigned(number & 0xffff_ffff, self.out),
            (Kind::Int64, Wire::Number(number)) => {
                self.out.push(b'"');
                integer(number as i64, self.out);
                self.out.push(b'"');
            }
            (Kind::Uint64, Wire::Number(number)) => {
                self.out.push(b'"');
                unsigned(number, self.out);
                self.out.push(b'"');
            }
            (Kind::Enum(each), Wire::Number(number)) => {
                let number = number as i32;
                match each.values.iter().find(|(_, known)| *known == number) {
                    Some((name, _)) => text(name, self.texts, self.out),
                    None => integer(i64::from(number), self.out),
                }
            }
            _ => return Err(Malformed),
        }
        Ok(())
    }
}

fn base64_text(bytes: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    let start = out.len();
    let length = bytes.len().div_ceil(3) * 4;
    // Reserve some bytes in addition to the value, for what follows. Otherwise the buffer might have to grow
    // after a large value, which would double its memory.
    out.reserve(length + 64);
    out.resize(start + length, 0);
    let written = STANDARD.encode_slice(bytes, &mut out[start..]);
    assert_eq!(written, Ok(length), "the length of base64 is known");
    out.push(b'"');
}

fn integer(number: i64, out: &mut Vec<u8>) {
    if number < 0 {
        out.push(b'-');
    }
    unsigned(number.unsigned_abs(), out);
}

fn unsigned(mut number: u64, out: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[at..]);
}

/// Appends a string with its quotation marks.
pub(crate) fn text(text: &str, texts: Texts, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    out.push(b'"');
    for c in text.chars() {
        let short = match c {
            '"' => b'"',
            '\\' => b'\\',
            '\x08' => b'b',
            '\x0c' => b'f',
            '\n' => b'n',
            '\r' => b'r',
            '\t' => b't',
            c => {
                let code = u32::from(c);
                let is_for_html =
                    texts == Texts::ForHtml && matches!(c, '<' | '>' | '&' | '\u{2028}' | '\u{2029}');
                if code < 0x20 || is_for_html {
                    out.extend_from_slice(b"\\u");
                    for shift in [12, 8, 4, 0] {
                        out.push(HEX[(code >> shift & 15) as usize]);
                    }
                } else {
                    out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                }
                continue;
            }
        };
        out.extend_from_slice(&[b'\\', short]);
    }
    out.push(b'"');
}

/// Writes a message as JSON while its bytes arrive in chunks, so that a large response is not held in memory
/// as a whole. Of a message that contains messages, each field is written as soon as it is complete. The
/// fields must arrive in the order of the description, as they do in etcd's responses. Other messages, such
/// as a key with its value, are written when they are complete.
#[derive(Debug)]
pub struct RangeEncoder {
    /// Received bytes of a field that is not complete yet.
    pending: Vec<u8>,
    /// Messages that were begun and not ended yet. Each one is nested in the one before it.
    open: Vec<Open>,
}

/// A message whose JSON was begun and not ended yet.
#[derive(Debug)]
struct Open {
    message: &'static Message,
    /// Number of bytes of the message that were not processed yet.
    left: usize,
    /// Index of the field whose list was begun and not ended yet.
    list: Option<usize>,
    last: usize,
    is_first: bool,
}

impl RangeEncoder {
    /// Begins the JSON of a message. Appends its first bytes to `out`.
    pub fn new(message: &'static Message, out: &mut Vec<u8>) -> RangeEncoder {
        // The length of the outermost message is not known, so it ends only with `finish`.
        let open = vec![Open::begin(message, usize::MAX, out)];
        RangeEncoder { pending: Vec::new(), open }
    }

    /// Returns the number of bytes of memory that are held for a field that is not complete.
    pub fn held_bytes(&self) -> usize {
        self.pending.capacity()
    }

    /// Processes the next chunk of the message's bytes, and appends the JSON of the fields that are complete
    /// to `out`.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes are not a valid encoding of the message, or if the fields are not in
    /// order.
    pub fn push(&mut self, piece: &[u8], out: &mut Vec<u8>) -> Result<(), Malformed> {
        let mut pending = std::mem::take(&mut self.pending);
        pending.extend_from_slice(piece);
        let mut rest = &pending[..];
        while self.step(&mut rest, out)? {}
        let taken = pending.len() - rest.len();
        pending.drain(..taken);
        self.pending = pending;
        Ok(())
    }

    /// Writes the next field, or begins the next nested message. Returns false if more bytes are needed.
    fn step(&mut self, rest: &mut &[u8], out: &mut Vec<u8>) -> Result<bool, Malformed> {
        self.close_whole(out);
        let depth = self.open.len() - 1;
        let Some(top) = self.open.last_mut() else { return Err(Malformed) };
        if rest.is_empty() {
            return Ok(false);
        }
        let reach = &rest[..rest.len().min(top.left)];
        let mut fields = Fields(reach);
        if let (Ok(tag), Ok(length)) = (fields.varint(), fields.varint())
            && tag & 7 == 2
            && let Some((index, message)) = top.opened_by(tag >> 3)
        {
            let taken = reach.len() - fields.0.len();
            let length = usize::try_from(length).map_err(|_| Malformed)?;
            top.left = (top.left - taken).checked_sub(length).ok_or(Malformed)?;
            if depth == DEPTH_MAX {
                return Err(Malformed);
            }
            top.name(index, out)?;
            self.open.push(Open::begin(message, length, out));
            *rest = &rest[taken..];
            return Ok(true);
        }
        let mut fields = Fields(reach);
        match fields.next() {
            Ok(Some((number, value))) => {
                let taken = reach.len() - fields.0.len();
                top.left -= taken;
                top.field(number, value, depth, out)?;
                *rest = &rest[taken..];
                Ok(true)
            }
            // All bytes of the message have arrived, so the field cannot become complete.
            Err(Malformed) if reach.len() == top.left => Err(Malformed),
            // The field is incomplete or invalid. If it is invalid, `finish` returns the error, because bytes
            // are left.
            Ok(None) | Err(Malformed) => Ok(false),
        }
    }

    /// Ends the JSON of the nested messages whose bytes were all processed.
    fn close_whole(&mut self, out: &mut Vec<u8>) {
        while self.open.len() > 1
            && let Some(top) = self.open.pop_if(|top| top.left == 0)
        {
            top.end(out);
        }
    }

    /// Ends the JSON of the message, after its last chunk.
    ///
    /// # Errors
    ///
    /// Returns an error if the bytes end inside a field or a nested message.
    pub fn finish(mut self, out: &mut Vec<u8>) -> Result<(), Malformed> {
        self.close_whole(out);
        match self.open.pop() {
            Some(whole) if self.open.is_empty() && self.pending.is_empty() => {
                whole.end(out);
                Ok(())
            }
            _ => Err(Malformed),
        }
    }
}

impl Open {
    fn begin(message: &'static Message, left: usize, out: &mut Vec<u8>) -> Open {
        out.push(b'{');
        Open { message, left, list: None, last: 0, is_first: true }
    }

    fn end(self, out: &mut Vec<u8>) {
        if self.list.is_some() {
            out.push(b']');
        }
        out.push(b'}');
    }

    /// If the field with this number contains messages, and these contain messages themselves, returns the
    /// index of the field and the type of its messages. Such messages are written field by field.
    fn opened_by(&self, number: u64) -> Option<(usize, &'static Message)> {
        let index = self.message.fields.iter().position(|field| u64::from(field.number) == number)?;
        let Kind::Message(message) = self.message.fields[index].kind else { return None };
        let has_messages = message.fields.iter().any(|field| matches!(field.kind, Kind::Message(_)));
        has_messages.then_some((index, message))
    }

    /// Records that the next value belongs to the field with this index. Ends the list of the previous field
    /// if there is one. Returns an error if the field is not in order.
    fn reach(&mut self, index: usize, out: &mut Vec<u8>) -> Result<(), Malformed> {
        let is_again = index == self.last && !self.message.fields[index].repeated;
        if index < self.last || (is_again && self.list.is_none() && !self.is_first) {
            return Err(Malformed);
        }
        self.last = index;
        if self.list.is_some_and(|list| list != index) {
            out.push(b']');
            self.list = None;
        }
        Ok(())
    }

    /// Writes what precedes a value: the name of its field, or the comma after the previous element of its
    /// list.
    fn name(&mut self, index: usize, out: &mut Vec<u8>) -> Result<(), Malformed> {
        self.reach(index, out)?;
        let field = &self.message.fields[index];
        if field.repeated && !self.opens_list(index, out) {
            out.push(b',');
        }
        if !field.repeated {
            writer(out).name(field, &mut self.is_first);
        }
        Ok(())
    }

    /// Begins the list of a field. Returns false if the list was already begun.
    fn opens_list(&mut self, index: usize, out: &mut Vec<u8>) -> bool {
        let is_first = self.list.is_none();
        if is_first {
            writer(out).name(&self.message.fields[index], &mut self.is_first);
            out.push(b'[');
            self.list = Some(index);
        }
        is_first
    }

    fn field(
        &mut self,
        number: u32,
        value: Wire<'_>,
        depth: usize,
        out: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        let place = self.message.fields.iter().position(|field| field.number == number);
        let Some(index) = place else { return Ok(()) };
        let field = &self.message.fields[index];
        if field.repeated {
            self.reach(index, out)?;
            let is_first = self.opens_list(index, out);
            return writer(out).element(field, value, depth, is_first);
        }
        let is_zero = match value {
            Wire::Number(number) => number == 0,
            Wire::Bytes(bytes) => bytes.is_empty() && !matches!(field.kind, Kind::Message(_)),
        };
        if is_zero && field.oneof.is_none() {
            return self.reach(index, out);
        }
        self.name(index, out)?;
        writer(out).value(field, value, depth)
    }
}

fn writer<'a, 'b>(out: &'b mut Vec<u8>) -> Writer<'a, 'b> {
    Writer { out, texts: Texts::Plain, found: Vec::new() }
}

#[cfg(test)]
mod tests {
    use api::Rpc;
    use api::descriptor::of;
    use api::{etcdserverpb as pb, mvccpb};

    use super::*;

    fn json(rpc: Rpc, message: &impl prost::Message) -> String {
        let (mut out, bytes) = (Vec::new(), message.encode_to_vec());
        let shape = of(rpc).unwrap().1;
        encode(shape, &bytes, &mut out).unwrap();
        // Encoding in pieces gives the same result, however the bytes are split.
        for step in [1, 3, 1000] {
            let mut pieces = Vec::new();
            let mut encoder = RangeEncoder::new(shape, &mut pieces);
            bytes.chunks(step).for_each(|piece| encoder.push(piece, &mut pieces).unwrap());
            encoder.finish(&mut pieces).unwrap();
            assert_eq!(pieces, out);
        }
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn zero_values_are_left_out_and_integers_of_64_bits_are_texts() {
        let header = pb::ResponseHeader { cluster_id: u64::MAX, member_id: 1, revision: -2, raft_term: 0 };
        let kv =
            mvccpb::KeyValue { key: "a".into(), value: "\0\u{ff}".into(), version: 1, ..Default::default() };
        let range = pb::RangeResponse {
            header: Some(header),
            kvs: vec![kv.clone(), mvccpb::KeyValue::default()],
            more: true,
            count: 2,
        };
        assert_eq!(
            json(Rpc::KvRange, &range),
            "{\"header\":{\"cluster_id\":\"18446744073709551615\",\"member_id\":\"1\",\"revision\":\"-2\"},\
             \"kvs\":[{\"key\":\"YQ==\",\"version\":\"1\",\"value\":\"AMO/\"},{}],\"more\":true,\"count\":\"2\"}"
        );
        assert_eq!(json(Rpc::KvRange, &pb::RangeResponse::default()), "{}");
        let alarms = pb::AlarmResponse {
            header: None,
            alarms: vec![
                pb::AlarmMember { member_id: 3, alarm: 1 },
                pb::AlarmMember { member_id: 4, alarm: 9 },
            ],
        };
        assert_eq!(
            json(Rpc::MaintenanceAlarm, &alarms),
            "{\"alarms\":[{\"memberID\":\"3\",\"alarm\":\"NOSPACE\"},{\"memberID\":\"4\",\"alarm\":9}]}"
        );
        let users =
            pb::AuthUserListResponse { header: None, users: vec!["a\"\\\n\u{1}<é>".into(), String::new()] };
        assert_eq!(json(Rpc::AuthUserList, &users), "{\"users\":[\"a\\\"\\\\\\n\\u0001<é>\",\"\"]}");
    }

    #[test]
    fn oneofs_are_written_even_if_empty() {
        let txn = pb::TxnResponse {
            header: None,
            succeeded: true,
            responses: vec![pb::ResponseOp {
                response: Some(pb::response_op::Response::ResponseRange(pb::RangeResponse::default())),
            }],
        };
        assert_eq!(json(Rpc::KvTxn, &txn), "{\"succeeded\":true,\"responses\":[{\"response_range\":{}}]}");
    }

    /// Returns the response to a transaction of ranges, and of deletes with previous values, of this many
    /// values each.
    fn txn_of(values: usize, value_bytes: usize) -> pb::TxnResponse {
        let header = || Some(pb::ResponseHeader { revision: 7, ..Default::default() });
        let kv =
            mvccpb::KeyValue { key: "a".into(), value: vec![1; value_bytes].into(), ..Default::default() };
        let op = |response| pb::ResponseOp { response: Some(response) };
        let range = pb::RangeResponse {
            header: header(),
            kvs: vec![kv.clone(); values],
            more: true,
            count: values as i64,
        };
        let deleted = pb::DeleteRangeResponse {
            header: header(),
            deleted: values as i64,
            prev_kvs: vec![kv.clone(); values],
        };
        let put = pb::PutResponse { header: header(), prev_kv: Some(kv) };
        let inner = pb::TxnResponse {
            header: None,
            succeeded: true,
            responses: vec![op(pb::response_op::Response::ResponseRange(range.clone())), op_of_nothing()],
        };
        pb::TxnResponse {
            header: header(),
            succeeded: true,
            responses: vec![
                op(pb::response_op::Response::ResponseRange(range)),
                op(pb::response_op::Response::ResponseDeleteRange(deleted)),
                op(pb::response_op::Response::ResponsePut(put)),
                op(pb::response_op::Response::ResponseTxn(inner)),
            ],
        }
    }

    fn op_of_nothing() -> pb::ResponseOp {
        pb::ResponseOp { response: None }
    }

    #[test]
    fn answers_within_answers_are_written_as_they_come() {
        for (values, value_bytes) in [(0, 0), (1, 0), (3, 5), (2, 200)] {
            let txn = json(Rpc::KvTxn, &txn_of(values, value_bytes));
            assert!(
                txn.starts_with("{\"header\":{\"revision\":\"7\"},\"succeeded\":true,\"responses\":["),
                "{txn}"
            );
        }
        // At most one value is held, not the response of a whole operation.
        let bytes = prost::Message::encode_to_vec(&txn_of(100, 10_000));
        let (mut written, mut out) = (0, Vec::new());
        let mut encoder = RangeEncoder::new(of(Rpc::KvTxn).unwrap().1, &mut out);
        for (at, piece) in bytes.chunks(4096).enumerate() {
            encoder.push(piece, &mut out).unwrap();
            assert!(encoder.held_bytes() < 40_000, "{} at piece {at}", encoder.held_bytes());
            assert!(out.len() < 40_000, "{} at piece {at}", out.len());
            written += std::mem::take(&mut out).len();
        }
        encoder.finish(&mut out).unwrap();
        assert!(written > bytes.len());
    }

    #[test]
    fn a_field_that_is_longer_than_its_message_is_refused() {
        let shape = of(Rpc::KvTxn).unwrap().1;
        // The second response begins inside a message that has ended, or is longer than that message.
        for bytes in
            [&b"\x1a\x02\x0a\x05\x12\x03\x0a\x01a"[..], b"\x1a\x04\x0a\x02\x12\x03", b"\x1a\x03\x0a\x01\x18"]
        {
            assert_eq!(encode(shape, bytes, &mut Vec::new()), Err(Malformed), "{bytes:?}");
            for step in [1, 2, 100] {
                let mut out = Vec::new();
                let mut encoder = RangeEncoder::new(shape, &mut out);
                let pushed = bytes.chunks(step).try_for_each(|piece| encoder.push(piece, &mut out));
                let ended = pushed.and_then(|()| encoder.finish(&mut out));
                assert_eq!(ended, Err(Malformed), "{bytes:?} by {step}");
            }
        }
    }

    #[test]
    fn what_is_no_message_is_refused() {
        let shape = of(Rpc::KvRange).unwrap().1;
        for bytes in [&b"\x0a"[..], b"\x0a\x05ab", b"\xff", b"\x0d\0\0\0\0", b"\x08\x01"] {
            assert_eq!(encode(shape, bytes, &mut Vec::new()), Err(Malformed), "{bytes:?}");
        }
    }

    #[test]
    fn fields_out_of_order_are_put_in_order() {
        let shape = of(Rpc::KvRange).unwrap().1;
        let mut out = Vec::new();
        encode(shape, b"\x20\x02\x18\x01\x12\x00\x20\x03", &mut out).unwrap();
        assert_eq!(out, b"{\"kvs\":[{}],\"more\":true,\"count\":\"3\"}");
    }
}
