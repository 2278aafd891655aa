//! The file format: one JSON object on each line, with a field `is` that says what it is. Unknown fields are passed
//! over, absent ones have their zero. Keys and values are strings where they are UTF-8 that does not begin with `hex:`,
//! otherwise `hex:` and their bytes in hexadecimal.

use std::fmt;

use serde_json::{Map, Value, json};

use crate::{
    Action, ActionResult, Compare, Delete, DeleteResult, End, Event, Fence, Final, Header, History, Holding,
    KeyValue, Note, Operation, Order, Outcome, Put, Range, RangeResult, Refusal, Relation, Request, Response,
    Settings, SortTarget, Target, Txn, TxnResult, Watch, WatchAnswer, WatchResponse,
};

/// A line that is no part of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The line's number, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub text: String,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.text)
    }
}

impl std::error::Error for Malformed {}

impl History {
    /// The history as lines of JSON.
    pub fn to_lines(&self) -> String {
        let mut text = String::new();
        let mut line = |is: &str, value: Value| {
            let mut whole = Map::new();
            whole.insert("is".to_owned(), is.into());
            if let Value::Object(fields) = value {
                whole.extend(fields);
            }
            text.push_str(&Value::Object(whole).to_string());
            text.push('\n');
        };
        line("settings", self.settings.write());
        self.operations.iter().for_each(|operation| line("operation", operation.write()));
        self.watches.iter().for_each(|watch| line("watch", watch.write()));
        self.holdings.iter().for_each(|holding| line("holding", holding.write()));
        self.finals.iter().for_each(|last| line("final", last.write()));
        self.notes.iter().for_each(|note| line("note", note.write()));
        text
    }

    /// Reads what [`History::to_lines`] wrote; blank lines are passed over.
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
        let value: Value = serde_json::from_str(line).map_err(|e| e.to_string())?;
        let is: String = field(&value, "is")?;
        match is.as_str() {
            "settings" => self.settings = Settings::read(&value)?,
            "operation" => self.operations.push(Operation::read(&value)?),
            "watch" => self.watches.push(Watch::read(&value)?),
            "holding" => self.holdings.push(Holding::read(&value)?),
            "final" => self.finals.push(Final::read(&value)?),
            "note" => self.notes.push(Note::read(&value)?),
            _ => return Err(format!("there is no kind of line {is:?}")),
        }
        Ok(())
    }
}

/// Something that is a JSON value.
trait Json: Sized {
    fn write(&self) -> Value;
    fn read(value: &Value) -> Result<Self, String>;
    /// What stands for an absent field.
    fn absent() -> Option<Self> {
        None
    }
}

fn field<T: Json>(value: &Value, name: &str) -> Result<T, String> {
    match value.get(name) {
        Some(found) => T::read(found).map_err(|e| format!("{name}: {e}")),
        None => T::absent().ok_or_else(|| format!("{name} is missing")),
    }
}

/// The one field of an object that says which of several things it is.
fn tagged(value: &Value) -> Result<(&str, &Value), String> {
    match value.as_object().and_then(|o| o.iter().next().filter(|_| o.len() == 1)) {
        Some((tag, inner)) => Ok((tag, inner)),
        None => Err(format!("{value} is not an object with one field")),
    }
}

/// An object without the fields that have their zero, so that lines stay short.
fn object(fields: Vec<(&str, Value)>) -> Value {
    let zero = |value: &Value| match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(n) => n.as_u64() == Some(0),
        Value::String(s) => s.is_empty(),
        Value::Array(a) => a.is_empty(),
        _ => false,
    };
    let kept = fields.into_iter().filter(|(_, value)| !zero(value));
    Value::Object(kept.map(|(name, value)| (name.to_owned(), value)).collect())
}

macro_rules! number {
    ($($type:ty, $from:ident;)*) => {$(
        impl Json for $type {
            fn write(&self) -> Value {
                (*self).into()
            }
            fn read(value: &Value) -> Result<Self, String> {
                let number = value.$from().ok_or_else(|| format!("{value} is no number"))?;
                <$type>::try_from(number).map_err(|_| format!("{value} is too big"))
            }
            fn absent() -> Option<Self> {
                Some(0)
            }
        }
    )*};
}
number! { u64, as_u64; u32, as_u64; i64, as_i64; }

impl Json for bool {
    fn write(&self) -> Value {
        (*self).into()
    }
    fn read(value: &Value) -> Result<bool, String> {
        value.as_bool().ok_or_else(|| format!("{value} is neither true nor false"))
    }
    fn absent() -> Option<bool> {
        Some(false)
    }
}

impl Json for String {
    fn write(&self) -> Value {
        self.as_str().into()
    }
    fn read(value: &Value) -> Result<String, String> {
        value.as_str().map(str::to_owned).ok_or_else(|| format!("{value} is no string"))
    }
    fn absent() -> Option<String> {
        Some(String::new())
    }
}

/// Keys and values.
#[derive(Default)]
struct Blob(Vec<u8>);

const HEX: &str = "hex:";

impl Json for Blob {
    fn write(&self) -> Value {
        match std::str::from_utf8(&self.0) {
            Ok(text) if !text.starts_with(HEX) => text.into(),
            _ => {
                let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
                format!("{HEX}{digits}").into()
            }
        }
    }
    fn read(value: &Value) -> Result<Blob, String> {
        let text = value.as_str().ok_or_else(|| format!("{value} is no string"))?;
        let Some(digits) = text.strip_prefix(HEX) else { return Ok(Blob(text.as_bytes().to_vec())) };
        let byte = |pair: &[u8]| {
            let pair = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2)?;
            u8::from_str_radix(pair, 16).ok()
        };
        let bytes: Option<Vec<u8>> = digits.as_bytes().chunks(2).map(byte).collect();
        bytes.map(Blob).ok_or_else(|| format!("{value} is no hexadecimal"))
    }
    fn absent() -> Option<Blob> {
        Some(Blob::default())
    }
}

fn blob(bytes: &[u8]) -> Value {
    Blob(bytes.to_vec()).write()
}

fn bytes(value: &Value, name: &str) -> Result<Vec<u8>, String> {
    field::<Blob>(value, name).map(|blob| blob.0)
}

fn blobs(list: &[Vec<u8>]) -> Value {
    list.iter().map(|bytes| blob(bytes)).collect()
}

fn all_bytes(value: &Value, name: &str) -> Result<Vec<Vec<u8>>, String> {
    Ok(field::<Vec<Blob>>(value, name)?.into_iter().map(|blob| blob.0).collect())
}

impl<T: Json> Json for Vec<T> {
    fn write(&self) -> Value {
        self.iter().map(Json::write).collect()
    }
    fn read(value: &Value) -> Result<Vec<T>, String> {
        let list = value.as_array().ok_or_else(|| format!("{value} is no list"))?;
        list.iter().map(T::read).collect()
    }
    fn absent() -> Option<Vec<T>> {
        Some(Vec::new())
    }
}

impl<T: Json> Json for Option<T> {
    fn write(&self) -> Value {
        self.as_ref().map_or(Value::Null, Json::write)
    }
    fn read(value: &Value) -> Result<Option<T>, String> {
        if value.is_null() { Ok(None) } else { T::read(value).map(Some) }
    }
    fn absent() -> Option<Option<T>> {
        Some(None)
    }
}

impl Json for Settings {
    fn write(&self) -> Value {
        object(vec![
            ("lease_slack", self.lease_slack.into()),
            ("clock_drift_ppm", self.clock_drift_ppm.into()),
            ("unrecorded", blobs(&self.unrecorded)),
            ("search_steps_max", self.search_steps_max.into()),
        ])
    }
    fn read(value: &Value) -> Result<Settings, String> {
        Ok(Settings {
            lease_slack: field(value, "lease_slack")?,
            clock_drift_ppm: field(value, "clock_drift_ppm")?,
            unrecorded: all_bytes(value, "unrecorded")?,
            search_steps_max: field(value, "search_steps_max")?,
        })
    }
}

impl Json for Operation {
    fn write(&self) -> Value {
        object(vec![
            ("id", self.id.into()),
            ("client", self.client.into()),
            ("member", self.member.into()),
            ("life", self.life.into()),
            ("call", self.call.into()),
            ("returned", self.returned.into()),
            ("request", self.request.write()),
            ("outcome", self.outcome.write()),
            ("fence", self.fence.write()),
        ])
    }
    fn read(value: &Value) -> Result<Operation, String> {
        Ok(Operation {
            id: field(value, "id")?,
            client: field(value, "client")?,
            member: field(value, "member")?,
            life: field(value, "life")?,
            call: field(value, "call")?,
            returned: field(value, "returned")?,
            request: field(value, "request")?,
            outcome: field(value, "outcome")?,
            fence: field(value, "fence")?,
        })
    }
}

impl Json for Outcome {
    fn write(&self) -> Value {
        match self {
            Outcome::Done(header, response) => json!({ "done": object(vec![
                ("revision", header.revision.into()),
                ("term", header.term.into()),
                ("response", response.write()),
            ]) }),
            Outcome::Refused(refusal) => json!({ "refused": refusal.write() }),
            Outcome::Unknown(error) => json!({ "unknown": error }),
        }
    }
    fn read(value: &Value) -> Result<Outcome, String> {
        let (tag, inner) = tagged(value)?;
        match tag {
            "done" => {
                let header = Header { revision: field(inner, "revision")?, term: field(inner, "term")? };
                Ok(Outcome::Done(header, field(inner, "response")?))
            }
            "refused" => Refusal::read(inner).map(Outcome::Refused),
            "unknown" => String::read(inner).map(Outcome::Unknown),
            _ => Err(format!("there is no outcome {tag:?}")),
        }
    }
}

impl Json for Refusal {
    fn write(&self) -> Value {
        match self {
            Refusal::Compacted => "compacted".into(),
            Refusal::FutureRevision => "future revision".into(),
            Refusal::KeyNotFound => "key not found".into(),
            Refusal::LeaseNotFound => "lease not found".into(),
            Refusal::LeaseExists => "lease exists".into(),
            Refusal::Other(text) => json!({ "other": text }),
        }
    }
    fn read(value: &Value) -> Result<Refusal, String> {
        match value.as_str() {
            Some("compacted") => Ok(Refusal::Compacted),
            Some("future revision") => Ok(Refusal::FutureRevision),
            Some("key not found") => Ok(Refusal::KeyNotFound),
            Some("lease not found") => Ok(Refusal::LeaseNotFound),
            Some("lease exists") => Ok(Refusal::LeaseExists),
            Some(other) => Err(format!("there is no refusal {other:?}")),
            None => field(value, "other").map(Refusal::Other),
        }
    }
}

impl Json for Fence {
    fn write(&self) -> Value {
        object(vec![
            ("prefix", blob(&self.prefix)),
            ("key", blob(&self.key)),
            ("create_revision", self.create_revision.into()),
        ])
    }
    fn read(value: &Value) -> Result<Fence, String> {
        Ok(Fence {
            prefix: bytes(value, "prefix")?,
            key: bytes(value, "key")?,
            create_revision: field(value, "create_revision")?,
        })
    }
}

impl Json for Holding {
    fn write(&self) -> Value {
        object(vec![
            ("client", self.client.into()),
            ("fence", self.fence.write()),
            ("lease", self.lease.into()),
            ("from", self.from.into()),
            ("until", self.until.into()),
        ])
    }
    fn read(value: &Value) -> Result<Holding, String> {
        Ok(Holding {
            client: field(value, "client")?,
            fence: field(value, "fence")?,
            lease: field(value, "lease")?,
            from: field(value, "from")?,
            until: field(value, "until")?,
        })
    }
}

impl Json for Watch {
    fn write(&self) -> Value {
        object(vec![
            ("id", self.id.into()),
            ("client", self.client.into()),
            ("member", self.member.into()),
            ("life", self.life.into()),
            ("opened", self.opened.into()),
            ("key", blob(&self.key)),
            ("range_end", blob(&self.range_end)),
            ("start_revision", self.start_revision.into()),
            ("prev_kv", self.prev_kv.into()),
            ("no_put", self.no_put.into()),
            ("no_delete", self.no_delete.into()),
            ("fragment", self.fragment.into()),
            ("responses", self.responses.write()),
            ("end", self.end.write()),
        ])
    }
    fn read(value: &Value) -> Result<Watch, String> {
        Ok(Watch {
            id: field(value, "id")?,
            client: field(value, "client")?,
            member: field(value, "member")?,
            life: field(value, "life")?,
            opened: field(value, "opened")?,
            key: bytes(value, "key")?,
            range_end: bytes(value, "range_end")?,
            start_revision: field(value, "start_revision")?,
            prev_kv: field(value, "prev_kv")?,
            no_put: field(value, "no_put")?,
            no_delete: field(value, "no_delete")?,
            fragment: field(value, "fragment")?,
            responses: field(value, "responses")?,
            end: field(value, "end")?,
        })
    }
}

impl Json for WatchResponse {
    fn write(&self) -> Value {
        let answer = match &self.answer {
            WatchAnswer::Created => "created".into(),
            WatchAnswer::Progress => "progress".into(),
            WatchAnswer::Events { events, fragment } => json!({ "events": object(vec![
                ("list", events.write()),
                ("fragment", (*fragment).into()),
            ]) }),
            WatchAnswer::Canceled { compact_revision, reason } => json!({ "canceled": object(vec![
                ("compact_revision", (*compact_revision).into()),
                ("reason", reason.as_str().into()),
            ]) }),
        };
        object(vec![("at", self.at.into()), ("revision", self.revision.into()), ("answer", answer)])
    }
    fn read(value: &Value) -> Result<WatchResponse, String> {
        let answer = value.get("answer").ok_or("answer is missing")?;
        let answer = match answer.as_str() {
            Some("created") => WatchAnswer::Created,
            Some("progress") => WatchAnswer::Progress,
            _ => match tagged(answer)? {
                ("events", inner) => {
                    WatchAnswer::Events { events: field(inner, "list")?, fragment: field(inner, "fragment")? }
                }
                ("canceled", inner) => WatchAnswer::Canceled {
                    compact_revision: field(inner, "compact_revision")?,
                    reason: field(inner, "reason")?,
                },
                (tag, _) => return Err(format!("there is no answer {tag:?}")),
            },
        };
        Ok(WatchResponse { at: field(value, "at")?, revision: field(value, "revision")?, answer })
    }
}

impl Json for End {
    fn write(&self) -> Value {
        match self {
            End::Broken => "broken".into(),
            End::Canceled => "canceled".into(),
            End::Drained(revision) => json!({ "drained": revision }),
        }
    }
    fn read(value: &Value) -> Result<End, String> {
        match value.as_str() {
            Some("broken") => Ok(End::Broken),
            Some("canceled") => Ok(End::Canceled),
            Some(other) => Err(format!("there is no end {other:?}")),
            None => field(value, "drained").map(End::Drained),
        }
    }
}

impl Json for Final {
    fn write(&self) -> Value {
        let hash = self.hash.map(|(hash, revision, compact_revision)| {
            json!({ "hash": hash, "revision": revision, "compact_revision": compact_revision })
        });
        let mut value = object(vec![("member", self.member.into()), ("revision", self.revision.into())]);
        // An empty dump is not the same as none, so it is not left out.
        if let (Some(dump), Value::Object(fields)) = (&self.dump, &mut value) {
            fields.insert("dump".to_owned(), dump.write());
        }
        if let (Some(hash), Value::Object(fields)) = (hash, &mut value) {
            fields.insert("hash".to_owned(), hash);
        }
        value
    }
    fn read(value: &Value) -> Result<Final, String> {
        let hash = match value.get("hash") {
            None | Some(Value::Null) => None,
            Some(hash) => {
                Some((field(hash, "hash")?, field(hash, "revision")?, field(hash, "compact_revision")?))
            }
        };
        Ok(Final {
            member: field(value, "member")?,
            revision: field(value, "revision")?,
            dump: field(value, "dump")?,
            hash,
        })
    }
}

impl Json for Note {
    fn write(&self) -> Value {
        object(vec![("at", self.at.into()), ("text", self.text.as_str().into())])
    }
    fn read(value: &Value) -> Result<Note, String> {
        Ok(Note { at: field(value, "at")?, text: field(value, "text")? })
    }
}

impl Json for KeyValue {
    fn write(&self) -> Value {
        object(vec![
            ("key", blob(&self.key)),
            ("value", blob(&self.value)),
            ("create", self.create_revision.into()),
            ("mod", self.mod_revision.into()),
            ("version", self.version.into()),
            ("lease", self.lease.into()),
        ])
    }
    fn read(value: &Value) -> Result<KeyValue, String> {
        Ok(KeyValue {
            key: bytes(value, "key")?,
            value: bytes(value, "value")?,
            create_revision: field(value, "create")?,
            mod_revision: field(value, "mod")?,
            version: field(value, "version")?,
            lease: field(value, "lease")?,
        })
    }
}

impl Json for Event {
    fn write(&self) -> Value {
        object(vec![
            ("deleted", self.deleted.into()),
            ("kv", self.kv.write()),
            ("prev_kv", self.prev_kv.write()),
        ])
    }
    fn read(value: &Value) -> Result<Event, String> {
        Ok(Event {
            deleted: field(value, "deleted")?,
            kv: field(value, "kv")?,
            prev_kv: field(value, "prev_kv")?,
        })
    }
}

impl Json for Request {
    fn write(&self) -> Value {
        match self {
            Request::Range(range) => json!({ "range": range.write() }),
            Request::Put(put) => json!({ "put": put.write() }),
            Request::Delete(delete) => json!({ "delete": delete.write() }),
            Request::Txn(txn) => json!({ "txn": txn.write() }),
            Request::Compact { revision, physical } => json!({ "compact": object(vec![
                ("revision", (*revision).into()),
                ("physical", (*physical).into()),
            ]) }),
            Request::Grant { id, ttl } => {
                json!({ "grant": object(vec![("id", (*id).into()), ("ttl", (*ttl).into())]) })
            }
            Request::Revoke { id } => json!({ "revoke": id }),
            Request::KeepAlive { id } => json!({ "keepalive": id }),
            Request::TimeToLive { id, keys } => {
                json!({ "ttl": object(vec![("id", (*id).into()), ("keys", (*keys).into())]) })
            }
            Request::Leases => json!({ "leases": {} }),
        }
    }
    fn read(value: &Value) -> Result<Request, String> {
        let (tag, inner) = tagged(value)?;
        Ok(match tag {
            "range" => Request::Range(Range::read(inner)?),
            "put" => Request::Put(Put::read(inner)?),
            "delete" => Request::Delete(Delete::read(inner)?),
            "txn" => Request::Txn(Txn::read(inner)?),
            "compact" => {
                Request::Compact { revision: field(inner, "revision")?, physical: field(inner, "physical")? }
            }
            "grant" => Request::Grant { id: field(inner, "id")?, ttl: field(inner, "ttl")? },
            "revoke" => Request::Revoke { id: i64::read(inner)? },
            "keepalive" => Request::KeepAlive { id: i64::read(inner)? },
            "ttl" => Request::TimeToLive { id: field(inner, "id")?, keys: field(inner, "keys")? },
            "leases" => Request::Leases,
            _ => return Err(format!("there is no request {tag:?}")),
        })
    }
}

/// A word of a short list.
fn word<T: Copy>(value: &Value, name: &str, words: &[(&str, T)]) -> Result<T, String> {
    let found: String = field(value, name)?;
    let known = words.iter().find(|(word, _)| *word == found);
    known.map(|(_, meaning)| *meaning).ok_or_else(|| format!("{name} is {found:?}"))
}

fn spell<T: Copy + PartialEq>(meaning: T, words: &[(&'static str, T)]) -> Value {
    words.iter().find(|(_, known)| *known == meaning).map_or(Value::Null, |(word, _)| (*word).into())
}

const ORDERS: [(&str, Order); 3] =
    [("", Order::None), ("ascend", Order::Ascend), ("descend", Order::Descend)];
const SORT_TARGETS: [(&str, SortTarget); 5] = [
    ("", SortTarget::Key),
    ("version", SortTarget::Version),
    ("create", SortTarget::Create),
    ("mod", SortTarget::Mod),
    ("value", SortTarget::Value),
];
const RELATIONS: [(&str, Relation); 4] =
    [("=", Relation::Equal), (">", Relation::Greater), ("<", Relation::Less), ("!=", Relation::NotEqual)];

impl Json for Range {
    fn write(&self) -> Value {
        object(vec![
            ("key", blob(&self.key)),
            ("range_end", blob(&self.range_end)),
            ("limit", self.limit.into()),
            ("revision", self.revision.into()),
            ("order", spell(self.order, &ORDERS)),
            ("target", spell(self.target, &SORT_TARGETS)),
            ("serializable", self.serializable.into()),
            ("keys_only", self.keys_only.into()),
            ("count_only", self.count_only.into()),
            ("min_mod_revision", self.min_mod_revision.into()),
            ("max_mod_revision", self.max_mod_revision.into()),
            ("min_create_revision", self.min_create_revision.into()),
            ("max_create_revision", self.max_create_revision.into()),
        ])
    }
    fn read(value: &Value) -> Result<Range, String> {
        Ok(Range {
            key: bytes(value, "key")?,
            range_end: bytes(value, "range_end")?,
            limit: field(value, "limit")?,
            revision: field(value, "revision")?,
            order: word(value, "order", &ORDERS)?,
            target: word(value, "target", &SORT_TARGETS)?,
            serializable: field(value, "serializable")?,
            keys_only: field(value, "keys_only")?,
            count_only: field(value, "count_only")?,
            min_mod_revision: field(value, "min_mod_revision")?,
            max_mod_revision: field(value, "max_mod_revision")?,
            min_create_revision: field(value, "min_create_revision")?,
            max_create_revision: field(value, "max_create_revision")?,
        })
    }
}

impl Json for Put {
    fn write(&self) -> Value {
        object(vec![
            ("key", blob(&self.key)),
            ("value", blob(&self.value)),
            ("lease", self.lease.into()),
            ("prev_kv", self.prev_kv.into()),
            ("ignore_value", self.ignore_value.into()),
            ("ignore_lease", self.ignore_lease.into()),
        ])
    }
    fn read(value: &Value) -> Result<Put, String> {
        Ok(Put {
            key: bytes(value, "key")?,
            value: bytes(value, "value")?,
            lease: field(value, "lease")?,
            prev_kv: field(value, "prev_kv")?,
            ignore_value: field(value, "ignore_value")?,
            ignore_lease: field(value, "ignore_lease")?,
        })
    }
}

impl Json for Delete {
    fn write(&self) -> Value {
        object(vec![
            ("key", blob(&self.key)),
            ("range_end", blob(&self.range_end)),
            ("prev_kv", self.prev_kv.into()),
        ])
    }
    fn read(value: &Value) -> Result<Delete, String> {
        Ok(Delete {
            key: bytes(value, "key")?,
            range_end: bytes(value, "range_end")?,
            prev_kv: field(value, "prev_kv")?,
        })
    }
}

impl Json for Txn {
    fn write(&self) -> Value {
        object(vec![
            ("compare", self.compare.write()),
            ("success", self.success.write()),
            ("failure", self.failure.write()),
        ])
    }
    fn read(value: &Value) -> Result<Txn, String> {
        Ok(Txn {
            compare: field(value, "compare")?,
            success: field(value, "success")?,
            failure: field(value, "failure")?,
        })
    }
}

impl Json for Action {
    fn write(&self) -> Value {
        match self {
            Action::Range(range) => json!({ "range": range.write() }),
            Action::Put(put) => json!({ "put": put.write() }),
            Action::Delete(delete) => json!({ "delete": delete.write() }),
            Action::Txn(txn) => json!({ "txn": txn.write() }),
        }
    }
    fn read(value: &Value) -> Result<Action, String> {
        let (tag, inner) = tagged(value)?;
        match tag {
            "range" => Range::read(inner).map(Action::Range),
            "put" => Put::read(inner).map(Action::Put),
            "delete" => Delete::read(inner).map(Action::Delete),
            "txn" => Txn::read(inner).map(Action::Txn),
            _ => Err(format!("there is no action {tag:?}")),
        }
    }
}

impl Json for Compare {
    fn write(&self) -> Value {
        let (target, with) = match &self.target {
            Target::Version(n) => ("version", (*n).into()),
            Target::Create(n) => ("create", (*n).into()),
            Target::Mod(n) => ("mod", (*n).into()),
            Target::Value(value) => ("value", blob(value)),
            Target::Lease(n) => ("lease", (*n).into()),
        };
        object(vec![
            ("key", blob(&self.key)),
            ("range_end", blob(&self.range_end)),
            ("relation", spell(self.relation, &RELATIONS)),
            ("target", target.into()),
            ("with", with),
        ])
    }
    fn read(value: &Value) -> Result<Compare, String> {
        let target: String = field(value, "target")?;
        Ok(Compare {
            key: bytes(value, "key")?,
            range_end: bytes(value, "range_end")?,
            relation: word(value, "relation", &RELATIONS)?,
            target: match target.as_str() {
                "version" => Target::Version(field(value, "with")?),
                "create" => Target::Create(field(value, "with")?),
                "mod" => Target::Mod(field(value, "with")?),
                "value" => Target::Value(bytes(value, "with")?),
                "lease" => Target::Lease(field(value, "with")?),
                _ => return Err(format!("there is no target {target:?}")),
            },
        })
    }
}

impl Json for RangeResult {
    fn write(&self) -> Value {
        object(vec![("kvs", self.kvs.write()), ("more", self.more.into()), ("count", self.count.into())])
    }
    fn read(value: &Value) -> Result<RangeResult, String> {
        Ok(RangeResult {
            kvs: field(value, "kvs")?,
            more: field(value, "more")?,
            count: field(value, "count")?,
        })
    }
}

impl Json for DeleteResult {
    fn write(&self) -> Value {
        object(vec![("deleted", self.deleted.into()), ("prev_kvs", self.prev_kvs.write())])
    }
    fn read(value: &Value) -> Result<DeleteResult, String> {
        Ok(DeleteResult { deleted: field(value, "deleted")?, prev_kvs: field(value, "prev_kvs")? })
    }
}

impl Json for TxnResult {
    fn write(&self) -> Value {
        object(vec![("succeeded", self.succeeded.into()), ("results", self.results.write())])
    }
    fn read(value: &Value) -> Result<TxnResult, String> {
        Ok(TxnResult { succeeded: field(value, "succeeded")?, results: field(value, "results")? })
    }
}

fn previous(kv: &Option<KeyValue>) -> Value {
    object(vec![("prev_kv", kv.write())])
}

impl Json for ActionResult {
    fn write(&self) -> Value {
        match self {
            ActionResult::Range(range) => json!({ "range": range.write() }),
            ActionResult::Put(kv) => json!({ "put": previous(kv) }),
            ActionResult::Delete(delete) => json!({ "delete": delete.write() }),
            ActionResult::Txn(txn) => json!({ "txn": txn.write() }),
        }
    }
    fn read(value: &Value) -> Result<ActionResult, String> {
        let (tag, inner) = tagged(value)?;
        match tag {
            "range" => RangeResult::read(inner).map(ActionResult::Range),
            "put" => field(inner, "prev_kv").map(ActionResult::Put),
            "delete" => DeleteResult::read(inner).map(ActionResult::Delete),
            "txn" => TxnResult::read(inner).map(ActionResult::Txn),
            _ => Err(format!("there is no result {tag:?}")),
        }
    }
}

impl Json for Response {
    fn write(&self) -> Value {
        match self {
            Response::Range(range) => json!({ "range": range.write() }),
            Response::Put(kv) => json!({ "put": previous(kv) }),
            Response::Delete(delete) => json!({ "delete": delete.write() }),
            Response::Txn(txn) => json!({ "txn": txn.write() }),
            Response::Compacted => json!({ "compacted": {} }),
            Response::Granted { id, ttl } => {
                json!({ "granted": object(vec![("id", (*id).into()), ("ttl", (*ttl).into())]) })
            }
            Response::Revoked => json!({ "revoked": {} }),
            Response::Renewed { ttl } => json!({ "renewed": ttl }),
            Response::TimeToLive { ttl, granted_ttl, keys } => json!({ "ttl": object(vec![
                ("ttl", (*ttl).into()),
                ("granted_ttl", (*granted_ttl).into()),
                ("keys", blobs(keys)),
            ]) }),
            Response::Leases(ids) => json!({ "leases": ids }),
        }
    }
    fn read(value: &Value) -> Result<Response, String> {
        let (tag, inner) = tagged(value)?;
        Ok(match tag {
            "range" => Response::Range(RangeResult::read(inner)?),
            "put" => Response::Put(field(inner, "prev_kv")?),
            "delete" => Response::Delete(DeleteResult::read(inner)?),
            "txn" => Response::Txn(TxnResult::read(inner)?),
            "compacted" => Response::Compacted,
            "granted" => Response::Granted { id: field(inner, "id")?, ttl: field(inner, "ttl")? },
            "revoked" => Response::Revoked,
            "renewed" => Response::Renewed { ttl: i64::read(inner)? },
            "ttl" => Response::TimeToLive {
                ttl: field(inner, "ttl")?,
                granted_ttl: field(inner, "granted_ttl")?,
                keys: all_bytes(inner, "keys")?,
            },
            "leases" => Response::Leases(Vec::read(inner)?),
            _ => return Err(format!("there is no response {tag:?}")),
        })
    }
}
