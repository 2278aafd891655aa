//! Decides when this member's NOSPACE alarm is raised, for which cause, and when it is cleared. The core
//! makes the proposals that [`NospaceAlarm`] returns.

use std::time::{Duration, Instant};

use api::etcdserverpb::AlarmType;
use api::etcdserverpb::alarm_request::AlarmAction;
use machine::{Alarms, Raised};

use storage::nospace::Cause;

/// Minimum time between two proposals of this member that raise or clear an alarm.
const ALARM_PAUSE: Duration = Duration::from_secs(5);
const NOSPACE: i32 = AlarmType::Nospace as i32;

/// Facts about this member from which [`NospaceAlarm`] decides.
#[derive(Clone, Copy)]
pub(super) struct AlarmContext<'a> {
    /// The alarms that are raised in the cluster.
    pub alarms: &'a Alarms,
    /// True if there is a leader, so that a proposal can be made.
    pub has_leader: bool,
}

/// Actions that the core has to take for the NOSPACE alarm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AlarmStep {
    /// True if the core should write the cause of the alarm to the note beside the log, a file that keeps the
    /// cause across restarts.
    pub note: bool,
    /// Proposal to raise or clear the alarm, if one should be made.
    pub propose: Option<AlarmAction>,
}

/// The NOSPACE alarm of this member.
///
/// This type remembers the cause of the alarm, because the entries of etcd do not contain it. The cause
/// decides who ends the alarm. An alarm raised because the disk was full is cleared once the disk has space
/// again. An alarm raised because of the quota stays until a client disarms it, as in etcd, and so does an
/// alarm of unknown cause.
pub(super) struct NospaceAlarm {
    own: u64,
    cause: Cause,
    /// Cause that was last written to the note beside the log.
    noted: Cause,
    /// Time of the last proposal to raise or clear the alarm; `None` once an entry that raises or clears an
    /// alarm is applied. The proposal may be lost, so it counts as in flight only for [`ALARM_PAUSE`].
    proposed: Option<Instant>,
}

impl NospaceAlarm {
    /// Returns the alarm of the member `own`. `noted` is the cause in the note beside the log.
    pub fn new(own: u64, noted: Cause) -> NospaceAlarm {
        NospaceAlarm { own, cause: noted, noted, proposed: None }
    }

    /// Returns the cause for which the alarm is raised, or is about to be raised.
    pub fn cause(&self) -> Cause {
        self.cause
    }

    /// Returns the cause of the alarm if it still has to be written to the note beside the log; `None` if the
    /// note contains it already.
    pub fn unnoted(&self) -> Option<Cause> {
        (self.noted != self.cause).then_some(self.cause)
    }

    /// Records that the checkpointer was ordered to write the note. From now on the note counts as written:
    /// the checkpointer executes its orders in sequence, so it writes the note before, for example, a
    /// checkpoint that is ordered later.
    pub fn was_noted(&mut self) {
        self.noted = self.cause;
    }

    /// Handles a shortage: the disk has no space, or a client's write would exceed the quota.
    pub fn raise(&mut self, cause: Cause, present: AlarmContext<'_>, now: Instant) -> AlarmStep {
        // The cause of a raised alarm does not change. The exception is an alarm of unknown cause, which gets
        // the cause of this shortage.
        let raised = present.alarms.is_raised(NOSPACE, self.own);
        // While the alarm is proposed but not raised yet, the cause `Disk` is replaced by `Quota`, but
        // `Quota` is not replaced by `Disk`. So if both shortages occur before the alarm is raised, its cause
        // is the quota, and only a client can clear it.
        let known = match self.cause {
            Cause::Nothing => false,
            Cause::Disk => raised,
            Cause::Quota => raised || self.proposed.is_some(),
        };
        let note = !known && cause != self.cause;
        if note {
            self.cause = cause;
        }
        let raises = !present.alarms.any(NOSPACE);
        let propose = if raises { self.propose(AlarmAction::Activate, present, now) } else { None };
        AlarmStep { note, propose }
    }

    /// Handles an applied entry that raised or cleared an alarm. After it, no proposal of this member counts
    /// as in flight.
    ///
    /// The entry that raises this member's NOSPACE alarm contains the cause. So a member that was restarted
    /// before it had written the note gets the cause when it replays the log. The entry is still in the log,
    /// because no checkpoint covers it before the note is written.
    pub fn changed(&mut self, raised: Option<Raised>, alarms: &Alarms) {
        let proposed = self.proposed.take().is_some();
        let raised = raised.filter(|raised| (raised.alarm, raised.member_id) == (NOSPACE, self.own));
        let said = raised.and_then(|raised| Cause::of_entry(raised.cause));
        // If both shortages occur before the alarm is raised, only a client may clear the alarm. So the cause
        // in the entry does not replace the cause `Quota` that was found after the proposal.
        if let Some(cause) = said
            && !(proposed && self.cause == Cause::Quota)
            && !planted::is(planted::Bug::AlarmCauseForgotten)
        {
            self.cause = cause;
        } else if !proposed && !alarms.is_raised(NOSPACE, self.own) {
            self.cause = Cause::Nothing;
        }
    }

    /// Called at each check of the disk. Returns the action to propose if an alarm that a full disk has
    /// raised should be cleared now. `ample` is true if the log finds no shortage of space. `may_clear` is
    /// true if the disk has space again and the quota is not reached.
    pub fn look(
        &mut self,
        ample: bool,
        may_clear: bool,
        present: AlarmContext<'_>,
        now: Instant,
    ) -> Option<AlarmAction> {
        let quiet = self.proposed.is_none_or(|at| now.saturating_duration_since(at) >= ALARM_PAUSE);
        if !present.alarms.is_raised(NOSPACE, self.own) {
            if quiet && ample {
                self.cause = Cause::Nothing;
            }
            return None;
        }
        let clears = self.cause == Cause::Disk && may_clear && present.has_leader && quiet;
        if clears && !planted::is(planted::Bug::DiskAlarmStays) {
            self.propose(AlarmAction::Deactivate, present, now)
        } else {
            None
        }
    }

    fn propose(
        &mut self,
        action: AlarmAction,
        present: AlarmContext<'_>,
        now: Instant,
    ) -> Option<AlarmAction> {
        let proposed = self.proposed.is_some_and(|at| now.saturating_duration_since(at) < ALARM_PAUSE);
        if proposed || !present.has_leader {
            return None;
        }
        self.proposed = Some(now);
        Some(action)
    }
}

#[cfg(test)]
mod tests {
    use api::etcdserverpb::AlarmMember;

    use super::*;

    const OWN: u64 = 7;

    fn raised() -> Alarms {
        Alarms::raised([AlarmMember { member_id: OWN, alarm: NOSPACE }])
    }

    fn present(alarms: &Alarms) -> AlarmContext<'_> {
        AlarmContext { alarms, has_leader: true }
    }

    #[test]
    fn an_alarm_of_the_disk_goes_with_the_shortage() {
        let (none, some, now) = (Alarms::default(), raised(), Instant::now());
        let mut alarm = NospaceAlarm::new(OWN, Cause::Nothing);
        let wanted = alarm.raise(Cause::Disk, present(&none), now);
        assert_eq!(wanted, AlarmStep { note: true, propose: Some(AlarmAction::Activate) });
        assert_eq!(alarm.unnoted(), Some(Cause::Disk));
        alarm.was_noted();
        // The proposal is in flight, so no second one is made.
        assert_eq!(alarm.raise(Cause::Disk, present(&none), now), AlarmStep::default());
        alarm.changed(None, &some);
        assert_eq!(alarm.look(true, false, present(&some), now), None);
        assert_eq!(alarm.look(true, true, present(&some), now), Some(AlarmAction::Deactivate));
        assert_eq!(alarm.look(true, true, present(&some), now), None, "it is under way");
        alarm.changed(None, &none);
        assert_eq!(alarm.look(true, true, present(&none), now), None);
        assert_eq!((alarm.cause(), alarm.unnoted()), (Cause::Nothing, Some(Cause::Nothing)));
    }

    #[test]
    fn an_alarm_of_the_quota_or_of_nothing_known_is_not_cleared() {
        let (none, some, now) = (Alarms::default(), raised(), Instant::now());
        let mut alarm = NospaceAlarm::new(OWN, Cause::Nothing);
        assert!(alarm.raise(Cause::Quota, present(&none), now).note);
        // A later shortage of the disk does not replace the cause `Quota`.
        assert_eq!(alarm.raise(Cause::Disk, present(&none), now), AlarmStep::default());
        alarm.changed(None, &some);
        assert_eq!((alarm.cause(), alarm.look(true, true, present(&some), now)), (Cause::Quota, None));
        let mut alarm = NospaceAlarm::new(OWN, Cause::Nothing);
        assert_eq!(alarm.look(true, true, present(&some), now), None);
    }

    #[test]
    fn without_a_leader_nothing_is_proposed_and_what_is_lost_is_proposed_again() {
        let (none, now) = (Alarms::default(), Instant::now());
        let mut alarm = NospaceAlarm::new(OWN, Cause::Nothing);
        let alone = AlarmContext { alarms: &none, has_leader: false };
        assert_eq!(alarm.raise(Cause::Disk, alone, now).propose, None);
        assert_eq!(alarm.raise(Cause::Disk, present(&none), now).propose, Some(AlarmAction::Activate));
        let later = now + ALARM_PAUSE;
        assert_eq!(alarm.raise(Cause::Disk, present(&none), later).propose, Some(AlarmAction::Activate));
    }
}
