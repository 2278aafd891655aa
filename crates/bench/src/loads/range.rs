//! Defines the load of `range`. Each operation is a single request, a streamed response, or several requests
//! for the pages of a range.

use crate::loadgen::drive::{Request, Step, Workload, done, outcome};
use crate::loadgen::status::Status;
use crate::loadgen::wire::{Fields, Message};
use api::Rpc;

/// Number of keys on a page. It is the page size of Kubernetes' watch cache.
pub const PAGE: i64 = 10_000;

/// A workload that reads a range.
#[derive(Clone, Debug, Default)]
pub struct Range {
    /// First key of the range.
    pub key: Vec<u8>,
    /// End of the range. Empty to read only `key`; `\0` to read all keys from `key` on.
    pub end: Vec<u8>,
    /// Largest number of keys; 0 for no limit.
    pub limit: i64,
    /// True to read only the number of keys.
    pub count_only: bool,
    /// True to read keys without values.
    pub keys_only: bool,
    /// True for serializable reads, which return the local state of the contacted member.
    pub serializable: bool,
    /// True to call `RangeStream` instead of `Range`.
    pub stream: bool,
    /// True to read the range in pages of [`PAGE`] keys, all at one revision.
    pub paginate: bool,
}

/// Returns the end of the range of all keys with a prefix.
pub fn prefix_end(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0]
}

impl Range {
    /// Changes the range to all keys with this prefix.
    pub fn prefix(&mut self, prefix: &[u8]) {
        self.end = prefix_end(prefix);
        self.key = if prefix.is_empty() { vec![0] } else { prefix.to_vec() };
    }

    fn write(&self, page: &Page, out: &mut Vec<u8>) {
        let key = if page.next.is_empty() { &self.key } else { &page.next };
        Message(out)
            .bytes(1, key)
            .bytes(2, &self.end)
            .int(3, if self.paginate { PAGE } else { self.limit })
            .int(4, page.revision)
            .flag(7, self.serializable)
            .flag(8, self.keys_only)
            .flag(9, self.count_only);
    }
}

/// State of a client that reads a range in pages.
#[derive(Debug, Default)]
pub struct Page {
    next: Vec<u8>,
    revision: i64,
    more: bool,
}

impl Workload for Range {
    type Client = Page;

    fn begin(&mut self, page: &mut Page, _: u64, request: &mut Request) -> Step {
        *page = Page::default();
        request.method = if self.stream { Rpc::KvRangeStream } else { Rpc::KvRange };
        request.keep = self.paginate && !self.stream;
        self.write(page, &mut request.message);
        Step::Call
    }

    fn message(&mut self, page: &mut Page, body: &[u8]) -> bool {
        if !self.paginate || self.stream {
            return false;
        }
        let answer = Fields(body);
        if page.revision == 0 {
            page.revision = Fields(answer.bytes(1)).number(3) as i64;
        }
        page.more = answer.number(3) != 0;
        page.next.clear();
        match answer.last(2) {
            Some(last) => {
                page.next.extend_from_slice(Fields(last.bytes()).bytes(1));
                page.next.push(0);
            }
            None => page.more = false,
        }
        false
    }

    fn answered(&mut self, page: &mut Page, status: &Status, request: &mut Request) -> Step {
        if status.code != 0 || !self.paginate || !page.more {
            return Step::Done(0, outcome(status));
        }
        page.more = false;
        request.method = Rpc::KvRange;
        request.keep = true;
        self.write(page, &mut request.message);
        Step::Call
    }
}

/// A workload that repeats one unary request and ignores the responses. It runs in the background of the
/// measured load.
#[derive(Clone, Debug)]
pub struct Same {
    /// RPC to call.
    pub method: Rpc,
    /// Encoded request message.
    pub message: Vec<u8>,
}

impl Workload for Same {
    type Client = ();

    fn begin(&mut self, _: &mut (), _: u64, request: &mut Request) -> Step {
        request.method = self.method;
        request.message.extend_from_slice(&self.message);
        Step::Call
    }

    fn answered(&mut self, _: &mut (), status: &Status, _: &mut Request) -> Step {
        done(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_of_prefixes() {
        assert_eq!(prefix_end(b"foo"), b"fop");
        assert_eq!(prefix_end(b"a\xff"), b"b");
        assert_eq!(prefix_end(b"\xff\xff"), [0]);
        assert_eq!(prefix_end(b""), [0]);
    }
}
