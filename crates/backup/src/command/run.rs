//! `backup run`: the flags. The process itself is started by the binary, which has observers and shadows.

use std::path::PathBuf;
use std::time::Duration;

use cli::{Command, Failure, Flag, FlagRow, Invocation, Program};

use super::{Call, Run};
use crate::place;
use crate::shipping::Settings;

const TO: Flag<String> = Flag::text(
    "to",
    "",
    "Required. Place of the backup: s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or file:///directory",
);
const MAX_LAG: Flag<Duration> =
    Flag::duration("backup-max-lag", "5s", "time after which a committed change should be in the backup");
const BASE_INTERVAL: Flag<Duration> = Flag::duration(
    "backup-base-interval",
    "24h0m0s",
    "interval at which the whole state is shipped; a restore applies at most the changes of that time",
);
const OUTBOX_BYTES: Flag<u64> = Flag::uint(
    "backup-outbox-bytes",
    "4294967296",
    "bytes of changes that wait in the data directory while the store does not answer",
);
const FEED: Flag<Vec<String>> = Flag::list(
    "feed",
    "",
    "peer URLs of members or observers of Mainstay, from which the log is taken, as for `mainstay observer`",
);
const ENDPOINTS: Flag<Vec<String>> = Flag::list(
    "endpoints",
    "",
    "client URLs of a cluster of etcd 3.4 to 3.7, which is followed by a snapshot and a watch, as by `mainstay shadow`",
);
const DATA_DIR: Flag<String> =
    Flag::text("data-dir", "", "Required. Directory for the copy of the data and for what waits");

const LONG: &str = "\
Ships every committed change of a cluster to a place, within seconds, and the whole state now and then.

With --feed the process is an observer of a cluster of Mainstay, without listeners for clients unless they are given; all
other flags are those of `mainstay observer`. With --endpoints it is a shadow of any etcd; all other flags are those of
`mainstay shadow`. Credentials are those of the usual variables and files of AWS, Google Cloud and Azure.";

const EXAMPLE: &str =
    "  mainstay backup run --feed http://10.0.0.1:2380 --data-dir backup --to s3://bucket/prefix \\
      --listen-peer-urls http://10.0.0.9:2380 --initial-advertise-peer-urls http://10.0.0.9:2380
  mainstay backup run --endpoints http://10.0.0.1:2379 --data-dir backup --to file:///mnt/backup";

const OWN_FLAGS: [FlagRow; 4] = [TO.row(), MAX_LAG.row(), BASE_INTERVAL.row(), OUTBOX_BYTES.row()];

pub(super) const RUN: Command<Run> = Command {
    name: "run",
    usage: "run --to <URL> --data-dir <directory> (--feed <peer URLs> | --endpoints <client URLs>) [flags]",
    about: "Ships all changes of a cluster to a place, as long as it runs",
    long: LONG,
    example: EXAMPLE,
    flags: &[
        TO.row(),
        DATA_DIR.row(),
        FEED.row(),
        ENDPOINTS.row(),
        MAX_LAG.row(),
        BASE_INTERVAL.row(),
        OUTBOX_BYTES.row(),
    ],
    run: Some(Run(refuse)),
    ..Command::EMPTY
};

/// The flags of the backup alone, for separating them from those of the observer or the shadow.
const OWN: Program<()> = Program {
    root: Command { name: "run", usage: "run", flags: &OWN_FLAGS, run: Some(()), ..Command::EMPTY },
    globals: &[],
    env_prefix: None,
    env_known: &[],
    globals_hint: "",
};

/// The process starts before this table is used, except for the help.
fn refuse(_: &mut Call<'_>) -> Result<(), Failure> {
    Err(Failure::error("this program has no nodes: use the binary `mainstay`"))
}

/// Kind of the source that a backup follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// The log of a cluster of Mainstay, as an observer.
    Log,
    /// A cluster of any etcd, as a shadow.
    Api,
}

/// The arguments of `backup run`.
#[derive(Clone, Debug)]
pub struct RunArguments {
    /// Kind of the source.
    pub follows: Follows,
    /// The settings of the backup. The directory is that of `--data-dir`.
    pub settings: Settings,
    /// The flags of the observer or the shadow.
    pub others: Vec<String>,
}

/// Separates the flags of the backup from those of the node. Returns `None` if the help is asked for.
///
/// # Errors
///
/// Returns an error if a flag is missing or wrong.
pub fn take_arguments(words: &[String]) -> Result<Option<RunArguments>, Failure> {
    let (mut own, mut others) = (Vec::new(), Vec::new());
    let (mut follows, mut data_dir) = (None, None);
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--help" || word == "-h" {
            return Ok(None);
        }
        let (name, value) = match word.strip_prefix('-') {
            // The value of a flag of the node; only the node's parser knows whether the flag has one.
            None => {
                others.push(word.clone());
                continue;
            }
            Some(rest) => match rest.trim_start_matches('-').split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (rest.trim_start_matches('-'), None),
            },
        };
        let is_own = OWN_FLAGS.iter().any(|flag| flag.name == name);
        let is_read = is_own || ["feed", "endpoints", "data-dir"].contains(&name);
        if !is_read {
            others.push(word.clone());
            continue;
        }
        let value = match value {
            Some(value) => value,
            None => words.next().cloned().ok_or_else(|| Failure::usage(format!("--{name} needs a value")))?,
        };
        match name {
            "feed" | "endpoints" => {
                let named = if name == "feed" { Follows::Log } else { Follows::Api };
                if follows.is_some_and(|other| other != named) {
                    return Err(Failure::usage("give either --feed or --endpoints, not both"));
                }
                follows = Some(named);
                others.push(format!("--feed={value}"));
            }
            "data-dir" => {
                data_dir = Some(PathBuf::from(&value));
                others.push(format!("--data-dir={value}"));
            }
            _ => own.push(std::ffi::OsString::from(format!("--{name}={value}"))),
        }
    }
    let matches = match OWN.parse(&own, std::iter::empty()) {
        Ok(Invocation::Run(matches, ())) => matches,
        Ok(_) => return Ok(None),
        Err(error) => return Err(Failure::usage(error)),
    };
    let to = matches.get(TO).to_owned();
    if to.is_empty() {
        return Err(Failure::usage("--to is required: the place of the backup"));
    }
    if !place::is_url(&to) {
        return Err(Failure::usage(format!(
            "--to={to}: the place is s3://bucket/prefix, gs://bucket/prefix, az://container/prefix or \
             file:///directory"
        )));
    }
    let Some(follows) = follows else {
        return Err(Failure::usage(
            "--feed (peer URLs of Mainstay) or --endpoints (client URLs of any etcd) is required",
        ));
    };
    let Some(directory) = data_dir else { return Err(Failure::usage("--data-dir is required")) };
    let lag_max = matches.get(MAX_LAG);
    if lag_max < Duration::from_millis(100) {
        return Err(Failure::usage("--backup-max-lag is at least 100ms"));
    }
    let base_interval = matches.get(BASE_INTERVAL);
    if base_interval < Duration::from_secs(60) {
        return Err(Failure::usage("--backup-base-interval is at least 1m"));
    }
    let settings =
        Settings { to, lag_max, base_interval, outbox_bytes_max: matches.get(OUTBOX_BYTES), directory };
    Ok(Some(RunArguments { follows, settings, others }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(text: &str) -> Result<Option<RunArguments>, Failure> {
        take_arguments(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn flags_of_the_node_are_passed_on() {
        let text =
            "--feed http://a:1 --to=file:///x --name n --data-dir d -backup-max-lag 2s --log-level=warn";
        let taken = take(text).expect("is right").expect("is no help");
        assert_eq!(taken.others, ["--feed=http://a:1", "--name", "n", "--data-dir=d", "--log-level=warn"]);
        assert_eq!((taken.follows, taken.settings.lag_max), (Follows::Log, Duration::from_secs(2)));
        let taken =
            take("--endpoints a:1,b:1 --to s3://b --data-dir d").expect("is right").expect("is no help");
        assert_eq!((taken.follows, &taken.others[0][..]), (Follows::Api, "--feed=a:1,b:1"));
        assert!(take("--help").expect("is help").is_none());
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (text, told) in [
            ("--feed a --data-dir d", "--to is required"),
            ("--to /x --feed a --data-dir d", "the place is s3://"),
            ("--to file:///x --data-dir d", "--endpoints"),
            ("--to file:///x --feed a", "--data-dir is required"),
            ("--to file:///x --feed a --endpoints b --data-dir d", "not both"),
            ("--to file:///x --feed a --data-dir d --backup-max-lag 1ms", "at least 100ms"),
            ("--to file:///x --feed a --data-dir d --backup-max-lag x", "backup-max-lag"),
            ("--to file:///x --feed a --data-dir d --backup-base-interval 1s", "at least 1m"),
            ("--to", "needs a value"),
        ] {
            let refusal = take(text).err().map(|failure| failure.to_string()).unwrap_or_default();
            assert!(refusal.contains(told), "{text}: {refusal}");
        }
    }
}
