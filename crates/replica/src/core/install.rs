//! Installs the whole state of another member, which replaces this member's state.
//!
//! A follower that needs entries which the leader's log no longer has gets a snapshot. A separate thread
//! receives the snapshot while the core serves requests: values are written to this member's log as they
//! arrive, and a second state is built beside the current one. Once raft has accepted the snapshot, the new
//! state replaces the current one atomically. From then on nothing is written to the log until a checkpoint
//! of the new state is durable. Then the log restarts at the entry after the snapshot, and only then is the
//! snapshot acknowledged. So after a crash the member has either the whole old state or, if the checkpoint
//! was durable, the whole new state.
//!
//! The acknowledgement to the leader is a raft message. A sender that runs etcd also gets a response to its
//! HTTP request, or an error response if the first checkpoint fails. Until that response arrives, such a
//! sender keeps the log entries after the snapshot.

use std::any::Any;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use api::{Status, error};
use consensus::Append;
use log::{Location, Reset, ValueId};
use machine::Machine;
use numbers::Index;
use planted::Bug;
use tokio::sync::oneshot;

use super::{Forget, RequestId, Shortage};
use crate::received::{Outcome, ReceivedState};

/// Time for which the received part of a state is kept after the stream of the transfer broke off.
const RESUME_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause before a failed checkpoint of an installed state is tried again.
const SAVE_PAUSE: Duration = Duration::from_secs(1);
/// Time limit for the offer of another state, which waits until the installed state is saved. Offers are not
/// refused immediately, because after a refusal a leader that runs etcd builds its whole snapshot again at
/// the next heartbeat.
const OFFER_PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of waiting offers; further ones are refused.
const OFFERS_MAX: usize = 4;
/// Maximum number of states, complete or partial, that may wait for the checkpointer to drop them when the
/// receipt of another state begins. With more of them, the receipt is refused, so that replaced states do not
/// fill the memory.
const DISCARDED_MAX: usize = 2;

#[derive(Default)]
enum Stage {
    /// No state is being received.
    #[default]
    Idle,
    /// A snapshot is being received; `claim` is the number of this attempt. `until` is `None` while the
    /// stream is open. After the stream broke off, the part received so far is kept until that time.
    Receiving { claim: u64, until: Option<Instant> },
    /// The new state has replaced the old one, and a checkpoint of the new state has to be ordered.
    Installed(Reset),
    /// The checkpoint of the installed state is being written.
    Saving(Reset),
}

/// Locations of values in the log.
type Places = Vec<(ValueId, Location)>;

/// Sender that reports the locations of values to the receiving thread once they are written to the log.
type Placed = oneshot::Sender<Result<Places, Shortage>>;

/// Values being written to the log: the log's number of their batch, the locations known so far, and the
/// sender that reports the locations.
type Placing = (u64, Places, Placed);

/// Tracks the progress of installing another member's state. Decides which batches for the log have to wait
/// until the installed state is saved, and which objects can be dropped. Returns the received state once raft
/// has accepted it.
#[derive(Default)]
pub(super) struct Install {
    stage: Stage,
    /// The received state, until raft accepts or ignores it.
    received: Option<Box<ReceivedState>>,
    /// Sender that reports the outcome of the received state to the receiving thread.
    told: Option<oneshot::Sender<Outcome>>,
    /// Time before which no checkpoint of the installed state is ordered, because the last one failed; `None`
    /// if none has failed.
    save_at: Option<Instant>,
    /// Offers of other states that wait until the installed state is saved, with the time until which each
    /// waits.
    offers: Vec<(RequestId, Instant)>,
    /// Batches for the log that wait until the checkpoint of the installed state is durable.
    held: Vec<Append>,
    placing: Option<Placing>,
    /// Closure that drops the part of a state that was received before the stream broke off; `None` if no
    /// such part is kept.
    kept: Option<Forget>,
    /// Objects that are to be dropped and have not been given to the checkpointer yet.
    discarded: VecDeque<Discarded>,
}

/// An object whose drop takes long.
pub(super) type Droppable = Box<dyn Any + Send>;

/// An object whose drop takes long. The checkpointer's thread drops it, so that the core does not wait.
enum Discarded {
    /// A replaced state. The thread that drops the last view of a state frees the state, which takes long. So
    /// the state is given to the checkpointer only when no other thread holds a view of it.
    State(Box<Machine>),
    /// A part of a state that no thread reads.
    Part(Box<dyn Any + Send>),
}

impl Discarded {
    fn is_ready(&self) -> bool {
        match self {
            Discarded::State(machine) => !machine.store.is_viewed(),
            Discarded::Part(_) => true,
        }
    }
}

impl Install {
    pub fn is_receiving(&self) -> bool {
        matches!(self.stage, Stage::Receiving { .. })
    }

    /// Returns true if a snapshot is being received over an open stream, or a received state is being
    /// installed.
    pub fn is_under_way(&self) -> bool {
        !matches!(self.stage, Stage::Idle | Stage::Receiving { until: Some(_), .. })
    }

    pub fn is_busy(&self) -> bool {
        !matches!(self.stage, Stage::Idle)
    }

    /// Returns true if a state is installed and no checkpoint of it is durable or being written.
    pub fn is_unsaved(&self) -> bool {
        matches!(self.stage, Stage::Installed(_))
    }

    /// Returns true if a checkpoint of the installed state should be ordered now. After a failed checkpoint
    /// this is false for [`SAVE_PAUSE`].
    pub fn wants_checkpoint(&self, now: Instant) -> bool {
        self.is_unsaved() && self.save_at.is_none_or(|at| now >= at)
    }

    /// Makes the offer of another state wait while the installed state is being saved. Returns false if the
    /// offer cannot wait.
    pub fn hold_offer(&mut self, request_id: RequestId, now: Instant) -> bool {
        let waits = self.is_being_saved() && self.offers.len() < OFFERS_MAX;
        if waits {
            self.offers.push((request_id, now + OFFER_PATIENCE));
        }
        waits
    }

    /// Removes and returns the offers whose time limit has passed or, once the installed state is saved, all
    /// offers.
    pub fn offers_over(&mut self, now: Instant) -> Vec<RequestId> {
        let waits = self.is_being_saved();
        self.offers.extract_if(.., |(_, until)| !waits || now >= *until).map(|(id, _)| id).collect()
    }

    /// Removes and returns all waiting offers.
    pub fn take_offers(&mut self) -> Vec<RequestId> {
        self.offers.drain(..).map(|(id, _)| id).collect()
    }

    fn is_being_saved(&self) -> bool {
        matches!(self.stage, Stage::Installed(_) | Stage::Saving(_))
    }

    /// Keeps the batch `append` and returns `None` if the batch has to wait for the checkpoint of the
    /// installed state. Otherwise returns the batch.
    pub fn hold(&mut self, append: Append) -> Option<Append> {
        if !self.is_being_saved() {
            return Some(append);
        }
        self.held.push(append);
        None
    }

    /// Ends the attempt in progress. The received state or part is given to the checkpointer to be dropped.
    /// Does nothing if a received state is already installed.
    pub fn give_up(&mut self) {
        if let Stage::Receiving { .. } = self.stage {
            self.stage = Stage::Idle;
            if let Some(received) = self.received.take() {
                self.discard(received.machine);
            }
            self.tell(Outcome::NotWanted);
            self.placing = None;
            self.forget_part();
        }
    }

    /// Reports the outcome of the received state to the thread that received it, unless an outcome was
    /// already reported.
    pub fn tell(&mut self, outcome: Outcome) {
        if let Some(told) = self.told.take() {
            // An error is ignored: it means that the receiving thread has ended and needs no answer.
            let _ = told.send(outcome);
        }
    }

    /// Drops the part of a state that an attempt received before its stream broke off. As long as the part
    /// exists, it keeps versions of keys from being removed and segments of the log from being deleted.
    fn forget_part(&mut self) {
        if let Some(forget) = self.kept.take()
            && !planted::is(Bug::BrokenPartKept)
        {
            self.discard_part(forget);
        }
    }

    /// Gives the received part of an attempt to the checkpointer to be dropped. `forget` takes the part from
    /// the receiver.
    pub fn discard_part(&mut self, forget: Forget) {
        self.discarded.extend(forget().map(Discarded::Part));
    }

    /// Gives a state that is not needed any more to the checkpointer to be dropped.
    fn discard(&mut self, machine: Box<Machine>) {
        self.discarded.push_back(Discarded::State(machine));
    }

    /// Returns the number of states, complete and partial, that wait to be dropped.
    pub fn discarded(&self) -> usize {
        self.discarded.len()
    }

    /// Begins a new attempt, and returns true. Returns false if another attempt has an open stream or a state
    /// is being installed, if too many states wait to be dropped, or if `busy` is true (values are being
    /// moved, a checkpoint is being written, or the member is stopping). An earlier attempt whose stream
    /// broke off is given up.
    pub fn begin(&mut self, claim: u64, busy: bool) -> bool {
        let idle = matches!(self.stage, Stage::Idle | Stage::Receiving { until: Some(_), .. });
        if !idle || busy || self.discarded.len() > DISCARDED_MAX {
            return false;
        }
        self.forget_part();
        self.stage = Stage::Receiving { claim, until: None };
        true
    }

    /// Resumes the attempt `of`, whose stream broke off. Returns true if the attempt may continue.
    pub fn resume(&mut self, of: u64) -> bool {
        match &mut self.stage {
            Stage::Receiving { claim, until } if *claim == of && until.is_some() => {
                *until = None;
                // The receiving thread has taken back the received part, so this member must not drop it any
                // more.
                self.kept = None;
                true
            }
            _ => false,
        }
    }

    /// Returns true if values of the attempt `of` may be written to the log now. Only one batch of values is
    /// in flight at a time.
    pub fn may_place(&self, of: u64) -> bool {
        self.takes(of) && self.placing.is_none()
    }

    /// Records that values of the attempt are written to the log in the batch `ticket`. `done` receives their
    /// locations.
    pub fn place(&mut self, ticket: u64, done: Placed) {
        self.placing = Some((ticket, Vec::new(), done));
    }

    /// Records that the values of the batch `ticket` and of all batches before it were synced. If the
    /// receiving thread waits for one of these batches, reports the locations to that thread.
    pub fn placed(&mut self, ticket: u64, values: &[(ValueId, Location)]) {
        let Some((wanted, places, _)) = &mut self.placing else { return };
        places.extend_from_slice(values);
        if *wanted <= ticket
            && let Some((_, places, done)) = self.placing.take()
        {
            // An error is ignored: it means that the receiving thread has ended and needs no answer.
            let _ = done.send(Ok(places));
        }
    }

    /// Stores a state that was received completely, until raft accepts or ignores it. Returns true if the
    /// state belongs to the attempt in progress; otherwise the state is dropped.
    pub fn receive(&mut self, of: u64, mut received: Box<ReceivedState>) -> bool {
        let takes = self.takes(of);
        if takes {
            self.told = received.told.take();
            self.received = Some(received);
        } else {
            // The state arrived completely, so its stream did not break off. The attempt can only have ended
            // because the leader or the term has changed, so the sender gets that error.
            self.turn_away(received, error::LEADER_CHANGED);
        }
        takes
    }

    /// Discards a state that was received completely but cannot be used. Reports the reason to the thread
    /// that received it.
    pub fn turn_away(&mut self, received: Box<ReceivedState>, why: Status) {
        let ReceivedState { machine, told, .. } = *received;
        self.discard(machine);
        if let Some(told) = told {
            // An error is ignored: it means that the receiving thread has ended and needs no answer.
            let _ = told.send(Outcome::GivenUp(why));
        }
    }

    /// Removes and returns the state that raft has accepted.
    pub fn take_received(&mut self) -> Option<Box<ReceivedState>> {
        self.received.take()
    }

    /// Records that the received state has replaced the current one. Once a checkpoint of the new state is
    /// saved, the log restarts after that state.
    pub fn installed(&mut self, reset: Reset, replaced: Machine) {
        self.discard(Box::new(replaced));
        self.stage = Stage::Installed(reset);
        self.save_at = None;
    }

    /// Records that the checkpoint of the new state is being written.
    pub fn saving(&mut self) {
        if let Stage::Installed(reset) = self.stage {
            self.stage = Stage::Saving(reset);
        }
    }

    /// Records that a checkpoint up to this index is durable. If the checkpoint is that of the installed
    /// state, returns the position after which the log restarts, and the batches that waited for the
    /// checkpoint.
    pub fn saved(&mut self, applied_index: Index) -> Option<(Reset, Vec<Append>)> {
        let Stage::Saving(reset) = self.stage else { return None };
        if applied_index < reset.index {
            self.retry();
            return None;
        }
        self.stage = Stage::Idle;
        self.tell(Outcome::Durable);
        Some((reset, std::mem::take(&mut self.held)))
    }

    /// Passes discarded objects to `give`, except states that other threads still read, until `give` refuses
    /// an object by returning it.
    pub fn release(&mut self, mut give: impl FnMut(Droppable) -> Result<(), Droppable>) {
        for _ in 0..self.discarded.len() {
            let Some(one) = self.discarded.pop_front() else { return };
            if !one.is_ready() {
                self.discarded.push_back(one);
                continue;
            }
            let what: Droppable = match one {
                Discarded::State(machine) => machine,
                Discarded::Part(part) => part,
            };
            if let Err(what) = give(what) {
                self.discarded.push_front(Discarded::Part(what));
                return;
            }
        }
    }

    /// Returns true if `of` is the attempt that is in progress or can be resumed. Callers ignore late events
    /// of other attempts.
    pub fn is_of(&self, of: u64) -> bool {
        matches!(self.stage, Stage::Receiving { claim, .. } if claim == of)
    }

    /// Returns true if `of` is the attempt in progress and its stream was neither broken nor cut off.
    fn takes(&self, of: u64) -> bool {
        matches!(self.stage, Stage::Receiving { claim, until: None } if claim == of)
    }

    /// Treats the stream of the attempt as broken, because the leader or the term has changed. The sender is
    /// possibly not the leader any more, and only the current leader may send its state.
    pub fn cut_off(&mut self, now: Instant) {
        if let Stage::Receiving { until, .. } = &mut self.stage
            && until.is_none()
        {
            *until = Some(now + RESUME_TIMEOUT);
            self.placing = None;
        }
    }

    /// Records that the stream of the attempt broke off. `forget` drops the received part, which is kept for
    /// [`RESUME_TIMEOUT`].
    pub fn pause(&mut self, of: u64, forget: Forget, now: Instant) {
        match &mut self.stage {
            Stage::Receiving { claim, until } if *claim == of => {
                *until = Some(now + RESUME_TIMEOUT);
                self.kept = Some(forget);
            }
            // This attempt is not the current one, so it cannot be resumed, and its part is dropped.
            _ => self.discard_part(forget),
        }
    }

    /// Returns true if the attempt's stream broke off and was not resumed within [`RESUME_TIMEOUT`].
    pub fn is_over(&self, now: Instant) -> bool {
        matches!(self.stage, Stage::Receiving { until: Some(until), .. } if now >= until)
    }

    /// Records that the checkpoint could not be written, for the reason `why`. The checkpoint is ordered
    /// again only after a pause, because each attempt writes the whole state. The sender gets an error now.
    /// Otherwise it would wait, and keep its log entries, until a checkpoint succeeds on this member.
    pub fn failed(&mut self, why: &str, now: Instant) {
        if let Stage::Saving(_) = self.stage {
            self.retry();
            self.save_at = Some(now + SAVE_PAUSE);
            self.tell(Outcome::NotSaved(why.to_owned()));
        }
    }

    /// Allows a checkpoint of the installed state to be ordered again.
    fn retry(&mut self) {
        if let Stage::Saving(reset) = self.stage {
            self.stage = Stage::Installed(reset);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use numbers::Term;

    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn what_comes_late_of_an_old_attempt_changes_nothing() {
        let now = Instant::now();
        let forgotten = Arc::new(AtomicU32::new(0));
        let forget = |forgotten: &Arc<AtomicU32>| -> Forget {
            let forgotten = Arc::clone(forgotten);
            Box::new(move || {
                forgotten.fetch_add(1, Ordering::Relaxed);
                Some(Box::new("a part"))
            })
        };
        let mut install = Install::default();
        assert!(install.begin(1, false));
        assert!(install.takes(1) && !install.takes(2));
        install.cut_off(now);
        assert!(!install.takes(1) && install.is_of(1));
        assert!(install.begin(2, false));
        assert!(!install.takes(1) && !install.is_of(1) && install.takes(2));
        install.pause(1, forget(&forgotten), now);
        assert!(install.takes(2) && forgotten.load(Ordering::Relaxed) == 1);
        install.pause(2, forget(&forgotten), now);
        assert!(!install.takes(2) && !install.is_over(now) && install.is_over(now + RESUME_TIMEOUT));
        assert!(!install.begin(3, true), "the present state is being moved about");
        assert!(install.begin(3, false));
        assert!(forgotten.load(Ordering::Relaxed) == 2 && install.takes(3));
        assert_eq!(install.discarded(), 2, "they wait for somebody to drop them");
    }

    #[test]
    fn an_attempt_that_broke_off_goes_on_or_makes_way() {
        let now = Instant::now();
        let mut install = Install::default();
        assert!(install.begin(1, false) && !install.begin(2, false), "it is under way");
        assert!(!install.resume(1), "it did not break off");
        install.cut_off(now);
        assert!(!install.resume(2) && install.resume(1) && install.takes(1));
        install.cut_off(now);
        assert!(install.begin(2, false) && !install.resume(1));
    }

    #[test]
    fn values_are_placed_one_batch_at_a_time() {
        let mut install = Install::default();
        assert!(!install.may_place(1));
        install.begin(1, false);
        assert!(install.may_place(1) && !install.may_place(2));
        let (done, mut placed) = oneshot::channel();
        install.place(7, done);
        assert!(!install.may_place(1));
        let value = |main| (ValueId { main, sub: 0 }, Location::new(1, 2));
        install.placed(6, &[value(1)]);
        assert!(placed.try_recv().is_err());
        install.placed(7, &[value(2)]);
        assert_eq!(placed.try_recv().map(|places| places.map(|places| places.len())), Ok(Ok(2)));
        assert!(install.may_place(1));
    }

    /// Returns a state that was received completely, and the receiver of its outcome.
    fn arrived() -> (Box<ReceivedState>, oneshot::Receiver<Outcome>) {
        let (told, outcome) = oneshot::channel();
        let machine = Box::new(Machine::new(machine::Rules { learners_max: 1 }));
        (
            Box::new(ReceivedState {
                message: Default::default(),
                machine,
                base_applied: None,
                told: Some(told),
            }),
            outcome,
        )
    }

    #[test]
    fn who_waits_for_a_state_is_told_at_each_end_that_it_can_come_to() {
        let received = || {
            let mut install = Install::default();
            install.begin(1, false);
            let (state, outcome) = arrived();
            assert!(install.receive(1, state));
            (install, outcome)
        };
        let installed = || {
            let (mut install, mut outcome) = received();
            let replaced = install.take_received().expect("has arrived").machine;
            install.installed(Reset { index: Index(9), term: Term(2) }, *replaced);
            install.give_up();
            install.saving();
            assert!(install.saved(Index(8)).is_none());
            install.saving();
            assert!(outcome.try_recv().is_err(), "it is neither durable nor given up");
            (install, outcome)
        };
        let (mut install, mut outcome) = received();
        install.give_up();
        assert!(matches!(outcome.try_recv(), Ok(Outcome::NotWanted)));
        let (mut install, mut outcome) = received();
        install.tell(Outcome::Refused("it is garbage".to_owned()));
        install.give_up();
        assert!(matches!(outcome.try_recv(), Ok(Outcome::Refused(why)) if why == "it is garbage"));
        let (mut install, mut outcome) = installed();
        assert!(install.saved(Index(9)).is_some());
        assert!(matches!(outcome.try_recv(), Ok(Outcome::Durable)));
        let (mut install, mut outcome) = installed();
        let now = Instant::now();
        install.failed("the disk is full", now);
        assert!(!install.wants_checkpoint(now) && install.wants_checkpoint(now + SAVE_PAUSE));
        assert!(matches!(outcome.try_recv(), Ok(Outcome::NotSaved(why)) if why == "the disk is full"));
        // The last part of the state arrives after its attempt has ended.
        for ends in [|install: &mut Install| install.cut_off(Instant::now()), Install::give_up] {
            let mut install = Install::default();
            install.begin(1, false);
            ends(&mut install);
            let (late, mut outcome) = arrived();
            assert!(!install.receive(1, late));
            assert!(matches!(outcome.try_recv(), Ok(Outcome::GivenUp(why)) if why == error::LEADER_CHANGED));
            assert_eq!(install.discarded(), 1);
        }
    }

    #[test]
    fn offers_wait_for_the_installed_state_and_not_for_ever() {
        let now = Instant::now();
        let id = |slot| RequestId { shard: 0, slot, generation: 0 };
        let mut install = Install::default();
        install.begin(1, false);
        assert!(!install.hold_offer(id(0), now), "nothing is being saved");
        let replaced = Machine::new(machine::Rules { learners_max: 1 });
        install.installed(Reset { index: Index(9), term: Term(2) }, replaced);
        assert!(install.hold_offer(id(1), now));
        install.saving();
        let later = now + OFFER_PATIENCE / 2;
        assert!(install.hold_offer(id(2), later) && install.offers_over(later).is_empty());
        assert_eq!(install.offers_over(now + OFFER_PATIENCE), [id(1)]);
        assert!((3..6).all(|slot| install.hold_offer(id(slot), later)));
        assert!(!install.hold_offer(id(6), later), "so many wait");
        assert!(install.saved(Index(9)).is_some());
        assert_eq!(install.offers_over(later), [2, 3, 4, 5].map(id));
        assert!(install.take_offers().is_empty() && !install.hold_offer(id(7), later));
    }

    #[test]
    fn the_log_waits_until_the_new_state_is_saved() {
        let append = |number| Append { number, entries: Vec::new(), hard_state: None };
        let machine = || Machine::new(machine::Rules { learners_max: 1 });
        let mut install = Install::default();
        install.begin(1, false);
        assert!(install.hold(append(1)).is_some());
        install.installed(Reset { index: Index(9), term: Term(2) }, machine());
        let now = Instant::now();
        assert!(install.wants_checkpoint(now) && install.hold(append(2)).is_none());
        install.saving();
        assert!(!install.wants_checkpoint(now) && install.saved(Index(8)).is_none());
        assert!(install.wants_checkpoint(now), "it is ordered again");
        install.saving();
        let (reset, held) = install.saved(Index(9)).expect("it is the one");
        assert_eq!((reset.index, held.len(), install.is_busy()), (Index(9), 1, false));
        let mut given = 0;
        install.release(Err);
        install.release(|_| {
            given += 1;
            Ok(())
        });
        assert_eq!((given, install.discarded()), (1, 0));
    }
}
