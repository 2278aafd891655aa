//! What a line can be, and its parts.

use serde_json::{Value, json};

use super::value::{Json, all_bytes, blob, blobs, bytes, field, object, tagged};
use crate::{
    End, Fence, Final, Header, Holding, Note, Operation, Outcome, Refusal, Settings, Watch, WatchAnswer,
    WatchResponse,
};

impl Json for Settings {
    fn write(&self) -> Value {
        object(vec![
            ("lease_slack", self.lease_slack.into()),
            ("expire_by", self.expire_by.into()),
            ("clock_drift_ppm", self.clock_drift_ppm.into()),
            ("unrecorded", blobs(&self.unrecorded)),
            ("search_steps_max", self.search_steps_max.into()),
        ])
    }
    fn read(value: &Value) -> Result<Settings, String> {
        Ok(Settings {
            lease_slack: field(value, "lease_slack")?,
            expire_by: field(value, "expire_by")?,
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
