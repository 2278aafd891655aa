//! Defines and parses the flags of the command line.

use std::path::PathBuf;

use crate::fault::Fault;

/// Kind of network that connects the members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NetworkKind {
    /// Each member in its own network namespace.
    Namespaces,
    /// All members on loopback addresses.
    Loopback,
}

/// Options of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Path of the server's binary; `None` to use the release build of Mainstay.
    pub server: Option<PathBuf>,
    /// Path of a second build; `None` if there is none. At each rolling restart, every member changes to the
    /// other build.
    pub second_build: Option<PathBuf>,
    /// Number of members: 1, 3 or 5.
    pub members: usize,
    /// Time in seconds for which clients send requests and faults are injected.
    pub seconds: u64,
    /// Seed of the schedule of faults and of the clients' requests; `None` to draw a random one.
    pub seed: Option<u64>,
    /// Seconds from the end of one fault to the next.
    pub every: f64,
    /// Faults that are named on the command line; `None` for all that are possible on this machine.
    pub faults: Option<Vec<Fault>>,
    /// Number of clients that read and write keys.
    pub clients: usize,
    /// Maximum number of operations per second of all clients together that read and write keys.
    pub rate: u64,
    /// Timeout of one operation, in milliseconds.
    pub timeout_ms: u64,
    /// Additional flags for every member.
    pub flags: Vec<String>,
    /// True to use TLS between members and with clients, with certificates on both sides.
    pub tls: bool,
    /// True to create users. In this case clients log in, and the permissions of some users change during the
    /// run.
    pub users: bool,
    /// Name of a bug that is planted in all members, to check that the oracle finds it; `None` for no bug.
    pub bug: Option<String>,
    /// Kind of network that connects the members; `None` for namespaces if the machine allows them, otherwise
    /// loopback.
    pub network: Option<NetworkKind>,
    /// True to copy the members' data directories to the output directory at the end of the run. Otherwise
    /// they are removed, even if there are violations.
    pub keep: bool,
    /// Directory for the results; `None` for a new one.
    pub out: Option<PathBuf>,
    /// True to print each fault to standard error when it is injected.
    pub verbose: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            server: None,
            second_build: None,
            members: 3,
            seconds: 60,
            seed: None,
            every: 4.0,
            faults: None,
            clients: 12,
            rate: 400,
            timeout_ms: 3000,
            flags: Vec::new(),
            tls: false,
            users: false,
            bug: None,
            network: None,
            keep: false,
            out: None,
            verbose: false,
        }
    }
}

/// Action that the command line requests.
#[derive(Clone, Debug, PartialEq)]
pub enum Invocation {
    /// Print the help text.
    Help,
    /// Run a cluster.
    Run(Box<Options>),
    /// Judge a recorded history in this file with the oracle.
    Judge(PathBuf),
}

/// A flag of the command line: its name, the placeholder for its value (empty if it takes none), and its help
/// text.
struct Flag {
    name: &'static str,
    value: &'static str,
    text: &'static str,
    set: fn(&mut Options, &str) -> Result<(), String>,
}

fn number<T>(text: &str, least: T, most: T) -> Result<T, String>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    match text.parse() {
        Ok(number) if number >= least && number <= most => Ok(number),
        _ => Err(format!("must be a number from {least} to {most}, not {text:?}")),
    }
}

fn path(text: &str) -> Result<Option<PathBuf>, String> {
    if text.is_empty() {
        return Err("must be a path that is not empty".to_owned());
    }
    Ok(Some(PathBuf::from(text)))
}

const FLAGS: &[Flag] = &[
    Flag {
        name: "server",
        value: "PATH",
        text: "the server's binary, Mainstay's or etcd's; default: mainstay beside this program, or in target/release",
        set: |o, v| path(v).map(|path| o.server = path),
    },
    Flag {
        name: "second-build",
        value: "PATH",
        text: "another build: rolling restarts switch members between the two",
        set: |o, v| path(v).map(|path| o.second_build = path),
    },
    Flag {
        name: "members",
        value: "N",
        text: "members of the cluster: 1, 3 or 5 (default 3)",
        set: |o, v| match v {
            "1" | "3" | "5" => number(v, 1, 5).map(|members| o.members = members),
            _ => Err(format!("must be 1, 3 or 5, not {v:?}")),
        },
    },
    Flag {
        name: "seconds",
        value: "N",
        text: "duration of load and faults (default 60)",
        set: |o, v| number(v, 1, 7 * 86_400).map(|seconds| o.seconds = seconds),
    },
    Flag {
        name: "seed",
        value: "N",
        text: "determines the faults, their times and the clients' requests (default: random)",
        set: |o, v| number(v, 0, u64::MAX).map(|seed| o.seed = Some(seed)),
    },
    Flag {
        name: "every",
        value: "SECONDS",
        text: "pause between the recovery of all members and the next fault (default 4)",
        set: |o, v| number(v, 0.1, 3600.0).map(|every| o.every = every),
    },
    Flag {
        name: "faults",
        value: "LIST",
        text: "comma-separated names, see below; -NAME excludes one; none: \"\" (default: all that this machine allows)",
        set: |o, v| Fault::parse_list(v).map(|faults| o.faults = Some(faults)),
    },
    Flag {
        name: "clients",
        value: "N",
        text: "clients that read and write keys, spread across the members (default 12)",
        set: |o, v| number(v, 1, 1000).map(|clients| o.clients = clients),
    },
    Flag {
        name: "rate",
        value: "N",
        text: "maximum operations per second of all these clients together (default 400)",
        set: |o, v| number(v, 1, 100_000).map(|rate| o.rate = rate),
    },
    Flag {
        name: "timeout",
        value: "MS",
        text: "timeout of one operation (default 3000)",
        set: |o, v| number(v, 10, 600_000).map(|timeout| o.timeout_ms = timeout),
    },
    Flag {
        name: "flags",
        value: "\"FLAGS\"",
        text: "further flags for every member, separated by spaces",
        set: |o, v| {
            o.flags.extend(v.split_whitespace().map(str::to_owned));
            Ok(())
        },
    },
    Flag {
        name: "tls",
        value: "",
        text: "clients and members use TLS with certificates on both sides; required for certificate faults",
        set: |o, _| {
            o.tls = true;
            Ok(())
        },
    },
    Flag {
        name: "users",
        value: "",
        text: "clients log in as users, by password or certificate, and the permissions of some change all the time",
        set: |o, _| {
            o.users = true;
            Ok(())
        },
    },
    Flag {
        name: "bug",
        value: "NAME",
        text: "plant a bug in all members; requires a server built with --features planted",
        set: |o, v| {
            o.bug = Some(v.to_owned());
            Ok(())
        },
    },
    Flag {
        name: "network",
        value: "KIND",
        text: "namespaces (needs root) or loopback (no faults of the network); default: namespaces if allowed",
        set: |o, v| {
            o.network = Some(match v {
                "namespaces" => NetworkKind::Namespaces,
                "loopback" => NetworkKind::Loopback,
                _ => return Err(format!("must be namespaces or loopback, not {v:?}")),
            });
            Ok(())
        },
    },
    Flag {
        name: "out",
        value: "DIR",
        text: "output directory, which must be empty or must not exist yet (default: torture-TIME in the working directory)",
        set: |o, v| path(v).map(|path| o.out = path),
    },
    Flag {
        name: "keep",
        value: "",
        text: "also keep the members' data directories",
        set: |o, _| {
            o.keep = true;
            Ok(())
        },
    },
    Flag {
        name: "verbose",
        value: "",
        text: "log each fault and its target to standard error",
        set: |o, _| {
            o.verbose = true;
            Ok(())
        },
    },
];

/// Returns the help text.
pub fn help() -> String {
    let mut out = String::from(
        "Runs a cluster of real processes under faults, records what clients see, and judges it.\n\n\
         Usage: mainstay-torture [FLAGS]\n\n\
         Example: ten minutes of five members, every fault, results in ./night\n  \
         mainstay-torture --members 5 --seconds 600 --out night\n\
         Example: without root, on the loopback, crashes and pauses only\n  \
         mainstay-torture --network loopback --faults kill,pause --seconds 30\n\nFlags:\n",
    );
    for flag in FLAGS {
        let usage = format!("--{} {}", flag.name, flag.value);
        out.push_str(&format!("  {usage:<22} {}\n", flag.text));
    }
    out.push_str("  --judge PATH           do not run, but judge a saved history.jsonl\n");
    out.push_str("  --help                 this text\n\nFaults:\n");
    for fault in Fault::ALL {
        out.push_str(&format!("  {:<22} {}\n", fault.name(), fault.text()));
    }
    out.push_str("\nGroups of faults:\n");
    for (name, faults) in Fault::groups() {
        let faults = if name == "all" { "every fault".to_owned() } else { faults.join(", ") };
        out.push_str(&format!("  {name:<22} {faults}\n"));
    }
    out.push_str(
        "\nResults, in the output directory: timeline.html (what failed when), report.json, history.jsonl, members' logs.\n\
         Exit code: 0 no violations; 1 violations were found; 2 wrong usage, or the run could not be set up; 3 this machine lacks something that the run needs.\n",
    );
    out
}

/// Parses the command line, without the program's name.
///
/// # Errors
/// Returns an error whose message describes the invalid argument.
pub fn parse(arguments: &[String]) -> Result<Invocation, String> {
    let mut options = Options::default();
    let mut rest = arguments.iter();
    while let Some(word) = rest.next() {
        if matches!(word.as_str(), "--help" | "-help" | "-h") {
            return Ok(Invocation::Help);
        }
        let Some(name) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else {
            return Err(format!("{word:?} is not a flag; see --help"));
        };
        let (name, inline) = match name.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (name, None),
        };
        if name == "judge" {
            return match inline.map(str::to_owned).or_else(|| rest.next().cloned()) {
                Some(path) if !path.is_empty() => Ok(Invocation::Judge(PathBuf::from(path))),
                _ => Err("--judge needs a value: the path of a history.jsonl".to_owned()),
            };
        }
        let Some(flag) = FLAGS.iter().find(|flag| flag.name == name) else {
            return Err(format!("unknown flag --{name}; see --help"));
        };
        let value = match (flag.value, inline) {
            ("", Some(_)) => return Err(format!("--{name} takes no value")),
            ("", None) => "",
            (_, Some(value)) => value,
            (kind, None) => match rest.next() {
                Some(value) => value,
                None => return Err(format!("--{name} needs a value: {kind}")),
            },
        };
        (flag.set)(&mut options, value).map_err(|error| format!("--{name}: {error}"))?;
    }
    Ok(Invocation::Run(Box::new(options)))
}
