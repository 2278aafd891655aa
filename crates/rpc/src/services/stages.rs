//! Measures how long the stages ([`Stage`]) of a call take, such as waiting in the core's queue or encoding
//! the response, and reports these times when the call ends.
//!
//! A call that is neither sampled nor traced pays almost nothing for this, because it needs no extra clock
//! reads. The clock is read anyway: once per turn of a connection; when a call goes to the core or reads the
//! state; when a call is answered; and once per batch in the core. Only sampled and traced calls read the
//! clock more often.

use std::cell::Cell;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use clock::Clock;
use machine::{ReadError, Values};
use mvcc::Value;
use numbers::Revision;
use replica::stages::{RoundTimes, WriteTimes};
use telemetry::stages::{Stage, StageTimes};

use super::Services;

/// On average one in this many calls is sampled: its stages are measured and added to the histograms. With
/// `--metrics extensive` every call is sampled.
pub(super) const ONE_IN: u32 = 64;

/// Data recorded when a call arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    /// Time at which the head of the call arrived.
    pub arrived: Instant,
    /// Time that identifying the user took; zero if it was not measured or not needed.
    pub auth: Duration,
    /// True if the call is sampled: the times of its stages are added to the histograms.
    pub is_sample: bool,
    /// True if the call is traced: the times of its stages are reported in its trace.
    pub is_traced: bool,
}

impl Begun {
    /// Returns the data of a call that is neither sampled nor traced.
    pub fn unmeasured(arrived: Instant) -> Begun {
        Begun { arrived, auth: Duration::ZERO, is_sample: false, is_traced: false }
    }

    /// Returns true if each stage of the call has to be measured, because the call is sampled or traced.
    pub fn is_measured(&self) -> bool {
        self.is_sample || self.is_traced
    }

    /// Returns the times of the stages before `went_on`, at which the call went to the core or began to read
    /// the state.
    fn stages(&self, went_on: Instant) -> [(Stage, Duration); 2] {
        let front = went_on.saturating_duration_since(self.arrived).saturating_sub(self.auth);
        [(Stage::Front, front), (Stage::Auth, self.auth)]
    }
}

/// Times of the confirmation of a linearizable read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Confirmed {
    /// Time at which the core was asked.
    pub asked: Instant,
    /// Times of the ReadIndex round that confirmed the read; `None` if the core knew without a round that its
    /// state is the newest.
    pub round: Option<RoundTimes>,
    /// Time at which the call continued after the confirmation.
    pub went_on: Instant,
}

impl Confirmed {
    fn stages(&self) -> StageTimes {
        let since = |later: Instant, earlier: Instant| later.saturating_duration_since(earlier);
        match self.round {
            None => vec![(Stage::Queue, since(self.went_on, self.asked))],
            Some(round) => vec![
                (Stage::Queue, since(round.began, self.asked)),
                (Stage::ReadIndex, since(round.confirmed, round.began)),
                (Stage::ApplyWait, since(self.went_on, round.confirmed)),
            ],
        }
    }
}

/// Times of making a read's response: of finding the keys, reading the values and encoding.
#[derive(Clone, Copy, Debug)]
pub(super) enum Making {
    /// Total time of making the response.
    Whole(Duration),
    /// Time of finding the keys. The values are read and the response is encoded later, as the client reads
    /// it.
    Index(Duration),
    /// Times of finding the keys, of reading the values, and of encoding the response.
    Parts { index: Duration, values: Duration, encode: Duration },
}

impl Making {
    fn stages(self) -> StageTimes {
        match self {
            Making::Whole(took) => vec![(Stage::Range, took)],
            Making::Index(took) => vec![(Stage::Index, took)],
            Making::Parts { index, values, encode } => {
                vec![(Stage::Index, index), (Stage::Values, values), (Stage::Encode, encode)]
            }
        }
    }
}

/// Measures how long finding the keys, reading the values and encoding take, for a response that is made in
/// one step. Used only for sampled or traced calls, because it reads the clock twice per value.
pub(super) struct Meter {
    clock: Clock,
    began: Instant,
    /// Time at which all keys were found, and the time spent on reading values until then.
    found: Cell<Option<(Instant, Duration)>>,
    values: Cell<Duration>,
}

impl Meter {
    pub fn new(clock: Clock) -> Meter {
        Meter { began: clock.now(), clock, found: Cell::new(None), values: Cell::new(Duration::ZERO) }
    }

    /// Returns `values` wrapped so that the meter measures each read.
    pub fn measured<'a>(&'a self, values: &'a dyn Values) -> Measured<'a> {
        Measured { meter: self, values }
    }

    /// Records that all keys were found.
    pub fn found(&self) {
        self.found.set(Some((self.clock.now(), self.values.get())));
    }

    /// Returns the times, once the response is complete.
    pub fn made(&self) -> Making {
        let (ended, values) = (self.clock.now(), self.values.get());
        let (found, sorted_by) = self.found.get().unwrap_or((ended, values));
        Making::Parts {
            index: found.saturating_duration_since(self.began).saturating_sub(sorted_by),
            values,
            encode: ended.saturating_duration_since(found).saturating_sub(values.saturating_sub(sorted_by)),
        }
    }
}

/// Values whose reads a [`Meter`] measures.
pub(super) struct Measured<'a> {
    meter: &'a Meter,
    values: &'a dyn Values,
}

impl Values for Measured<'_> {
    fn read_into(&self, value: Value, out: &mut BytesMut) -> Result<(), ReadError> {
        let began = self.meter.clock.now();
        let read = self.values.read_into(value, out);
        let took = self.meter.clock.now().saturating_duration_since(began);
        self.meter.values.set(self.meter.values.get() + took);
        read
    }
}

/// Times that are reported for a sampled or traced call.
pub(super) struct Told {
    /// Times of the stages of the call since its arrival.
    pub stages: StageTimes,
    /// For a write, the times at which it was sent to the core and at which it was answered.
    pub proposed: Option<(Instant, Instant)>,
}

impl Services {
    /// Reports the times that `told` returns: adds them to the histograms if the call is sampled, and returns
    /// them if it is traced. If the call is neither, `told` is not called, and the result is `None`.
    pub(super) fn passed(&self, begun: &Begun, told: impl FnOnce() -> Told) -> Option<Told> {
        if !begun.is_measured() {
            return None;
        }
        let told = told();
        if begun.is_sample {
            let mut times = self.stage_times.borrow_mut();
            for (stage, took) in &told.stages {
                let time = &mut times[*stage as usize];
                let time =
                    time.get_or_insert_with(|| self.shared.diagnostics.metrics.server.stage(stage.name()));
                time.observe_seconds(*took);
            }
        }
        begun.is_traced.then_some(told)
    }

    /// Returns the times of the stages of a write that was sent to the core at `asked` and answered at
    /// `answered` with this revision. The stages inside the core are missing if the core no longer has their
    /// times.
    pub(super) fn write_stages(
        &self,
        begun: &Begun,
        (asked, answered): (Instant, Instant),
        revision: Revision,
    ) -> StageTimes {
        let passed: Option<WriteTimes> = self.shared.diagnostics.stages.of(asked, revision);
        let mut stages = started(begun, asked);
        stages.extend(passed.into_iter().flat_map(|passed| passed.stages(asked, answered)));
        stages
    }
}

/// Returns the times of the stages ([`Stage`]) of a read. `confirmed` is `None` for a read that needed no
/// confirmation by the leader: a serializable read, or any read on a member that answers linearizable reads
/// locally. `began`, the time at which the read began, is used only if `confirmed` is `None`.
pub(super) fn read_stages(
    begun: &Begun,
    began: Instant,
    confirmed: Option<&Confirmed>,
    making: Making,
) -> StageTimes {
    let mut stages = started(begun, confirmed.map_or(began, |confirmed| confirmed.asked));
    stages.extend(confirmed.into_iter().flat_map(Confirmed::stages));
    stages.extend(making.stages());
    stages
}

/// Returns the times of the stages before `went_on`. The auth stage is left out if it took no time.
fn started(begun: &Begun, went_on: Instant) -> StageTimes {
    begun
        .stages(went_on)
        .into_iter()
        .filter(|(stage, took)| *stage != Stage::Auth || !took.is_zero())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(stages: &StageTimes) -> Vec<(&'static str, u128)> {
        stages.iter().map(|(stage, took)| (stage.name(), took.as_millis())).collect()
    }

    #[test]
    fn the_stages_of_a_read_add_up_to_its_time() {
        let start = Instant::now();
        let ms = |ms: u64| start + Duration::from_millis(ms);
        let begun = Begun { auth: Duration::from_millis(2), ..Begun::unmeasured(ms(0)) };
        let round = Some(RoundTimes { began: ms(11), confirmed: ms(20) });
        let confirmed = Confirmed { asked: ms(7), round, went_on: ms(24) };
        let part = Duration::from_millis;
        let making = Making::Parts { index: part(1), values: part(5), encode: part(3) };
        let stages = read_stages(&begun, ms(6), Some(&confirmed), making);
        let expected = [
            ("front", 5),
            ("auth", 2),
            ("queue", 4),
            ("read_index", 9),
            ("apply_wait", 4),
            ("index", 1),
            ("values", 5),
            ("encode", 3),
        ];
        assert_eq!(named(&stages), expected);
        // Without an auth stage and without a ReadIndex round there are fewer stages.
        let begun = Begun::unmeasured(ms(0));
        let stages = read_stages(&begun, ms(6), None, Making::Whole(part(9)));
        assert_eq!(named(&stages), [("front", 6), ("range", 9)]);
        let local = Confirmed { round: None, ..confirmed };
        assert_eq!(
            named(&read_stages(&begun, ms(6), Some(&local), Making::Whole(part(9))))[1],
            ("queue", 17)
        );
    }

    /// Values that take 5 ms to read.
    struct Slow(std::sync::Arc<clock::HandClock>);

    impl Values for Slow {
        fn read_into(&self, _: Value, _: &mut BytesMut) -> Result<(), ReadError> {
            self.0.advance(Duration::from_millis(5));
            Ok(())
        }
    }

    #[test]
    fn a_meter_splits_the_time_of_an_answer() {
        let hand = clock::HandClock::new(Instant::now(), std::time::SystemTime::UNIX_EPOCH);
        let pass = |ms| hand.advance(Duration::from_millis(ms));
        let meter = Meter::new(Clock::by_hand(&hand));
        let slow = Slow(hand.clone());
        let values = meter.measured(&slow);
        let read = || values.read_into(Value::default(), &mut BytesMut::new());
        pass(1);
        // The value is read before the keys are found, as when a range is sorted by value.
        read().expect("it is read");
        meter.found();
        read().expect("it is read");
        pass(3);
        assert_eq!(named(&meter.made().stages()), [("index", 1), ("values", 10), ("encode", 3)]);
    }
}
