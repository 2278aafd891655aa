//! Stores the raised alarms. While an alarm is raised, the cluster refuses the requests that the alarm
//! affects. For example, `NOSPACE` affects writes that take space. An alarm stays raised until a request
//! clears it.

use std::collections::BTreeSet;

use crate::codec::{Input, Malformed, put_i64, put_u64};

/// The raised alarms, each with its type and the id of the member for which it was raised.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Alarms(BTreeSet<(i32, u64)>);

impl Alarms {
    /// Returns true if an alarm of this type is raised for any member.
    pub fn any(&self, alarm: i32) -> bool {
        self.0.iter().any(|(kind, _)| *kind == alarm)
    }

    /// Returns true if this alarm is raised for exactly this member. The id 0 stands for the alarm of an
    /// unknown member and, unlike in [`Alarms::list`], not for all members.
    pub fn is_raised(&self, alarm: i32, member: u64) -> bool {
        self.0.contains(&(alarm, member))
    }

    /// Returns the raised alarms, sorted by type and member. An `alarm` of 0 selects all types, a `member` of
    /// 0 all members.
    pub fn list(&self, alarm: i32, member: u64) -> Vec<api::etcdserverpb::AlarmMember> {
        self.0
            .iter()
            .filter(|(kind, id)| (alarm == 0 || *kind == alarm) && (member == 0 || *id == member))
            .map(|(kind, id)| api::etcdserverpb::AlarmMember { member_id: *id, alarm: *kind })
            .collect()
    }

    /// Creates the set from alarms that are already raised, such as those in an imported database.
    pub fn raised(alarms: impl IntoIterator<Item = api::etcdserverpb::AlarmMember>) -> Alarms {
        Alarms(alarms.into_iter().map(|one| (one.alarm, one.member_id)).collect())
    }

    /// Raises an alarm. Returns true if it was not raised before.
    pub(crate) fn raise(&mut self, alarm: i32, member: u64) -> bool {
        self.0.insert((alarm, member))
    }

    pub(crate) fn clear(&mut self, alarm: i32, member: u64) -> bool {
        self.0.remove(&(alarm, member))
    }

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_u64(out, self.0.len() as u64);
        for (kind, id) in &self.0 {
            put_i64(out, i64::from(*kind));
            put_u64(out, *id);
        }
    }

    pub(crate) fn decode(input: &mut Input<'_>) -> Result<Alarms, Malformed> {
        let mut alarms = Alarms::default();
        for _ in 0..input.u64()? {
            let kind = i32::try_from(input.i64()?).map_err(|_| Malformed("an alarm type over 32 bits"))?;
            alarms.0.insert((kind, input.u64()?));
        }
        Ok(alarms)
    }
}
