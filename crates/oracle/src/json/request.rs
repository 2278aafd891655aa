//! Requests.

use serde_json::{Value, json};

use super::value::{Json, blob, bytes, field, object, tagged};
use crate::{Action, Compare, Delete, Order, Put, Range, Relation, Request, SortTarget, Target, Txn};

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
