//! Estimates which key prefixes, users and client addresses cause most of a member's current load, measured
//! in requests, bytes and time.
//!
//! There is a list for each of these three kinds of names and each of these three measures. Every list is a
//! Space-Saving sketch of fixed size (Metwally, Agrawal and El Abbadi, "Efficient computation of frequent and
//! top-k elements in data streams", 2005): each name with more than 1/[`PLACES`] of the total is in its list,
//! and the amount shown exceeds the true one by at most the `error` beside it. Amounts decay with a half-life
//! of [`HALF_LIFE`], so they express a current rate, and past load disappears.
//!
//! [`HeavyHitters::certain`] returns only names that have at least the share [`SHARE`] of the total even if
//! their whole error is subtracted, and that were seen about [`TIMES`] times recently. So a key that occurs
//! only once is never returned, even if there is hardly any other load.
//!
//! Only sampled requests are counted (by default one of 64), each weighted by the number of requests that it
//! stands for. So most requests cost nothing here, but names with few requests may be missed.
//!
//! # Example
//!
//! ```
//! use std::time::{Duration, Instant};
//! use mainstay_telemetry::heavy_hitters::{HeavyHitters, Measure, Noted, Subject};
//!
//! let began = Instant::now();
//! let busy = HeavyHitters::new(began);
//! let noted = Noted { prefix: Some(b"/registry/pods/"), user: "", client: "10.0.0.7", bytes: 900, took: Duration::from_millis(1) };
//! for second in 0..600 {
//!     busy.note(&noted, 64, began + Duration::from_secs(second));
//! }
//! let top = busy.top(Subject::Prefix, Measure::Requests, began + Duration::from_secs(600));
//! assert_eq!(top[0].name, b"/registry/pods/");
//! assert!((60.0..68.0).contains(&top[0].per_second));
//! ```

use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Number of names that each list keeps.
pub const PLACES: usize = 128;
/// Maximum number of names that are returned from a list.
pub const TOLD: usize = 20;
/// Minimum share of the total that a name must certainly have to be returned by [`HeavyHitters::certain`]. A
/// name with at least this share plus 1/[`PLACES`] is always returned if it was seen often enough.
pub const SHARE: f64 = 0.01;
/// Minimum number of samples with a name for it to be returned by [`HeavyHitters::certain`]. The number
/// decays as amounts do, so a name with a constant rate needs about one sample in ten seconds.
pub const TIMES: f64 = 8.0;
/// Time in which a counted amount decays to one half.
pub const HALF_LIFE: Duration = Duration::from_secs(60);
/// Maximum length of a name in bytes; the rest is cut off.
pub const NAME_BYTES: usize = 128;
/// Amount below which a name is forgotten. A name falls below it about half an hour after its last request,
/// depending on its rate.
const FORGOTTEN: f64 = 1e-6;
/// Minimum time between two updates of the decaying amounts.
const STEP: Duration = Duration::from_secs(1);

/// Kind of the names in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    /// Prefixes of keys; see [`prefix_of`].
    Prefix,
    /// Users, if authentication is enabled.
    User,
    /// Client addresses.
    Client,
}

/// Amount by which a list is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measure {
    /// Number of requests.
    Requests,
    /// Bytes of requests and responses.
    Bytes,
    /// Seconds from the arrival of requests until their responses.
    Time,
}

impl Subject {
    /// All subjects.
    pub const ALL: [Subject; 3] = [Subject::Prefix, Subject::User, Subject::Client];

    /// Name of the subject in metrics and on pages.
    pub fn name(self) -> &'static str {
        ["prefix", "user", "client"][self as usize]
    }
}

impl Measure {
    /// All measures.
    pub const ALL: [Measure; 3] = [Measure::Requests, Measure::Bytes, Measure::Time];

    /// Name of the measure in metrics and on pages.
    pub fn name(self) -> &'static str {
        ["requests", "bytes", "seconds"][self as usize]
    }
}

/// A sampled request, after it was answered.
#[derive(Clone, Copy, Debug)]
pub struct Noted<'a> {
    /// Prefix of the request's key; `None` if it has no key, or was refused and so is no load on the key.
    pub prefix: Option<&'a [u8]>,
    /// User of the request; empty if there is none.
    pub user: &'a str,
    /// Address of the client.
    pub client: &'a str,
    /// Bytes of the request and its response.
    pub bytes: u64,
    /// Time from the arrival of the request until its response.
    pub took: Duration,
}

/// A name in a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Heavy {
    /// The prefix, user or address, truncated to [`NAME_BYTES`] bytes.
    pub name: Vec<u8>,
    /// Rate over the last minutes: requests, bytes, or seconds of request time, per second.
    pub per_second: f64,
    /// Upper bound for the part of `per_second` that other names have caused.
    pub error: f64,
}

struct Place {
    hash: u64,
    name: Box<[u8]>,
    amount: f64,
    error: f64,
    /// Number of samples with the name since it entered the list. It decays like the amount.
    times: f64,
}

/// One list of names.
#[derive(Default)]
struct Sketch {
    places: Vec<Place>,
    /// Total amount of all names, including those that are not in the list.
    amount: f64,
}

impl Sketch {
    fn add(&mut self, hash: u64, name: &[u8], amount: f64) {
        if amount <= 0.0 {
            return;
        }
        self.amount += amount;
        if let Some(place) = self.places.iter_mut().find(|place| place.hash == hash && *place.name == *name) {
            place.amount += amount;
            place.times += 1.0;
            return;
        }
        let new = |error| Place { hash, name: name.into(), amount: error + amount, error, times: 1.0 };
        if self.places.len() < PLACES {
            self.places.push(new(0.0));
        } else if let Some(least) = self.places.iter_mut().min_by(|a, b| a.amount.total_cmp(&b.amount)) {
            // Replace the name with the least amount. The list no longer knows what the new name caused
            // before: anything from nothing to the replaced amount. So the new name starts with the replaced
            // amount, and its `error` records that its amount may be too large by that much.
            *least = new(least.amount);
        }
    }

    fn fade(&mut self, factor: f64) {
        self.amount *= factor;
        for place in &mut self.places {
            place.amount *= factor;
            place.error *= factor;
            place.times *= factor;
        }
        self.places.retain(|place| place.amount >= FORGOTTEN);
    }
}

struct State {
    /// The lists, indexed by [`Subject`] and then by [`Measure`].
    sketches: [[Sketch; 3]; 3],
    faded: Instant,
}

impl State {
    fn fade(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.faded);
        if passed < STEP {
            return;
        }
        self.faded = now;
        let factor = (-passed.as_secs_f64() / HALF_LIFE.as_secs_f64()).exp2();
        self.sketches.iter_mut().flatten().for_each(|sketch| sketch.fade(factor));
    }
}

/// All nine lists of a member. Together they hold at most nine times [`PLACES`] names, about 200 kB.
pub struct HeavyHitters {
    state: Mutex<State>,
    hashes: RandomState,
}

impl std::fmt::Debug for HeavyHitters {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HeavyHitters").finish_non_exhaustive()
    }
}

impl HeavyHitters {
    /// Returns empty lists.
    pub fn new(now: Instant) -> HeavyHitters {
        let state = State { sketches: Default::default(), faded: now };
        HeavyHitters { state: Mutex::new(state), hashes: RandomState::new() }
    }

    /// Counts a sampled request, which stands for `weight` requests.
    pub fn note(&self, noted: &Noted<'_>, weight: u32, now: Instant) {
        let weight = f64::from(weight);
        let amounts = [weight, weight * noted.bytes as f64, weight * noted.took.as_secs_f64()];
        let names = [
            noted.prefix,
            (!noted.user.is_empty()).then_some(noted.user.as_bytes()),
            Some(noted.client.as_bytes()),
        ];
        // Skip this sample if another thread is counting one now, because a request must never wait here.
        let mut state = match self.state.try_lock() {
            Ok(state) => state,
            Err(TryLockError::Poisoned(state)) => state.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        state.fade(now);
        for (sketches, name) in state.sketches.iter_mut().zip(names) {
            let Some(name) = name else { continue };
            let name = &name[..name.len().min(NAME_BYTES)];
            let hash = self.hashes.hash_one(name);
            for (sketch, amount) in sketches.iter_mut().zip(amounts) {
                sketch.add(hash, name, amount);
            }
        }
    }

    /// Returns the names with the largest amounts, the largest first; at most [`TOLD`].
    pub fn top(&self, subject: Subject, measure: Measure, now: Instant) -> Vec<Heavy> {
        self.told(subject, measure, now, 0.0, 0.0)
    }

    /// Returns up to [`TOLD`] of the names with the largest amounts, only those that certainly have the share
    /// [`SHARE`] of the total and were seen [`TIMES`] times.
    pub fn certain(&self, subject: Subject, measure: Measure, now: Instant) -> Vec<Heavy> {
        self.told(subject, measure, now, SHARE, TIMES)
    }

    fn told(&self, subject: Subject, measure: Measure, now: Instant, share: f64, times: f64) -> Vec<Heavy> {
        // At a constant rate, the decaying amount approaches the rate times this number of seconds, so the
        // rate is the amount divided by it.
        let seconds = HALF_LIFE.as_secs_f64() / std::f64::consts::LN_2;
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.fade(now);
        let sketch = &state.sketches[subject as usize][measure as usize];
        let enough = sketch.amount * share;
        let mut all: Vec<Heavy> = sketch
            .places
            .iter()
            .filter(|place| place.amount - place.error >= enough && place.times >= times)
            .map(|place| Heavy {
                name: place.name.to_vec(),
                per_second: place.amount / seconds,
                error: place.error / seconds,
            })
            .collect();
        drop(state);
        all.sort_by(|a, b| b.per_second.total_cmp(&a.per_second).then_with(|| a.name.cmp(&b.name)));
        all.truncate(TOLD);
        all
    }
}

/// Returns the prefix that a key shares with similar keys: the key up to the last of its first three slashes,
/// where a slash at the very end does not count. So `/registry/pods/default/web` has the prefix
/// `/registry/pods/`, and `/registry/pods` has `/registry/`. Returns the whole key if it has no such slash,
/// or only one as its first byte. The result has at most [`NAME_BYTES`] bytes.
pub fn prefix_of(key: &[u8]) -> &[u8] {
    let mut end = None;
    let slashes = key.iter().take(NAME_BYTES).enumerate().filter(|(_, byte)| **byte == b'/');
    for (at, _) in slashes.take(3) {
        if at + 1 < key.len() {
            end = Some(at + 1);
        }
    }
    &key[..end.filter(|end| *end > 1).unwrap_or(key.len()).min(NAME_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(prefix: &[u8], bytes: u64) -> Noted<'_> {
        Noted { prefix: Some(prefix), user: "", client: "10.0.0.1", bytes, took: Duration::from_millis(2) }
    }

    #[test]
    fn keys_stand_for_others_like_them() {
        for (key, prefix) in [
            ("/registry/pods/default/web", "/registry/pods/"),
            ("/registry/pods/", "/registry/"),
            ("/registry/pods", "/registry/"),
            ("/service/batman/leader", "/service/batman/"),
            ("config/a", "config/"),
            ("config", "config"),
            ("/config", "/config"),
            ("/", "/"),
            ("//", "//"),
            ("", ""),
        ] {
            assert_eq!(prefix_of(key.as_bytes()), prefix.as_bytes(), "{key}");
        }
        assert_eq!(prefix_of(&[7; 4096]).len(), NAME_BYTES);
    }

    #[test]
    fn what_takes_more_than_its_share_is_told_however_many_others_there_are() {
        let now = Instant::now();
        let busy = HeavyHitters::new(now);
        for n in 0..100_000u32 {
            // One request in 50 has the prefix `/hot/`, one in 50 the prefix `/large/`, and each other prefix
            // occurs once.
            match n % 50 {
                0 => busy.note(&noted(b"/hot/", 10), 1, now),
                1 => busy.note(&noted(b"/large/", 1_000_000), 1, now),
                _ => busy.note(&noted(format!("/cold/{n}/").as_bytes(), 10), 1, now),
            }
        }
        let seconds = HALF_LIFE.as_secs_f64() / std::f64::consts::LN_2;
        for measure in Measure::ALL {
            let top = busy.top(Subject::Prefix, measure, now);
            assert_eq!(top.len(), TOLD);
            let certain = busy.certain(Subject::Prefix, measure, now);
            assert_eq!(certain.len(), [2, 1, 2][measure as usize], "none that came once: {certain:?}");
            let all: Vec<_> = top.iter().map(|heavy| heavy.name.clone()).collect();
            assert!(all.contains(&b"/large/".to_vec()), "{measure:?}: {top:?}");
            let hot = top.iter().find(|heavy| heavy.name == b"/hot/");
            if measure == Measure::Bytes {
                assert_eq!(top[0].name, b"/large/");
            } else if let Some(hot) = hot {
                let exact = 2_000.0 * [1.0, 0.0, 0.002][measure as usize] / seconds;
                assert!(
                    hot.per_second * 1.000_001 >= exact && hot.per_second - hot.error <= exact * 1.000_001,
                    "{measure:?}: {hot:?}"
                );
            } else {
                panic!("{measure:?}: {top:?}");
            }
        }
        assert_eq!(busy.top(Subject::Client, Measure::Requests, now).len(), 1);
        assert!(busy.top(Subject::User, Measure::Requests, now).is_empty(), "there are no users");
    }

    #[test]
    fn keys_that_each_come_once_are_not_certain() {
        let now = Instant::now();
        let busy = HeavyHitters::new(now);
        let told = |from: u32| {
            for n in from..from + 1_000 {
                busy.note(&noted(format!("session:{n}").as_bytes(), 10), 64, now);
            }
            busy.certain(Subject::Prefix, Measure::Requests, now)
        };
        assert!((0..50).all(|turn| told(turn * 1_000).is_empty()));
    }

    #[test]
    fn a_key_that_comes_once_is_not_certain_however_little_comes_beside_it() {
        let began = Instant::now();
        let busy = HeavyHitters::new(began);
        // Each iteration is one second, and each sample stands for 64 requests. Each of these names occurs
        // once.
        for second in 0..600 {
            let now = began + Duration::from_secs(second);
            busy.note(&noted(format!("session:{second}").as_bytes(), 10), 64, now);
            // Add large requests. Each is more than a hundredth of the decayed total of bytes, but its name
            // also occurs only once.
            busy.note(&noted(format!("token:{second}").as_bytes(), 10_000_000), 64, now);
            // A name in about a tenth of the samples must be found.
            if second % 5 == 0 {
                busy.note(&noted(b"/hot/", 10), 64, now);
            }
        }
        let now = began + Duration::from_secs(600);
        for measure in Measure::ALL {
            let certain = busy.certain(Subject::Prefix, measure, now);
            let names: Vec<_> = certain.iter().map(|heavy| &*heavy.name).collect();
            let expected: &[&[u8]] = if measure == Measure::Bytes { &[] } else { &[b"/hot/"] };
            assert_eq!(names, expected, "{measure:?}");
        }
        assert_eq!(busy.certain(Subject::Client, Measure::Requests, now).len(), 1);
    }

    #[test]
    fn what_was_busy_fades_and_is_forgotten() {
        let now = Instant::now();
        let busy = HeavyHitters::new(now);
        busy.note(&noted(b"/then/", 1), 64, now);
        let rate = |after| {
            let top = busy.top(Subject::Prefix, Measure::Requests, now + after);
            top.first().map(|heavy| heavy.per_second)
        };
        let first = rate(Duration::ZERO).expect("it is told");
        let later = rate(HALF_LIFE).expect("it is told");
        assert!((later / first - 0.5).abs() < 0.01, "{first} {later}");
        assert_eq!(rate(HALF_LIFE * 40), None);
        // A time before the last one is ignored, so nothing decays and nothing panics.
        busy.note(&noted(b"/now/", 1), 1, now);
        assert_eq!(busy.top(Subject::Prefix, Measure::Requests, now).len(), 1);
    }

    #[test]
    fn long_names_are_cut() {
        let now = Instant::now();
        let busy = HeavyHitters::new(now);
        let long = "x".repeat(100_000);
        let one = Noted {
            prefix: Some(long.as_bytes()),
            user: &long,
            client: &long,
            bytes: 1,
            took: Duration::ZERO,
        };
        busy.note(&one, 1, now);
        for subject in Subject::ALL {
            assert_eq!(busy.top(subject, Measure::Requests, now)[0].name.len(), NAME_BYTES);
            assert!(busy.top(subject, Measure::Time, now).is_empty(), "it took no time");
        }
    }
}
