//! Collects the flags that are set by arguments, environment or configuration file, in [`Settings`]. The
//! syntax of arguments is that of Go's `flag` package, and the rules for the environment are etcd's.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::feature_gate::{self, Effect, FeatureGate, FeatureGates};
use super::flag::{Flag, FlagRow, Kind, Status, env_name};
use super::refusal::Refusal;
use super::table::{self, FLAGS, OLD_SPELLINGS, OldSpelling, Successor, find_flag, find_old_spelling};
use cli::go::{ValueError, nanoseconds, quote};
use cli::{FlagValue, Nanoseconds, Value};
use telemetry::logging::{Entry, Level};

/// Variable that scripts set on architectures that etcd does not support. It belongs to no flag and is
/// ignored, without the warning for unknown variables.
const UNSUPPORTED_ARCH: &str = "ETCD_UNSUPPORTED_ARCH";
/// Name of the variable that would belong to `--version`. As in etcd, this flag cannot be set by the
/// environment.
const VERSION: &str = "ETCD_VERSION";

/// The flags that were set, by name.
#[derive(Debug)]
pub(super) struct Settings {
    given: BTreeMap<&'static str, Given>,
    /// The values of all flags by name: the value that was set, otherwise the default in the flag table.
    values: BTreeMap<&'static str, Value>,
    /// Feature gates that were set through their old `--experimental-…` flags, by the name of the gate.
    old_gates: BTreeMap<&'static str, OldGate>,
    /// Values of `allowed-cn` and `skip-client-san-verification` from the block for clients in the
    /// configuration file. No flags exist for these settings.
    pub(super) client_allowed_cns: Vec<String>,
    pub(super) client_skips_san: bool,
    /// True if the settings come from a configuration file.
    pub(super) is_from_file: bool,
    pub(super) warnings: Vec<Entry>,
    pub(super) notices: Vec<Entry>,
}

#[derive(Debug)]
struct Given {
    flag: &'static FlagRow,
    text: String,
    /// Name as the operator wrote it: `--name`, or the environment variable.
    spelling: String,
}

#[derive(Debug)]
struct OldGate {
    gate: FeatureGate,
    on: bool,
    spelling: String,
}

/// A name that can be set: a flag, or an old spelling.
#[derive(Clone, Copy)]
enum Target {
    Flag(&'static FlagRow),
    Old(&'static OldSpelling),
}

/// Action that the arguments request.
#[derive(PartialEq, Eq)]
pub(super) enum Asked {
    Help,
    Run,
}

impl Settings {
    /// Returns settings in which every flag has its default.
    pub(super) fn new() -> Settings {
        Settings {
            given: BTreeMap::new(),
            values: FLAGS.iter().map(|flag| (flag.name, default_of(flag))).collect(),
            old_gates: BTreeMap::new(),
            client_allowed_cns: Vec::new(),
            client_skips_san: false,
            is_from_file: false,
            warnings: Vec::new(),
            notices: Vec::new(),
        }
    }

    pub(super) fn read_arguments(&mut self, args: &[String]) -> Result<Asked, Refusal> {
        let mut rest = args.iter();
        let stray = loop {
            let Some(arg) = rest.next() else { break None };
            let Some(body) = arg.strip_prefix('-').filter(|body| !body.is_empty()) else { break Some(arg) };
            if arg == "--" {
                break rest.next();
            }
            let body = body.strip_prefix('-').unwrap_or(body);
            if body.is_empty() || body.starts_with(['-', '=']) {
                return Err(Refusal::Syntax(format!("bad flag syntax: {arg}")));
            }
            let (name, value) = match body.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (body, None),
            };
            let Some(target) = Target::find(name) else {
                if name == "help" || name == "h" {
                    return Ok(Asked::Help);
                }
                let near = cli::near_names(name, FLAGS.iter().map(|flag| flag.name));
                let near: Vec<String> = near.into_iter().map(|name| format!("--{name}")).collect();
                let near: Vec<&str> = near.iter().map(String::as_str).collect();
                let question = cli::did_you_mean(&near);
                let question = question.trim_end();
                return Err(Refusal::Syntax(format!("flag provided but not defined: -{name}{question}")));
            };
            let value = match value {
                Some(value) => value,
                None if target.kind().is_switch() => "true",
                None => match rest.next() {
                    Some(value) => value,
                    None => return Err(Refusal::Syntax(format!("flag needs an argument: -{name}"))),
                },
            };
            self.set(target, value, format!("--{name}")).map_err(|reason| match target.kind() {
                Kind::Bool => {
                    Refusal::Syntax(format!("invalid boolean value {} for -{name}: {reason}", quote(value)))
                }
                _ => Refusal::Syntax(format!("invalid value {} for flag -{name}: {reason}", quote(value))),
            })??;
        };
        match stray {
            Some(arg) => Err(Refusal::invalid(format!("{} is not a valid flag", quote(arg)))),
            None => Ok(Asked::Run),
        }
    }

    /// Discards the flags that were set, because the configuration file replaces them. Warns about each flag
    /// and variable that has no effect for this reason.
    pub(super) fn give_way(&mut self, env: &[(String, String)]) {
        let flags = self.given.values().map(|given| given.spelling.clone());
        let gates = self.old_gates.values().map(|gate| gate.spelling.clone());
        let known: BTreeSet<String> = Target::all().map(Target::env).collect();
        let variables =
            env.iter().map(|(variable, _)| variable).filter(|variable| known.contains(*variable)).cloned();
        let file = table::CONFIG_FILE.row();
        let is_file = |name: &str| name.trim_start_matches('-') == file.name || name == file.env();
        let ignored: Vec<String> =
            flags.chain(gates).chain(variables).filter(|name| !is_file(name)).collect();
        *self = Settings { is_from_file: true, ..Settings::new() };
        if !ignored.is_empty() {
            let line = "flags and environment variables are ignored because a configuration file is used";
            self.warnings.push(Entry::new(Level::Warn, line).with("ignored", ignored.join(", ")));
        }
    }

    /// Returns the syntax of a key of the configuration file, and the flag that the key sets; the flag is
    /// `None` if the key is the old spelling of a feature gate.
    pub(super) fn kind_of_key(&self, key: &str) -> Option<(Option<&'static FlagRow>, Kind)> {
        let target = Target::find(key).filter(|target| target.kind() != Kind::Ignored)?;
        let flag = match target {
            Target::Flag(flag) => Some(flag),
            Target::Old(OldSpelling { successor: Successor::Flag(flag), .. }) => Some(flag),
            Target::Old(_) => None,
        };
        Some((flag, target.kind()))
    }

    /// Sets a key of the configuration file for which [`Settings::kind_of_key`] returns a syntax. The errors
    /// are those of [`Settings::set`].
    pub(super) fn set_key(&mut self, key: &str, value: &str) -> Result<Result<(), Refusal>, ValueError> {
        match Target::find(key) {
            Some(target) => self.set(target, value, key.to_owned()),
            None => Ok(Ok(())),
        }
    }

    pub(super) fn read_environment(&mut self, env: &[(String, String)]) -> Result<(), Refusal> {
        let targets: BTreeMap<String, Target> = Target::all().map(|target| (target.env(), target)).collect();
        let on_command_line = self.variables_shadowed();
        let mut conflicts = Vec::new();
        let mut problem = None;
        for (variable, value) in env.iter().filter(|(variable, _)| variable.starts_with("ETCD_")) {
            if on_command_line.contains(variable) {
                conflicts.push(variable.as_str());
                continue;
            }
            match (variable.as_str(), targets.get(variable)) {
                (VERSION, _) => self.warnings.push(
                    Entry::new(Level::Warn, "cannot set special environment variable")
                        .with("key", VERSION)
                        .with("value", value),
                ),
                (UNSUPPORTED_ARCH, _) => self.notices.push(
                    Entry::new(
                        Level::Info,
                        "environment variable has no effect: all architectures are supported",
                    )
                    .with("environment-variable", UNSUPPORTED_ARCH),
                ),
                (_, None) => self.warnings.push(
                    Entry::new(Level::Warn, "unrecognized environment variable")
                        .with("environment-variable", format!("{variable}={value}")),
                ),
                (_, Some(_)) if value.is_empty() => self.warnings.push(
                    Entry::new(Level::Warn, "environment variable is empty and was not used")
                        .with("environment-variable", variable),
                ),
                (_, Some(target)) => match self.set(*target, value, variable.clone()) {
                    Ok(outcome) => {
                        outcome?;
                        self.notices.push(
                            Entry::new(Level::Info, "recognized and used environment variable")
                                .with("variable-name", variable)
                                .with("variable-value", value),
                        );
                    }
                    Err(reason) => {
                        problem = Some(format!("invalid value {} for {variable}: {reason}", quote(value)));
                    }
                },
            }
        }
        // Report a conflict before an invalid value, as etcd does.
        if let Some(variable) = conflicts.first() {
            let text = "conflicting environment variable is shadowed by corresponding command-line flag \
                        (either unset environment variable or disable flag))";
            let entry = Entry::new(Level::Fatal, text).with("environment-variable", *variable);
            return Err(Refusal::Invalid(vec![entry]));
        }
        match problem {
            Some(error) => Err(Refusal::invalid(error)),
            None => Ok(()),
        }
    }

    /// Returns the environment variables of everything that was set so far.
    fn variables_shadowed(&self) -> Vec<String> {
        let flags = self.given.values().map(|given| given.spelling.as_str());
        let gates = self.old_gates.values().map(|gate| gate.spelling.as_str());
        flags.chain(gates).map(|spelling| env_name(spelling.trim_start_matches('-'))).collect()
    }

    /// Sets a flag. The outer error says why a value is malformed. The inner error is returned if a flag and
    /// its old spelling are both set.
    fn set(
        &mut self,
        target: Target,
        value: &str,
        spelling: String,
    ) -> Result<Result<(), Refusal>, ValueError> {
        let parsed = target.kind().parse(value)?;
        let flag = match target {
            Target::Flag(flag) => flag,
            Target::Old(old) => {
                self.warnings.push(
                    Entry::new(Level::Warn, "deprecated flag is set; use its successor")
                        .with("flag", spelling.as_str())
                        .with("successor", target.successor_text(value)),
                );
                match &old.successor {
                    Successor::Flag(flag) => flag,
                    Successor::Gate(gate) => {
                        let on = parsed == Value::Bool(true);
                        self.old_gates.insert(gate.name, OldGate { gate: *gate, on, spelling });
                        return Ok(Ok(()));
                    }
                }
            }
        };
        if let Some(other) = self.given.get(flag.name).filter(|other| other.spelling != spelling)
            && !same_name(&other.spelling, &spelling)
        {
            let text =
                format!("cannot specify both {} and {spelling}: they are the same option", other.spelling);
            return Ok(Err(Refusal::invalid(text)));
        }
        let text = value.to_string();
        self.values.insert(flag.name, parsed);
        self.given.insert(flag.name, Given { flag, text, spelling });
        Ok(Ok(()))
    }

    pub(super) fn refuse_unsupported(&self) -> Result<(), Refusal> {
        if self.get(table::DISCOVERY_FALLBACK) == "proxy" {
            let text = "v2 proxy is deprecated, and --discovery-fallback can't be configured as \"proxy\"";
            return Err(Refusal::invalid(text));
        }
        let mut refused = Vec::new();
        for given in self.given.values() {
            let Status::NotYet(honoured) = given.flag.status else { continue };
            if given.flag.kind.parse(honoured).ok().as_ref() != self.values.get(given.flag.name) {
                let value = quote(&given.text);
                let left = if honoured.is_empty() { "left out".to_string() } else { quote(honoured) };
                refused.push(format!(
                    "{}={value} is not supported by this version of Mainstay: it can only be {left}",
                    given.spelling
                ));
            }
        }
        if refused.is_empty() { Ok(()) } else { Err(Refusal::invalid(refused.join("; "))) }
    }

    pub(super) fn resolve_gates(&mut self) -> Result<FeatureGates, Refusal> {
        let mut gates = feature_gate::parse(self.get(table::FEATURE_GATES))
            .map_err(|error| Refusal::invalid(error.to_string()))?;
        for (name, old) in &self.old_gates {
            if gates.is_set(&old.gate) {
                let (spelling, on, new_on) = (&old.spelling, old.on, gates.is_enabled(&old.gate));
                return Err(Refusal::invalid(format!(
                    "cannot specify both flags: {spelling}={on} and --feature-gates={name}={new_on} at the same \
                     time, please just use --feature-gates={name}={new_on}"
                )));
            }
            gates.insert(&old.gate, old.on);
        }
        if gates.is_enabled(&feature_gate::LEASE_CHECKPOINT_PERSIST)
            && !gates.is_enabled(&feature_gate::LEASE_CHECKPOINT)
        {
            let text =
                "enabling feature gate LeaseCheckpointPersist requires enabling feature gate LeaseCheckpoint";
            return Err(Refusal::invalid(text));
        }
        for (gate, on) in gates.set() {
            match gate.effect {
                Effect::Implemented => {}
                Effect::NoDifference(why) => self.notices.push(
                    Entry::new(Level::Info, "feature gate has no effect")
                        .with("feature-gate", format!("{}={on}", gate.name))
                        .with("reason", why),
                ),
            }
        }
        Ok(gates)
    }

    /// Adds a notice or warning for each flag that was set and has no effect.
    pub(super) fn note_statuses(&mut self) {
        for given in self.given.values() {
            match given.flag.status {
                Status::Implemented | Status::NotYet(_) => {}
                Status::Legacy(text) => {
                    self.warnings.push(
                        Entry::new(Level::Warn, text)
                            .with("flag-name", given.spelling.as_str())
                            .with("effect", "none"),
                    );
                }
                Status::NoEffect(why) => self.notices.push(
                    Entry::new(Level::Info, "flag has no effect")
                        .with("flag-name", given.spelling.as_str())
                        .with("value", given.text.as_str())
                        .with("reason", why),
                ),
            }
        }
    }

    /// Returns true if the flag was set in any way.
    pub(super) fn is_set<T>(&self, flag: Flag<T>) -> bool {
        self.given.contains_key(flag.row().name)
    }

    /// Returns the value of a flag: the value that was set, otherwise the default. As in etcd, the default is
    /// also returned if a list of URLs was set to an empty value.
    pub(super) fn get<T: FlagValue>(&self, flag: Flag<T>) -> T::Ref<'_> {
        let row = flag.row();
        T::of(self.values.get(row.name), row.default)
    }

    /// Returns the value of a flag whose empty value means "none", such as the path of a file; `None` if the
    /// value is empty.
    pub(super) fn non_empty(&self, flag: Flag<String>) -> Option<&str> {
        Some(self.get(flag)).filter(|text| !text.is_empty())
    }

    /// Returns the words of a list that was set; an empty list if the flag was not set.
    pub(super) fn words(&self, flag: Flag<Vec<String>>) -> Vec<String> {
        if self.is_set(flag) { self.get(flag).to_vec() } else { Vec::new() }
    }
}

/// Returns the value of a duration flag.
///
/// # Errors
///
/// Returns an error if the value is negative.
pub(super) fn duration(settings: &Settings, flag: Flag<Nanoseconds>) -> Result<Duration, Refusal> {
    let (name, Nanoseconds(nanos)) = (flag.row().name, settings.get(flag));
    u64::try_from(nanos).map(Duration::from_nanos).map_err(|_| {
        Refusal::invalid(format!("--{name} must not be negative (set to {})", nanoseconds(nanos)))
    })
}

impl Target {
    fn find(name: &str) -> Option<Target> {
        find_flag(name).map(Target::Flag).or_else(|| find_old_spelling(name).map(Target::Old))
    }

    fn all() -> impl Iterator<Item = Target> {
        FLAGS.iter().map(Target::Flag).chain(OLD_SPELLINGS.iter().map(Target::Old))
    }

    fn env(self) -> String {
        match self {
            Target::Flag(flag) => flag.env(),
            Target::Old(old) => env_name(old.name),
        }
    }

    fn kind(self) -> Kind {
        match self {
            Target::Flag(flag) => flag.kind,
            Target::Old(OldSpelling { successor: Successor::Flag(flag), .. }) => flag.kind,
            Target::Old(OldSpelling { successor: Successor::Gate(_), .. }) => Kind::Bool,
        }
    }

    /// Returns the current flag that has the same effect as an old spelling with the value `value`, for a
    /// warning.
    fn successor_text(self, value: &str) -> String {
        match self {
            Target::Flag(flag) => format!("--{}", flag.name),
            Target::Old(OldSpelling { successor: Successor::Flag(flag), .. }) => format!("--{}", flag.name),
            Target::Old(OldSpelling { successor: Successor::Gate(gate), .. }) => {
                format!("--feature-gates={}={value}", gate.name)
            }
        }
    }
}

fn default_of(flag: &FlagRow) -> Value {
    flag.kind.parse(flag.default).unwrap_or_else(|error| unreachable!("default of --{}: {error}", flag.name))
}

/// Returns true if two spellings, such as `-x`, `--x` and `ETCD_X`, mean the same name.
fn same_name(a: &str, b: &str) -> bool {
    let variable = |spelling: &str| {
        if spelling.starts_with('-') {
            env_name(spelling.trim_start_matches('-'))
        } else {
            spelling.to_string()
        }
    };
    variable(a) == variable(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// If the type of a flag's constant did not fit the kind of the flag, reading the flag would silently
    /// return the default.
    #[test]
    fn a_value_of_every_kind_is_read_with_the_type_of_its_key() {
        let mut settings = Settings::new();
        let words = [
            "--name=a",
            "--pre-vote=false",
            "--max-txn-ops=7",
            "--max-concurrent-streams=8",
            "--quota-backend-bytes=-9",
            "--raft-read-timeout=-1ns",
            "--listen-metrics-urls=http://127.0.0.1:1",
            "--log-outputs=b,a",
            "--cipher-suites=b,a",
            "--cors=http://a:1",
            "--api-version=3.5",
            "--v2-deprecation=gone",
            "--feature-gates=AllAlpha=true",
            "--vv",
        ]
        .map(str::to_owned);
        assert!(settings.read_arguments(&words) == Ok(Asked::Run));
        assert_eq!(settings.get(table::NAME), "a");
        assert!(!settings.get(table::PRE_VOTE));
        assert_eq!(settings.get(table::MAX_TXN_OPS), 7);
        assert_eq!(settings.get(table::MAX_CONCURRENT_STREAMS), 8);
        assert_eq!(settings.get(table::QUOTA_BACKEND_BYTES), -9);
        assert_eq!(settings.get(table::RAFT_READ_TIMEOUT), Nanoseconds(-1));
        assert_eq!(settings.get(table::LISTEN_METRICS_URLS)[0].as_str(), "http://127.0.0.1:1");
        assert_eq!(settings.get(table::LOG_OUTPUTS), ["a", "b"]);
        assert_eq!(settings.get(table::CIPHER_SUITES), ["b", "a"]);
        assert_eq!(settings.get(table::CORS), ["http://a:1"]);
        assert_eq!(settings.get(table::API_VERSION), "3.5");
        assert_eq!(settings.get(table::V2_DEPRECATION), ["gone"]);
        assert_eq!(settings.get(table::FEATURE_GATES), "AllAlpha=true");
        assert_eq!(settings.get(table::VV), "true");
    }
}
