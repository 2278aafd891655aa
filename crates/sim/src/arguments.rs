//! Parses the command line of the simulator.

use std::time::Duration;

use mainstay_sim::Options;
use mainstay_sim::profile::{Fault, Work};
use planted::Bug;

/// Usage text that `--help` prints.
pub const USAGE: &str = "\
mainstay-sim: simulates clusters of Mainstay; a seed decides everything

  mainstay-sim [--seeds N] [--from S] [--jobs J] [--minutes M] [--keep-going]
        runs seeds S, S+1, ... in J processes until N are done or the time is over
  mainstay-sim --seed S [--trace] [--until EVENTS]
        runs one seed, and prints what happens
  mainstay-sim --seed S --minimise
        looks for the fewest faults and the least work with which the seed still fails
  mainstay-sim --hunt [--seeds N] [--seconds S] [--jobs J] [--bug NAME]
        plants each bug (or one) and prints how many seeds it takes to be found, N and S seconds at most
  mainstay-sim --smoke
        plants some bugs that are found soon, and exits with 1 if one is not
  mainstay-sim --bugs
        lists the bugs that can be planted

  --without A,B        faults that do not happen
  --with A,B           faults that happen whatever the seed says
  --no-work A,B        work that clients do not do
  --do-work A,B        work that clients do whatever the seed says
  --members N          members at the beginning
  --observers N        observers, 0 to 4
  --chaos SECONDS      how long faults happen
  --clients N          clients at most
  --bug NAME           plants a bug (needs a build with --features planted)

Exits with 1 if something did not hold.";

/// Largest value of `--observers`.
const OBSERVERS_MAX: usize = 4;

/// Action that the command line selects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Print the usage.
    Help,
    /// List the bugs.
    Bugs,
    /// Run one seed.
    One(u64),
    /// Run every `step`-th seed, starting with `from`. A process that runs many seeds starts children in this
    /// mode.
    Worker {
        /// First seed.
        from: u64,
        /// Distance from one seed to the next.
        step: u64,
    },
    /// Run many seeds, in child processes.
    Many,
    /// Shrink the failure of this seed: find the fewest faults and the least work with which it still fails.
    Minimise(u64),
    /// Hunt for planted bugs.
    Hunt,
    /// Hunt for the planted bugs that a run finds quickly.
    Smoke,
}

/// Parsed command line.
#[derive(Clone, Debug)]
pub struct Arguments {
    /// Action to take.
    pub mode: Mode,
    /// Options for the run of each seed.
    pub options: Options,
    /// Number of seeds; `None` for the default of the mode.
    pub seeds: Option<u64>,
    /// First seed.
    pub from: u64,
    /// Number of child processes that run seeds at the same time.
    pub jobs: u64,
    /// Time after which no more results are awaited; `None` for no limit.
    pub time: Option<Duration>,
    /// True to continue after the first failure.
    pub keep_going: bool,
    /// Bug to plant.
    pub bug: Option<Bug>,
}

fn number(name: &str, value: Option<String>) -> Result<u64, String> {
    let value = value.ok_or_else(|| format!("{name} needs a number"))?;
    value.parse().map_err(|_| format!("{name} needs a number, not {value:?}"))
}

fn kinds<K: Copy>(
    name: &str,
    value: Option<String>,
    all: &[K],
    name_of: impl Fn(K) -> &'static str,
) -> Result<Vec<K>, String> {
    let value = value.ok_or_else(|| format!("{name} needs a list"))?;
    value
        .split(',')
        .filter(|word| !word.is_empty())
        .map(|word| {
            all.iter().copied().find(|kind| name_of(*kind) == word).ok_or_else(|| {
                let known: Vec<&str> = all.iter().map(|kind| name_of(*kind)).collect();
                format!("{name} does not know {word:?}; it knows {}", known.join(","))
            })
        })
        .collect()
}

impl Arguments {
    /// Parses the command-line words after the program's name.
    pub fn parse(words: impl Iterator<Item = String>) -> Result<Arguments, String> {
        let mut arguments = Arguments {
            mode: Mode::Many,
            options: Options::default(),
            seeds: None,
            from: 0,
            jobs: 2,
            time: None,
            keep_going: false,
            bug: None,
        };
        let (mut seed, mut minimises, mut worker) = (None, false, None);
        let mut words = words;
        while let Some(word) = words.next() {
            let (name, given) = match word.split_once('=') {
                Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
                None => (word, None),
            };
            let mut value = || given.clone().or_else(|| words.next());
            match name.as_str() {
                "--help" | "-h" => arguments.mode = Mode::Help,
                "--bugs" => arguments.mode = Mode::Bugs,
                "--hunt" => arguments.mode = Mode::Hunt,
                "--smoke" => arguments.mode = Mode::Smoke,
                "--minimise" => minimises = true,
                "--keep-going" => arguments.keep_going = true,
                "--trace" => arguments.options.prints = true,
                "--seed" => seed = Some(number(&name, value())?),
                "--seeds" => arguments.seeds = Some(number(&name, value())?),
                "--from" => arguments.from = number(&name, value())?,
                "--jobs" => arguments.jobs = number(&name, value())?.max(1),
                "--minutes" => arguments.time = Some(Duration::from_secs(60 * number(&name, value())?)),
                "--seconds" => arguments.time = Some(Duration::from_secs(number(&name, value())?)),
                "--until" => arguments.options.until = Some(number(&name, value())?),
                "--chaos" => arguments.options.chaos = Some(number(&name, value())? * 1_000_000_000),
                "--clients" => {
                    arguments.options.clients_max =
                        Some(usize::try_from(number(&name, value())?).unwrap_or(1));
                }
                "--without" => {
                    arguments.options.without_faults = kinds(&name, value(), Fault::ALL, Fault::name)?;
                }
                "--with" => {
                    arguments.options.with_faults = kinds(&name, value(), Fault::ALL, Fault::name)?;
                }
                "--do-work" => arguments.options.with_work = kinds(&name, value(), Work::ALL, Work::name)?,
                "--members" => {
                    let members = usize::try_from(number(&name, value())?).unwrap_or(1);
                    arguments.options.members = Some(members.clamp(1, 9));
                }
                "--observers" => {
                    let observers = usize::try_from(number(&name, value())?).unwrap_or(0);
                    arguments.options.observers = Some(observers.min(OBSERVERS_MAX));
                }
                "--no-work" => arguments.options.without_work = kinds(&name, value(), Work::ALL, Work::name)?,
                "--worker" => worker = Some(number(&name, value())?),
                "--bug" => {
                    if !cfg!(feature = "planted") {
                        return Err(
                            "this build has no planted bugs: build it with --features planted".to_owned()
                        );
                    }
                    arguments.bug = kinds(&name, value(), Bug::ALL, Bug::name)?.first().copied();
                }
                _ => return Err(format!("there is no option {name}")),
            }
        }
        if let Some(step) = worker {
            arguments.mode = Mode::Worker { from: arguments.from, step };
        } else if let Some(seed) = seed {
            arguments.mode = if minimises { Mode::Minimise(seed) } else { Mode::One(seed) };
        }
        if matches!(arguments.mode, Mode::Hunt | Mode::Smoke) && !cfg!(feature = "planted") {
            return Err("this build has no planted bugs: build it with --features planted".to_owned());
        }
        Ok(arguments)
    }

    /// Returns the command-line words that reproduce these options.
    pub fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        let names: Vec<&str> = self.options.without_faults.iter().map(|fault| fault.name()).collect();
        if !names.is_empty() {
            words.push(format!("--without={}", names.join(",")));
        }
        let names: Vec<&str> = self.options.with_faults.iter().map(|fault| fault.name()).collect();
        if !names.is_empty() {
            words.push(format!("--with={}", names.join(",")));
        }
        let names: Vec<&str> = self.options.with_work.iter().map(|work| work.name()).collect();
        if !names.is_empty() {
            words.push(format!("--do-work={}", names.join(",")));
        }
        if let Some(members) = self.options.members {
            words.push(format!("--members={members}"));
        }
        if let Some(observers) = self.options.observers {
            words.push(format!("--observers={observers}"));
        }
        let names: Vec<&str> = self.options.without_work.iter().map(|work| work.name()).collect();
        if !names.is_empty() {
            words.push(format!("--no-work={}", names.join(",")));
        }
        if let Some(chaos) = self.options.chaos {
            words.push(format!("--chaos={}", chaos / 1_000_000_000));
        }
        if let Some(clients) = self.options.clients_max {
            words.push(format!("--clients={clients}"));
        }
        if let Some(bug) = self.bug {
            words.push(format!("--bug={}", bug.name()));
        }
        words
    }

    /// Returns [`Arguments::words`] as one string that a user can type to repeat the run.
    pub fn again(&self) -> String {
        self.words().iter().map(|word| format!("{word} ")).collect()
    }
}
