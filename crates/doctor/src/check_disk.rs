//! Implements the command `check disk`: reads its flags, runs the trial of the disk, and prints the result
//! and the verdict.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use cli::{Command, Failure, Flag, Io, Matches, Progress};
use client::Endpoint;

use crate::arguments::no_arguments;
use crate::connection::{Connection, wants_json};
use crate::disk_trial::{DiskResult, DiskTrial, Pace, ReservedRoom};
use crate::exposition::Exposition;
use crate::launch::{Run, concluded};
use crate::{connection, http1, launch, show};

const PATH: Flag<String> =
    Flag::text("path", "", "directory to write to: a member's data directory, or one on the same disk");
const SIZE: Flag<u64> = Flag::uint(
    "size",
    "0",
    "size of a record in bytes; 0: as written by the member at --endpoints, if given, otherwise 2300",
);
const COUNT: Flag<u64> = Flag::uint("count", "0", "number of records to write; 0: write for the whole time");
const FOR: Flag<Duration> =
    Flag::duration("for", "1m0s", "how long to write; burst credits run out after minutes");
const LIMIT: Flag<Duration> = Flag::duration("limit", "10ms", "maximum p99 of a sync");

pub(crate) const DISK: Command<Run> = Command {
                name: "disk",
                usage: "disk --path=DIR [flags]",
                about: "Measures the disk as the log uses it",
                long: "\
Writes records one after the other to a file in DIR, each followed by fdatasync, as a member's log does, and passes if the
p99 of the syncs is below 10 ms. The file has no name and is gone when the command ends. On disks with a burst credit,
write for minutes: the beginning and the end are compared.

Exit codes: 0 passed; 1 failed, or could not be measured.",
                example: "  mainstay check disk --path=/var/lib/mainstay
  mainstay check disk --path=/var/lib/mainstay --for=5m --endpoints=127.0.0.1:2379 -w json",
                flags: &[PATH.row(), SIZE.row(), COUNT.row(), FOR.row(), LIMIT.row()],
    run: Some(Run(|matches, io| Box::pin(run(matches, io)))),
                ..Command::EMPTY
            };

/// Default record size in bytes. The usual fio command for testing whether a disk is fast enough for etcd
/// uses this size.
const RECORD_BYTES: usize = 2300;
/// Largest record size accepted, in bytes. It is far above 1.5 MiB, the default of a member's
/// `--max-request-bytes`.
const RECORD_BYTES_MAX: u64 = 16 * 1024 * 1024;
/// Smallest number of fsyncs for which a p99 is reported.
const SYNCS_MIN: usize = 100;

async fn run(matches: &Matches, io: &Io) -> Result<(), Failure> {
    no_arguments(matches)?;
    let is_json = wants_json(matches)?;
    let path = matches.get(PATH);
    if path.is_empty() {
        let text = "--path=DIR is missing: a member's data directory, or one on the same disk";
        return Err(Failure::error(text));
    }
    let (record_bytes, source) = record_size(matches).await?;
    let time = matches.get(FOR);
    let trial = DiskTrial { record_bytes, records_max: matches.get(COUNT), time };
    let mut progress = Progress::of_things("writing, seconds", Some(time.as_secs()));
    let result = trial
        .run(Path::new(path), |seconds| progress.at(seconds as u64, ""))
        .map_err(|error| Failure::error(format!("{path}: {error}")))?;
    progress.finish();
    if result.syncs.count() < SYNCS_MIN {
        let made = result.syncs.count();
        let text =
            format!("only {made} records were written, but {SYNCS_MIN} are needed: give a longer --for");
        return Err(Failure::error(text));
    }
    let limit = matches.get(LIMIT).as_secs_f64();
    let passed = result.syncs.at(0.99) < limit;
    let output = if is_json { json(&result, limit) } else { text(&result, path, source, limit) };
    concluded(io, &output, if passed { 0 } else { launch::COULD_NOT_LOOK })
}

/// Returns the record size in bytes, and a text that says where this size comes from, for the report.
async fn record_size(matches: &Matches) -> Result<(usize, &'static str), Failure> {
    let given = matches.get(SIZE);
    if given > RECORD_BYTES_MAX {
        return Err(Failure::error(format!("--size is at most {RECORD_BYTES_MAX}")));
    }
    if given > 0 {
        return Ok((given as usize, "as given"));
    }
    if !matches.is_given(connection::ENDPOINTS) {
        return Ok((RECORD_BYTES, "the usual recipe's"));
    }
    let connection = Connection::of(matches).await?;
    let mut why = String::new();
    for endpoint in &connection.settings.endpoints {
        let page = Endpoint::new(&**endpoint);
        match http1::get(&page, &connection.transport, "/metrics", connection.within).await {
            Ok(answer) => {
                let page = Exposition::read(&String::from_utf8_lossy(&answer.body));
                match observed_size(&page) {
                    Some(size) => return Ok((size, "the mean of the member's own")),
                    None => why = format!("{endpoint} has written too little to its log"),
                }
            }
            Err(error) => why = format!("{endpoint}: {error}"),
        }
    }
    Err(Failure::error(format!("the size of a member's records is unknown ({why}): give --size")))
}

/// Returns the average number of bytes per write of a member's write-ahead log; `None` if the metrics count
/// fewer than ten writes.
fn observed_size(page: &Exposition) -> Option<usize> {
    let bytes = page.sum("etcd_disk_wal_write_bytes_total", &[])?;
    let writes =
        page.sum("etcd_disk_wal_write_duration_seconds_count", &[]).filter(|writes| *writes >= 10.0)?;
    Some((bytes / writes).clamp(1.0, RECORD_BYTES_MAX as f64) as usize)
}

fn verdict(passed: bool) -> &'static str {
    if passed { "PASS" } else { "FAIL" }
}

/// Formats the result as text for people.
pub fn text(result: &DiskResult, path: &str, source: &str, limit: f64) -> String {
    let mut out = String::new();
    let mut line = |text: String| writeln!(out, "{text}").expect("strings take everything");
    let syncs = &result.syncs;
    let (p50, p99) = (show::seconds(syncs.at(0.5)), show::seconds(syncs.at(0.99)));
    let (p999, max) = (show::seconds(syncs.at(0.999)), show::seconds(syncs.max()));
    line(format!(
        "{path}: {} records of {} bytes ({source}), each followed by fdatasync, in {:.1} s",
        show::count(syncs.count() as f64),
        result.record_bytes,
        result.seconds
    ));
    line(format!("  a sync takes {p50} (median), {p99} (p99), {p999} (p99.9), {max} (longest)"));
    line(format!("  {} records one after the other", show::rate(result.rate())));
    line(format!("  {}/s in large sequential writes with one sync", show::bytes(result.bandwidth)));
    line(match result.pace() {
        Pace::TooShort => {
            "  too short to detect the end of a burst credit: use --for=5m on cloud disks".to_owned()
        }
        Pace::Steady => "  as fast at the end as at the beginning".to_owned(),
        Pace::Slower { first, last } => format!(
            "  slower at the end ({}) than at the beginning ({}): most likely a burst credit ran out; \
             expect the rate at the end",
            show::rate(last),
            show::rate(first)
        ),
    });
    if result.windows.len() > 1 {
        let parts: Vec<String> = result
            .windows
            .iter()
            .map(|window| format!("{} {}", show::rate(window.rate), show::seconds(window.p99)))
            .collect();
        line(format!("  rate and p99 in each tenth of the time: {}", parts.join(", ")));
    }
    match result.reserved {
        ReservedRoom::Kept => {}
        ReservedRoom::Zeros => line(
            "  does not reserve space by itself: a member writes zeros ahead, so its log is written twice"
                .to_owned(),
        ),
        ReservedRoom::Nowhere(file_system) => line(format!(
            "  {file_system} cannot reserve space for the time when the disk is full: leave some space free, or keep the \
             data on ext4 or XFS"
        )),
    }
    let advice = result.advice();
    line(format!(
        "  suits this disk: gathering writes for {} ms per sync; --heartbeat-interval={} --election-timeout={} at least",
        advice.window_ms, advice.heartbeat_ms, advice.election_ms
    ));
    let passed = syncs.at(0.99) < limit;
    let (word, limit) = (verdict(passed), show::seconds(limit));
    line(format!("{word}: the p99 of a sync is {p99}, the limit {limit}"));
    out
}

/// Formats the result as JSON: one object on one line.
pub fn json(result: &DiskResult, limit: f64) -> String {
    let syncs = &result.syncs;
    let windows: Vec<String> = result
        .windows
        .iter()
        .map(|window| {
            format!("{{\"records_per_second\":{:.1},\"p99_seconds\":{:.6}}}", window.rate, window.p99)
        })
        .collect();
    let pace = match result.pace() {
        Pace::TooShort => "unknown",
        Pace::Steady => "steady",
        Pace::Slower { .. } => "slower",
    };
    let advice = result.advice();
    format!(
        "{{\"passed\":{},\"limit_seconds\":{limit:.6},\"record_bytes\":{},\"records\":{},\"seconds\":{:.3},\
         \"p50_seconds\":{:.6},\"p99_seconds\":{:.6},\"p999_seconds\":{:.6},\"max_seconds\":{:.6},\
         \"records_per_second\":{:.1},\"bandwidth_bytes_per_second\":{:.0},\"pace\":\"{pace}\",\"windows\":[{}],\
         \"advice\":{{\"fsync_window_ms\":{},\"heartbeat_interval_ms\":{},\"election_timeout_ms\":{}}}}}\n",
        syncs.at(0.99) < limit,
        result.record_bytes,
        syncs.count(),
        result.seconds,
        syncs.at(0.5),
        syncs.at(0.99),
        syncs.at(0.999),
        syncs.max(),
        result.rate(),
        result.bandwidth,
        windows.join(","),
        advice.window_ms,
        advice.heartbeat_ms,
        advice.election_ms
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk_trial::DiskWindow;
    use crate::quantiles::Quantiles;

    #[test]
    fn both_forms() {
        let mut syncs = vec![0.001; 985];
        syncs.extend([0.012; 15]);
        let window = |rate: f64| DiskWindow { rate, p99: 0.012 };
        let result = DiskResult {
            record_bytes: 2300,
            syncs: Quantiles::of(syncs),
            seconds: 40.0,
            windows: vec![window(900.0), window(900.0), window(200.0), window(100.0)],
            bandwidth: 1.5e8,
            reserved: ReservedRoom::Kept,
        };
        assert_eq!(
            text(&result, "/data", "as given", 0.01),
            "/data: 1,000 records of 2300 bytes (as given), each followed by fdatasync, in 40.0 s\n\
             \x20 a sync takes 1.0 ms (median), 12.0 ms (p99), 12.0 ms (p99.9), 12.0 ms (longest)\n\
             \x20 25/s records one after the other\n\
             \x20 150 MB/s in large sequential writes with one sync\n\
             \x20 slower at the end (150/s) than at the beginning (900/s): most likely a burst credit ran out; expect \
             the rate at the end\n\
             \x20 rate and p99 in each tenth of the time: 900/s 12.0 ms, 900/s 12.0 ms, 200/s 12.0 ms, 100/s 12.0 ms\n\
             \x20 suits this disk: gathering writes for 0 ms per sync; --heartbeat-interval=100 --election-timeout=1000 at \
             least\n\
             FAIL: the p99 of a sync is 12.0 ms, the limit 10.0 ms\n"
        );
        assert_eq!(
            json(&result, 0.02),
            "{\"passed\":true,\"limit_seconds\":0.020000,\"record_bytes\":2300,\"records\":1000,\"seconds\":40.000,\
             \"p50_seconds\":0.001000,\"p99_seconds\":0.012000,\"p999_seconds\":0.012000,\"max_seconds\":0.012000,\
             \"records_per_second\":25.0,\"bandwidth_bytes_per_second\":150000000,\"pace\":\"slower\",\"windows\":[\
             {\"records_per_second\":900.0,\"p99_seconds\":0.012000},{\"records_per_second\":900.0,\"p99_seconds\":0.012000},\
             {\"records_per_second\":200.0,\"p99_seconds\":0.012000},{\"records_per_second\":100.0,\"p99_seconds\":0.012000}],\
             \"advice\":{\"fsync_window_ms\":0,\"heartbeat_interval_ms\":100,\"election_timeout_ms\":1000}}\n"
        );
    }

    #[test]
    fn a_file_system_that_keeps_no_room_is_named() {
        let said = |reserved| {
            let result =
                DiskResult { syncs: Quantiles::of(vec![0.001; 100]), reserved, ..DiskResult::default() };
            text(&result, "/data", "as given", 0.01)
        };
        assert!(
            said(ReservedRoom::Nowhere("zfs"))
                .contains("  zfs cannot reserve space for the time when the disk is full")
        );
        assert!(said(ReservedRoom::Zeros).contains("writes zeros ahead"));
        assert!(!said(ReservedRoom::Kept).contains("space"));
    }

    #[test]
    fn the_observed_size() {
        let page = |writes: u64| {
            Exposition::read(&format!(
                "etcd_disk_wal_write_bytes_total 5000\netcd_disk_wal_write_duration_seconds_count {writes}\n"
            ))
        };
        assert_eq!((observed_size(&page(10)), observed_size(&page(9))), (Some(500), None));
    }
}
