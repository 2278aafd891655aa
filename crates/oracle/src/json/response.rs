//! Answers, and keys as they and events show them.

use serde_json::{Value, json};

use super::value::{Json, all_bytes, blob, blobs, bytes, field, object, tagged};
use crate::{ActionResult, DeleteResult, Event, KeyValue, RangeResult, Response, TxnResult};

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
