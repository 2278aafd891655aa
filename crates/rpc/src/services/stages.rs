//! Where the time of a call went: what is noted on its way, and what is told of it in the end.
//!
//! A call that is neither a sample nor traced costs a few moves for this. All times but those of samples are had anyway: a
//! connection's turn reads the clock once, a call when it goes to the core or reads the state and when it is answered, and the
//! core notes its own for each batch.

use std::cell::Cell;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use clock::Clock;
use machine::{ReadError, Values};
use mvcc::Value;
use numbers::Revision;
use replica::stages::{Passed, RoundTimes};
use telemetry::stages::{Stage, StageTimes};

use super::Services;

/// One out of so many calls is measured stage by stage; all are with `--metrics extensive`.
pub(super) const ONE_IN: u32 = 64;

/// What is known when a call begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    /// Time when the head of the call arrived.
    pub arrived: Instant,
    /// Time that it took to find out on whose behalf the call is made; zero if that was not measured, or needs no look.
    pub auth: Duration,
    /// True if the stages of this call go into the histograms.
    pub is_sample: bool,
    /// True if the call is traced.
    pub is_traced: bool,
}

impl Begun {
    /// Returns the beginning of a call that is not measured.
    pub fn unmeasured(arrived: Instant) -> Begun {
        Begun { arrived, auth: Duration::ZERO, is_sample: false, is_traced: false }
    }

    /// Returns true if each stage of the call is to be measured.
    pub fn is_measured(&self) -> bool {
        self.is_sample || self.is_traced
    }

    /// The stages before the call went on at `went_on`, to the core or to the state.
    fn stages(&self, went_on: Instant) -> [(Stage, Duration); 2] {
        let front = went_on.saturating_duration_since(self.arrived).saturating_sub(self.auth);
        [(Stage::Front, front), (Stage::Auth, self.auth)]
    }
}

/// How a linearizable read was confirmed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Confirmed {
    /// Time when the core was asked.
    pub asked: Instant,
    /// The round of ReadIndex that confirmed it; `None` if the core knew by itself that its state is the newest.
    pub round: Option<RoundTimes>,
    /// Time when the call went on.
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

/// How long the parts of making a read's answer took.
#[derive(Clone, Copy, Debug)]
pub(super) enum Making {
    /// All of them together.
    Whole(Duration),
    /// Finding the keys; the rest is done as the client takes the answer.
    Index(Duration),
    /// Finding the keys, reading the values, and putting the answer together.
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

/// Measures the parts of an answer that is made at once. Reads the clock twice for each value: for samples only.
pub(super) struct Meter {
    clock: Clock,
    began: Instant,
    /// Time when the keys were found, and the time spent on values by then.
    found: Cell<Option<(Instant, Duration)>>,
    values: Cell<Duration>,
}

impl Meter {
    pub fn new(clock: Clock) -> Meter {
        Meter { began: clock.now(), clock, found: Cell::new(None), values: Cell::new(Duration::ZERO) }
    }

    /// These values, read by way of the meter.
    pub fn measured<'a>(&'a self, values: &'a dyn Values) -> Measured<'a> {
        Measured { meter: self, values }
    }

    /// The keys are found.
    pub fn found(&self) {
        self.found.set(Some((self.clock.now(), self.values.get())));
    }

    /// The answer is made.
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

/// Values that are read under a [`Meter`].
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

/// What is told of a traced call.
pub(super) struct Told {
    /// The stages that it passed from its arrival on.
    pub stages: StageTimes,
    /// A write: times when it went to the core, and when it was answered.
    pub proposed: Option<(Instant, Instant)>,
}

impl Services {
    /// Notes the stages of a call in the histograms, if it is a sample, and returns them, if it is traced.
    pub(super) fn passed(&self, begun: &Begun, told: impl FnOnce() -> Told) -> Option<Told> {
        if !begun.is_measured() {
            return None;
        }
        let told = told();
        if begun.is_sample {
            let mut times = self.stage_times.borrow_mut();
            for (stage, took) in &told.stages {
                let time = &mut times[*stage as usize];
                let time = time.get_or_insert_with(|| self.shared.metrics.server.stage(stage.name()));
                time.observe_seconds(*took);
            }
        }
        begun.is_traced.then_some(told)
    }

    /// Returns the stages of a write that went to the core at `asked` and was answered at `answered`, at this revision. Those in
    /// the core are missing if they are no longer known.
    pub(super) fn write_stages(
        &self,
        begun: &Begun,
        (asked, answered): (Instant, Instant),
        revision: Revision,
    ) -> StageTimes {
        let passed: Option<Passed> = self.shared.stages.of(asked, revision);
        let mut stages = started(begun, asked);
        stages.extend(passed.into_iter().flat_map(|passed| passed.stages(asked, answered)));
        stages
    }
}

/// Returns the stages of a read that began to be made at `went_on`, or asked the core then.
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

/// The stages before a call went on. One without users has none for finding them out.
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
        // Without users and rounds there is less to tell.
        let begun = Begun::unmeasured(ms(0));
        let stages = read_stages(&begun, ms(6), None, Making::Whole(part(9)));
        assert_eq!(named(&stages), [("front", 6), ("range", 9)]);
        let local = Confirmed { round: None, ..confirmed };
        assert_eq!(
            named(&read_stages(&begun, ms(6), Some(&local), Making::Whole(part(9))))[1],
            ("queue", 17)
        );
    }

    /// Values whose reading takes time.
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
        // As if sorted by it.
        read().expect("it is read");
        meter.found();
        read().expect("it is read");
        pass(3);
        assert_eq!(named(&meter.made().stages()), [("index", 1), ("values", 10), ("encode", 3)]);
    }
}
