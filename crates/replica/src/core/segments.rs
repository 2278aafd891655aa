//! Tracks segments of the log that are deleted once no view can refer to them ([`Segments`]), and values that
//! are being moved out of other segments ([`Moves`]). `space.rs` decides which segments should be emptied.
//!
//! # Example: when segment 3 is deleted
//!
//! Views 7 and 9 are held: view 7 by a slow reader, view 9 as the published state. After a checkpoint, no
//! durable file needs anything in segment 3.
//!
//! ```text
//! delete_later(3)      recorded with view 9, the newest that may refer to a location in segment 3
//! release              the oldest held view is 7 <= 9: segment 3 stays
//! the reader drops 7
//! release              the oldest held view is 9 <= 9: it stays; 9 is the newest, so the result is `true`:
//!                      the caller publishes another view
//! view 10 published    it refers to nothing in segment 3
//! the shards drop 9
//! release              the oldest held view is 10 > 9: segment 3 is deleted
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Weak};

use mvcc::{Location, View};
use numbers::ChangeId;
use planted::Bug;
use storage::checkpointer::Order;

/// Maximum number of tracked views before dropped views are removed from the whole list, not only from its
/// front.
const VIEWS_MAX: usize = 4096;

/// Published views that are still held, and segments that no durable file needs. A segment is deleted once
/// all views are dropped that were published before the segment became unneeded.
#[derive(Default)]
pub(super) struct Segments {
    /// Published views with their numbers, in order of publication.
    views: VecDeque<(u64, Weak<View>)>,
    /// Number of the newest published view.
    published: u64,
    /// Segments to be deleted, each with the number of the newest view that may refer to a location in it.
    pending_delete: Vec<(u64, u32)>,
}

impl Segments {
    /// Registers a view that was published.
    pub fn published(&mut self, view: &Arc<View>) {
        self.published += 1;
        self.views.push_back((self.published, Arc::downgrade(view)));
        self.forget_gone();
        if self.views.len() > VIEWS_MAX {
            self.views.retain(|(_, view)| view.strong_count() > 0);
        }
    }

    fn forget_gone(&mut self) {
        while self.views.front().is_some_and(|(_, view)| view.strong_count() == 0) {
            self.views.pop_front();
        }
    }

    /// Returns the number of views that may still be held.
    pub fn open_views(&self) -> usize {
        self.views.len()
    }

    /// Records that no durable file needs this segment any more.
    pub fn delete_later(&mut self, segment: u32) {
        self.pending_delete.push((self.published, segment));
    }

    /// Returns true if this segment waits to be deleted.
    pub fn is_pending_delete(&self, segment: u32) -> bool {
        self.pending_delete.iter().any(|(_, pending_delete)| *pending_delete == segment)
    }

    /// Returns the number of segments that wait to be deleted.
    pub fn pending_delete(&self) -> usize {
        self.pending_delete.len()
    }

    /// Calls `delete` for the segments to which no held view can refer. Returns true if the newest view is
    /// the only one left that may refer to the remaining segments. In that case the caller should publish
    /// another view, so that the readers drop the newest one, and a later call can delete the segments.
    pub fn release(&mut self, mut delete: impl FnMut(u32)) -> bool {
        if self.pending_delete.is_empty() {
            return false;
        }
        self.forget_gone();
        let oldest = self.views.front().map_or(u64::MAX, |(number, _)| *number);
        self.pending_delete.retain(|(number, segment)| {
            let stays = oldest <= *number && !planted::is(Bug::SegmentDeletedUnderView);
            if !stays {
                delete(*segment);
            }
            stays
        });
        !self.pending_delete.is_empty() && oldest == self.published
    }
}

/// Values that are being moved to another segment, and the channel that is signaled when they have arrived.
#[derive(Default)]
pub(super) struct Moves {
    /// Old locations of the values that are being moved, by the change that wrote them.
    moving: HashMap<ChangeId, Location>,
    mover: Option<SyncSender<()>>,
    /// Number of orders to the checkpointer to move values that it has not reported to be done.
    ordered: usize,
    /// True if there was such an order since the member started.
    were_ordered: bool,
    /// True if values of the order could not be moved, for example because the disk was full.
    was_refused: bool,
}

impl Moves {
    /// Returns true if values are being moved.
    pub fn are_under_way(&self) -> bool {
        !self.moving.is_empty()
    }

    /// Records that the checkpointer was ordered to move values.
    pub fn ordered(&mut self) {
        self.ordered += 1;
        self.were_ordered = true;
    }

    /// Records that values could not be moved.
    pub fn refused(&mut self) {
        self.was_refused = true;
    }

    /// Records that the checkpointer has done so. Returns false if some of the values could not be moved.
    pub fn done(&mut self) -> bool {
        self.ordered = self.ordered.saturating_sub(1);
        !std::mem::take(&mut self.was_refused)
    }

    /// Returns true if the checkpointer was ordered to move values and is not done.
    pub fn are_ordered(&self) -> bool {
        self.ordered > 0
    }

    /// Returns true if the checkpointer was ordered to move values since the member started.
    pub fn were_ordered(&self) -> bool {
        self.were_ordered
    }

    /// Adds values that are being moved. `mover` is signaled when all of them have arrived.
    pub fn begin(&mut self, moving: Vec<(ChangeId, Location)>, mover: SyncSender<()>) {
        self.moving.extend(moving);
        self.mover = Some(mover);
    }

    /// Records that a value has a new location. Returns its old location if the value was being moved.
    pub fn arrived(&mut self, key: ChangeId) -> Option<Location> {
        self.moving.remove(&key)
    }

    /// Signals the checkpointer, which moves the values, if all values have arrived.
    pub fn tell(&mut self) {
        if self.moving.is_empty()
            && let Some(mover) = self.mover.take()
        {
            // An error is ignored: it means that the checkpointer no longer waits for the signal.
            let _ = mover.try_send(());
        }
    }

    /// Orders the checkpointer to stop. Does not wait for space in the queue of orders, because the
    /// checkpointer may be waiting for values that will not arrive any more. If the queue is full, the
    /// checkpointer stops when the core drops its end of the queue.
    pub fn end(&mut self, orders: &SyncSender<Order>) {
        *self = Moves { were_ordered: self.were_ordered, ..Moves::default() };
        let _ = orders.try_send(Order::Stop);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use mvcc::Store;
    use numbers::Revision;

    use super::*;

    #[test]
    fn a_segment_goes_with_the_last_view_from_before() {
        let mut store = Store::new();
        let mut segments = Segments::default();
        let first = store.publish();
        segments.published(&first);
        segments.delete_later(3);
        let mut deleted = Vec::new();
        assert!(segments.is_pending_delete(3) && !segments.is_pending_delete(4));
        assert!(segments.release(|segment| deleted.push(segment)), "only the newest view holds it");
        let second = store.publish();
        segments.published(&second);
        assert!(!segments.release(|segment| deleted.push(segment)) && deleted.is_empty(), "it is read");
        drop(first);
        assert!(!segments.release(|segment| deleted.push(segment)));
        assert_eq!((deleted, segments.pending_delete(), segments.open_views()), (vec![3], 0, 1));
    }

    #[test]
    fn the_core_ends_though_the_checkpointer_waits_for_it_with_a_full_queue() {
        let (mover, hears) = mpsc::sync_channel(1);
        let (orders, queue) = mpsc::sync_channel(1);
        orders.send(Order::Reserve { is_short: false, queued: Arc::new(()) }).expect("there is room");
        let mut moves = Moves::default();
        moves.begin(vec![(ChangeId::first_of(Revision(1)), Location::new(1, 0))], mover);
        let (ended, core_ended) = mpsc::channel();
        let core = std::thread::spawn(move || {
            moves.end(&orders);
            drop(orders);
            ended.send(()).expect("the test waits");
        });
        // The queue of orders is full, as the checkpointer's queue can be: the checkpointer takes no order
        // while it moves values.
        assert!(hears.recv().is_err(), "they do not arrive");
        core_ended.recv().expect("it has ended");
        core.join().expect("did not panic");
        assert_eq!(queue.iter().count(), 1);
    }

    #[test]
    fn the_mover_hears_once_all_have_arrived() {
        let (mover, hears) = mpsc::sync_channel(1);
        let mut moves = Moves::default();
        let place = |offset| Location::new(1, offset);
        let change = |main| ChangeId::first_of(Revision(main));
        moves.begin(vec![(change(1), place(1)), (change(2), place(2))], mover);
        assert_eq!(moves.arrived(change(1)), Some(place(1)));
        assert_eq!(moves.arrived(change(9)), None);
        moves.tell();
        assert!(moves.are_under_way() && hears.try_recv().is_err());
        assert_eq!(moves.arrived(change(2)), Some(place(2)));
        moves.tell();
        assert!(!moves.are_under_way() && hears.try_recv().is_ok());
    }
}
