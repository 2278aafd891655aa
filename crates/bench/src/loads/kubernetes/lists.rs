//! The first lists of the API servers: every resource, by RangeStream, or in pages if the server has none.

use std::time::Instant;

use api::Rpc;

use crate::Error;
use crate::loadgen::calls::Calls;
use crate::loadgen::drive::outcome;
use crate::loadgen::status::Status;
use crate::loadgen::wire::{Fields, Message};
use crate::loads::range::prefix_end;

use super::fleet::Fleet;
use super::known::Listing;
use super::measured::Listed;
use super::state::{LIST, State};
use super::{PREFIXES, Resource};

/// gRPC status code of a method that the server does not have.
const UNIMPLEMENTED: u32 = 12;

impl Fleet {
    /// Lists all resources for each API server, all at the same time.
    pub(super) fn list(&mut self) -> Result<(), Error> {
        let servers = self.state.cluster.api_servers;
        self.state.listed = Listed { revisions: vec![0; servers * PREFIXES.len()], ..Listed::default() };
        self.state.lists.clear();
        let began = Instant::now();
        for server in 0..servers {
            for resource in 0..PREFIXES.len() {
                let number = (server * PREFIXES.len() + resource) as u64;
                if resource == Resource::Events as usize && !self.state.cluster.watches_events {
                    continue;
                }
                self.state.lists.insert(number, Listing::default());
                self.state.request_list(&mut self.calls, number);
            }
        }
        self.turn_until(|state| state.lists.values().all(|list| list.is_done))?;
        let state = &mut self.state;
        for (number, list) in &state.lists {
            if let Some(revision) = state.listed.revisions.get_mut(*number as usize) {
                *revision = list.revision;
            }
        }
        state.listed.took = began.elapsed();
        state.listed.is_streamed = !state.is_unimplemented;
        Ok(())
    }
}

impl State {
    fn request_list(&mut self, calls: &mut Calls, number: u64) {
        let prefix = PREFIXES[number as usize % PREFIXES.len()].as_bytes();
        let server = number as usize / PREFIXES.len();
        let (streams, page_keys) = (!self.is_unimplemented, self.cluster.page_keys);
        let Some(list) = self.lists.get_mut(&number) else { return };
        list.is_streamed = streams;
        let mut message = Vec::new();
        let key = if list.next.is_empty() { prefix } else { &list.next };
        let mut request = Message(&mut message);
        request.bytes(1, key).bytes(2, &prefix_end(prefix));
        if !streams {
            request.uint(3, page_keys).int(4, list.revision);
        }
        list.next.clear();
        let method = if streams { Rpc::KvRangeStream } else { Rpc::KvRange };
        calls.call(server, method, &message, LIST | number, true);
    }

    pub(super) fn list_message(&mut self, number: u64, body: &[u8]) {
        let Some(list) = self.lists.get_mut(&number) else { return };
        let range = Fields(if list.is_streamed { Fields(body).bytes(1) } else { body });
        list.revision = list.revision.max(Fields(range.bytes(1)).number(3) as i64);
        self.listed.bytes += body.len() as u64;
        let mut last: &[u8] = &[];
        for (field, content) in range {
            if field == 2 {
                last = content.bytes();
                self.listed.keys += 1;
            }
        }
        if !list.is_streamed && range.number(3) != 0 && !last.is_empty() {
            list.next.extend_from_slice(Fields(last).bytes(1));
            list.next.push(0);
        }
    }

    pub(super) fn list_ended(&mut self, calls: &mut Calls, number: u64, status: &Status) {
        let Some(list) = self.lists.get_mut(&number) else { return };
        if status.code == UNIMPLEMENTED && list.is_streamed {
            self.is_unimplemented = true;
            self.request_list(calls, number);
        } else if let Err(error) = outcome(status) {
            self.failed = Some(error.into());
        } else if list.next.is_empty() {
            list.is_done = true;
        } else {
            self.request_list(calls, number);
        }
    }
}
