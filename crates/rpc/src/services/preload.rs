//! Loads blocks of the index on the reader threads before a call reads or writes their keys, so that neither this
//! thread nor the core waits for the disk (`--memory-budget`).

use std::rc::Rc;

use api::etcdserverpb::{TxnRequest, request_op};
use bytes::Bytes;
use front::LocalBoxFuture;
use mvcc::{AbsentBlock, KeyRange};

use super::Services;

/// Maximum number of blocks that are loaded together for one call.
const BLOCKS_AT_ONCE: usize = 8;
/// Maximum number of times that a call looks for absent blocks. After that it reads what is absent itself:
/// blocks may be evicted as fast as they are loaded.
const ROUNDS_MAX: u32 = 3;
/// Maximum number of ranges of a transaction whose blocks are loaded in advance.
const RANGES_MAX: usize = 64;

/// A range as a request names it: `key` and `range_end`.
pub(super) type NamedRange = (Bytes, Bytes);

impl Services {
    /// Returns a future that loads the blocks that reads or writes of these ranges need, as far as they are
    /// few; `None` if they are in memory. A failure is a fault of the index, which later reads and the core
    /// report.
    pub(super) fn preload(
        self: &Rc<Services>,
        ranges: impl FnOnce() -> Vec<NamedRange>,
    ) -> Option<LocalBoxFuture<()>> {
        self.shared.data.index_cache()?;
        let ranges = ranges();
        let mut absent = self.absent(&ranges);
        if absent.is_empty() {
            return None;
        }
        let services = Rc::clone(self);
        Some(Box::pin(async move {
            for _ in 0..ROUNDS_MAX {
                services.shared.data.readers.load(absent).await;
                // Only now it may be known which block follows a range.
                absent = services.absent(&ranges);
                if absent.is_empty() {
                    break;
                }
            }
            if services.shared.data.index_cache().is_some_and(|cache| cache.is_over()) {
                // The core evicts some.
                services.shared.core.inbox.wake_receiver();
            }
        }))
    }

    /// Returns some blocks that reads of these ranges at the newest state would have to load: those with the
    /// first keys of a range, and the one with its end, which is needed to count its keys. A range with many
    /// keys may have more absent blocks.
    fn absent(&self, ranges: &[NamedRange]) -> Vec<AbsentBlock> {
        let state = self.shared.state.load();
        let snapshot = state.view.snapshot();
        let mut blocks = Vec::new();
        for (key, range_end) in ranges.iter().take(RANGES_MAX) {
            let range = KeyRange::of_request(key, range_end);
            blocks.extend(snapshot.absent(range, BLOCKS_AT_ONCE.saturating_sub(blocks.len())));
            if let Some(end) = range.end().filter(|_| !range.is_empty()) {
                blocks.extend(snapshot.absent(KeyRange::single(end), 1));
            }
            if blocks.len() >= BLOCKS_AT_ONCE {
                break;
            }
        }
        blocks
    }
}

/// Returns the ranges that a transaction compares, reads and writes, without those of nested transactions.
pub(super) fn ranges_of(request: &TxnRequest) -> Vec<NamedRange> {
    let compared = request.compare.iter().map(|compare| (compare.key.clone(), compare.range_end.clone()));
    let operations = request.success.iter().chain(&request.failure);
    let written = operations.filter_map(|operation| match operation.request.as_ref()? {
        request_op::Request::RequestRange(range) => Some((range.key.clone(), range.range_end.clone())),
        request_op::Request::RequestPut(put) => Some((put.key.clone(), Bytes::new())),
        request_op::Request::RequestDeleteRange(range) => Some((range.key.clone(), range.range_end.clone())),
        request_op::Request::RequestTxn(_) => None,
    });
    compared.chain(written).take(RANGES_MAX).collect()
}
