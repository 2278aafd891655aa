//! Parses Mainstay's own page `/debug/mainstay`, which has details that do not fit into Prometheus' format.

use crate::evidence::Unseen;

use serde_json::Value;
use storage::formats::{Format, Formats};

/// The parsed page. A list is `None` if the page does not have it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// Version of the server.
    pub version: Option<String>,
    /// Commit from which the server was built, in hexadecimal.
    pub commit: Option<String>,
    /// Formats of files that the server reads and writes; `None` if it is of a release that does not tell them.
    pub formats: Option<Formats>,
    /// Id of the member in hexadecimal.
    pub member_id: Option<String>,
    /// Wall clock of the member when it generated the page, in nanoseconds since 1970.
    pub clock_unix_ns: Option<i64>,
    /// Uptime of the member in seconds.
    pub uptime_seconds: Option<f64>,
    /// Ranges that were expensive to read, with the clients that requested them.
    pub expensive_ranges: Option<Vec<ExpensiveRange>>,
    /// Unusually large values, with the clients that put them.
    pub large_values: Option<Vec<LargeValue>>,
    /// Use of the member by its clients, one entry for each address.
    pub clients: Option<Vec<ClientUse>>,
    /// Fsyncs of the log that took unusually long.
    pub fsync_stalls: Option<Vec<FsyncStall>>,
}

/// A range that was expensive to read, and its cost.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExpensiveRange {
    /// Address of the client.
    pub client: String,
    /// First key of the range, quoted.
    pub key: String,
    /// End of the range, quoted.
    pub range_end: String,
    /// Number of requests for this range.
    pub count: f64,
    /// Largest number of keys in one response for this range.
    pub keys_max: f64,
    /// Total size of the responses for this range, in bytes.
    pub bytes_total: f64,
    /// Longest duration of such a request, in seconds.
    pub seconds_max: f64,
    /// Time of the last request, in milliseconds since 1970.
    pub last_unix_ms: f64,
}

/// An unusually large value that a client put.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LargeValue {
    /// Address of the client.
    pub client: String,
    /// Key of the value, quoted.
    pub key: String,
    /// Size of the value in bytes.
    pub bytes: f64,
    /// Time of the last put, in milliseconds since 1970.
    pub last_unix_ms: f64,
}

/// Counts for the clients at one address: the connections, watches and leases that they have at a member, and
/// the requests that they have sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClientUse {
    /// Address of the clients.
    pub address: String,
    /// Number of open connections.
    pub connections: f64,
    /// Number of requests since the member started.
    pub requests: f64,
    /// Number of open watches.
    pub watches: f64,
    /// Number of open watches that lag behind the newest events.
    pub slow_watches: f64,
    /// Number of leases kept alive.
    pub leases: f64,
    /// Number of `Authenticate` calls since the member started.
    pub authentications: f64,
}

/// One stall of an fsync.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FsyncStall {
    /// Time of the stall, in milliseconds since 1970.
    pub unix_ms: f64,
    /// Duration of the stall in seconds.
    pub seconds: f64,
}

/// Maximum number of entries that are read from each list; further ones are ignored.
const ENTRIES_MAX: usize = 10_000;
/// Maximum length of a text, in characters; a longer text is truncated. A key can be as long as a request.
const TEXT_MAX: usize = 120;

impl Page {
    /// Parses the page.
    ///
    /// # Errors
    /// Returns an error if the text is not a JSON object.
    pub fn read(text: &[u8]) -> Result<Page, Unseen> {
        let value: Value = serde_json::from_slice(text).map_err(|error| format!("not JSON: {error}"))?;
        if !value.is_object() {
            return Err("not a JSON object".into());
        }
        Ok(Page {
            version: value.get("version").and_then(Value::as_str).map(shortened),
            commit: value.get("commit").and_then(Value::as_str).map(shortened),
            formats: value.get("formats").and_then(formats),
            member_id: value.get("member_id").and_then(Value::as_str).map(shortened),
            clock_unix_ns: value.get("clock_unix_ns").and_then(Value::as_i64),
            uptime_seconds: value.get("uptime_seconds").and_then(Value::as_f64),
            expensive_ranges: list(&value, "expensive_ranges", |entry| ExpensiveRange {
                client: text_of(entry, "client"),
                key: text_of(entry, "key"),
                range_end: text_of(entry, "range_end"),
                count: number_of(entry, "count"),
                keys_max: number_of(entry, "keys_max"),
                bytes_total: number_of(entry, "bytes_total"),
                seconds_max: number_of(entry, "seconds_max"),
                last_unix_ms: number_of(entry, "last_unix_ms"),
            }),
            large_values: list(&value, "large_values", |entry| LargeValue {
                client: text_of(entry, "client"),
                key: text_of(entry, "key"),
                bytes: number_of(entry, "bytes"),
                last_unix_ms: number_of(entry, "last_unix_ms"),
            }),
            clients: list(&value, "clients", |entry| ClientUse {
                address: text_of(entry, "address"),
                connections: number_of(entry, "connections"),
                requests: number_of(entry, "requests"),
                watches: number_of(entry, "watches"),
                slow_watches: number_of(entry, "slow_watches"),
                leases: number_of(entry, "leases"),
                authentications: number_of(entry, "authentications"),
            }),
            fsync_stalls: list(&value, "fsync_stalls", |entry| FsyncStall {
                unix_ms: number_of(entry, "unix_ms"),
                seconds: number_of(entry, "seconds"),
            }),
        })
    }

    /// Returns true if the page contains a list of this name.
    pub fn has(&self, list: &str) -> bool {
        match list {
            "expensive_ranges" => self.expensive_ranges.is_some(),
            "large_values" => self.large_values.is_some(),
            "clients" => self.clients.is_some(),
            "fsync_stalls" => self.fsync_stalls.is_some(),
            _ => false,
        }
    }
}

/// Reads the formats that a server tells; `None` if they are not complete.
fn formats(value: &Value) -> Option<Formats> {
    let format = |name: &str| {
        let format = value.get(name)?;
        let [first, last] = format.get("reads")?.as_array()?.as_slice() else { return None };
        Some(Format { reads: first.as_u64()?..=last.as_u64()?, writes: format.get("writes")?.as_u64()? })
    };
    Some(Formats { log: format("log")?, checkpoint: format("checkpoint")? })
}

fn list<T>(page: &Value, name: &str, entry: impl Fn(&Value) -> T) -> Option<Vec<T>> {
    let entries = page.get(name)?.as_array()?;
    Some(entries.iter().filter(|entry| entry.is_object()).take(ENTRIES_MAX).map(entry).collect())
}

fn text_of(entry: &Value, name: &str) -> String {
    entry.get(name).and_then(Value::as_str).map(shortened).unwrap_or_default()
}

/// Returns a text from a server in a form that is safe for a terminal: truncated, with control characters
/// replaced.
fn shortened(text: &str) -> String {
    let clean = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let mut short: String = text.chars().take(TEXT_MAX).map(clean).collect();
    if text.chars().nth(TEXT_MAX).is_some() {
        short.push('…');
    }
    short
}

fn number_of(entry: &Value, name: &str) -> f64 {
    entry.get(name).and_then(Value::as_f64).filter(|number| number.is_finite()).unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_read_and_what_is_absent_stays_so() {
        let page = Page::read(
            br#"{"version":"0.1.0","member_id":"ab","clock_unix_ns":1700000000123456789,"uptime_seconds":2.5,
                "clients":[{"address":"10.0.0.1","connections":2,"requests":7,"watches":1,"leases":0,"authentications":3}],
                "formats":{"log":{"reads":[1,2],"writes":2},"checkpoint":{"reads":[1,9],"writes":7}},"commit":"abc",
                "fsync_stalls":[{"unix_ms":5,"seconds":1.5},"x"]}"#,
        )
        .unwrap();
        assert_eq!(page.clock_unix_ns, Some(1_700_000_000_123_456_789));
        assert_eq!(page.clients.as_ref().map(|clients| clients[0].authentications), Some(3.0));
        assert_eq!(page.fsync_stalls, Some(vec![FsyncStall { unix_ms: 5.0, seconds: 1.5 }]));
        let formats = page.formats.clone().unwrap();
        assert_eq!((formats.log.writes, formats.checkpoint.reads, formats.checkpoint.writes), (2, 1..=9, 7));
        assert_eq!(page.commit.as_deref(), Some("abc"));
        assert!(page.has("clients") && !page.has("expensive_ranges") && !page.has("nonsense"));
    }

    #[test]
    fn hostile_pages_are_read_or_refused() {
        assert!(Page::read(b"").is_err());
        assert!(Page::read(b"[1]").is_err());
        assert!(Page::read(&[b'['; 100_000]).is_err());
        let odd = Page::read(
            "{\"version\":\"\u{1b}[2J\",\"clock_unix_ns\":1e300,\"clients\":{},\"large_values\":[{\"bytes\":\"x\",\"key\":5},null],\
             \"fsync_stalls\":[{\"seconds\":-1e308}]}"
                .as_bytes(),
        );
        // JSON does not allow the raw escape character, so the page is rejected.
        assert!(odd.is_err());
        let odd = Page::read(br#"{"version":"\u001b[2J","clock_unix_ns":1e300,"clients":{},"large_values":[{"bytes":"x","key":5},null]}"#)
            .unwrap();
        assert_eq!(odd.version.as_deref(), Some("\u{fffd}[2J"));
        assert_eq!((odd.clock_unix_ns, odd.clients), (None, None));
        for formats in [
            "1",
            "{\"log\":{}}",
            "{\"log\":{\"reads\":[1],\"writes\":2},\"checkpoint\":[]}",
            "{\"log\":{\"reads\":[-1,\"x\"]}}",
        ] {
            assert_eq!(Page::read(format!("{{\"formats\":{formats}}}").as_bytes()).unwrap().formats, None);
        }
        assert_eq!(odd.large_values, Some(vec![LargeValue::default()]));
        let long = format!(r#"{{"large_values":[{{"key":"{}"}}]}}"#, "k".repeat(5000));
        let key = Page::read(long.as_bytes()).unwrap().large_values.unwrap()[0].key.chars().count();
        assert_eq!(key, TEXT_MAX + 1);
    }
}
