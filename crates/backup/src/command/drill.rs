//! `backup drill`: restores beside, compares, and reports how long it took.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use cli::{Command, Failure, Flag};
use html_report::{Found, Level, Page};
use mvcc::KeyRange;

use super::restore::{TO_REVISION, TO_TIME, state_of};
use super::{CLUSTER_ID, Call, Run, chain, moment_of, size};
use crate::fetch::{cache_of, remove_cache};
use crate::live::wall_ms;
use crate::manifest::HashKv;
use crate::moment::hash_kv;
use crate::plan::{Moment, Plan, shown};
use crate::trouble::{Fault, Trouble};

const WORK_DIR: Flag<String> = Flag::text(
    "work-dir",
    "",
    "directory for the restored state, which is removed afterwards; must not exist",
);
const METRICS_FILE: Flag<String> = Flag::text(
    "metrics-file",
    "",
    "file for the result in Prometheus' text format, for the textfile collector of node_exporter",
);
const PAGE: Flag<String> = Flag::text("page", "", "file for the result as an HTML page");

pub(super) const DRILL: Command<Run> = Command {
    name: "drill",
    usage: "drill <URL> [flags]",
    about: "Restores a moment beside, compares its state with the cluster's, and reports how long it took",
    long: "\
Restores a moment into a directory beside, compares the state with the hashes that the cluster had, and removes the
directory. HashKV is compared at the base, and the rolling hash of the state at each part after it. The exit code is 1 if
the restore fails or anything differs. Run it regularly: a backup that was never restored is a hope.",
    example: "  mainstay backup drill s3://bucket/prefix --metrics-file /var/lib/node_exporter/drill.prom --page drill.html",
    flags: &[
        CLUSTER_ID.row(),
        METRICS_FILE.row(),
        PAGE.row(),
        TO_REVISION.row(),
        TO_TIME.row(),
        WORK_DIR.row(),
    ],
    run: Some(Run(run)),
    ..Command::EMPTY
};

/// Result of a drill.
struct Drilled {
    revision: i64,
    time_ms: u64,
    age: Duration,
    keys: u64,
    compared: u64,
    hash_kv: Option<HashKv>,
    base_hash: Option<HashKv>,
    restored_in: Duration,
    hashed_in: Duration,
    bytes: u64,
}

fn run(call: &mut Call<'_>) -> Result<(), Failure> {
    let wanted = moment_of(call.matches.get(TO_REVISION), call.matches.get(TO_TIME))?;
    let work = match call.matches.get(WORK_DIR) {
        "" => PathBuf::from(format!("mainstay-drill-{}", std::process::id())),
        dir => PathBuf::from(dir),
    };
    if work.exists() {
        return Err(Failure::error(format!("{} exists: give another --work-dir", work.display())));
    }
    let outcome = drill(call, wanted, &work);
    let removed = std::fs::remove_dir_all(&work);
    remove_cache(&cache_of(&work))?;
    if let Err(error) = removed
        && error.kind() != std::io::ErrorKind::NotFound
    {
        return Err(Failure::error(format!("cannot remove {}: {error}", work.display())));
    }
    write_file(call.matches.get(METRICS_FILE), &metrics(&outcome))?;
    let url = call.matches.arg_text(0).unwrap_or_default();
    write_file(call.matches.get(PAGE), &page(&url, &outcome))?;
    let result = outcome?;
    call.print(&format!("{}\n", sentence(&result)))
}

fn drill(call: &Call<'_>, wanted: Moment, work: &Path) -> Result<Drilled, Trouble> {
    let refused = |failure: Failure| Trouble::new(Fault::Refused, failure);
    let store = call.place().map_err(refused)?;
    let (cluster, cluster_id) = call.cluster(&*store).map_err(refused)?;
    let plan = chain(&*store, &cluster).plan(wanted)?;
    let cache = cache_of(work);
    // The base alone first: its HashKV was computed by the cluster.
    let base_hash = match plan.base.hash_kv {
        None => None,
        Some(known) => {
            let base = Plan { parts: Vec::new(), moment: Moment::Newest, ..plan.clone() };
            let at = work.join("base");
            let mut restored = state_of(&*store, &cluster, cluster_id, &base, &at, &cache)?;
            let own = hash_kv(&mut restored.machine, &restored.values)?;
            if own != known {
                return Err(Trouble::new(
                    Fault::Damaged,
                    format!(
                        "the base at revision {} has HashKV {}, and the cluster had {}",
                        known.revision, own.hash, known.hash
                    ),
                ));
            }
            drop(restored);
            // The directory is removed by the caller, too, if this fails.
            let _ = std::fs::remove_dir_all(&at);
            Some(own)
        }
    };
    let began = Instant::now();
    let mut restored = state_of(&*store, &cluster, cluster_id, &plan, &work.join("moment"), &cache)?;
    let restored_in = began.elapsed();
    let began = Instant::now();
    let hash = hash_kv(&mut restored.machine, &restored.values)?;
    let now_ms = wall_ms(SystemTime::now());
    let revision = restored.machine.store.current_revision();
    let keys = restored
        .machine
        .store
        .publish()
        .snapshot()
        .count(KeyRange::from(b""), revision)
        .map_err(|error| Trouble::new(Fault::Refused, machine::range::refused(error).shown()))?;
    Ok(Drilled {
        revision: revision.0,
        time_ms: restored.time_ms,
        age: Duration::from_millis(now_ms.saturating_sub(plan.until.time_ms)),
        keys,
        compared: restored.compared,
        hash_kv: Some(hash),
        base_hash,
        restored_in,
        hashed_in: began.elapsed(),
        bytes: plan.bytes(),
    })
}

fn sentence(result: &Drilled) -> String {
    let base = match &result.base_hash {
        Some(hash) => format!("HashKV {} of its base is the cluster's", hash.hash),
        None => "HashKV of its base is not known".to_owned(),
    };
    let hash = result.hash_kv.map_or_else(String::new, |hash| {
        format!(", HashKV {} for compact revision {}", hash.hash, hash.compact_revision)
    });
    format!(
        "restored revision {} of {} in {}, {} of objects, {} keys{hash}; the state is the cluster's at {} positions, and \
         {base}",
        result.revision,
        shown(result.time_ms),
        cli::go::duration(result.restored_in),
        size(result.bytes),
        result.keys,
        result.compared,
    )
}

fn metrics(outcome: &Result<Drilled, Trouble>) -> String {
    let now = wall_ms(SystemTime::now()) / 1000;
    let mut text = String::new();
    let mut gauge = |name: &str, help: &str, value: f64| {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
    };
    gauge(
        "mainstay_backup_drill_success",
        "1 if the last drill restored the state of the cluster.",
        f64::from(u8::from(outcome.is_ok())),
    );
    gauge(
        "mainstay_backup_drill_timestamp_seconds",
        "Time of the last drill, in seconds since 1970.",
        now as f64,
    );
    if let Ok(result) = outcome {
        gauge(
            "mainstay_backup_drill_restore_seconds",
            "Time that the restore took.",
            result.restored_in.as_secs_f64(),
        );
        gauge("mainstay_backup_drill_hash_seconds", "Time that HashKV took.", result.hashed_in.as_secs_f64());
        gauge("mainstay_backup_drill_bytes", "Bytes of the objects that were read.", result.bytes as f64);
        gauge("mainstay_backup_drill_revision", "Revision that was restored.", result.revision as f64);
        gauge("mainstay_backup_drill_keys", "Keys that were restored.", result.keys as f64);
        gauge(
            "mainstay_backup_drill_age_seconds",
            "Age of the newest moment in the backup.",
            result.age.as_secs_f64(),
        );
    }
    text
}

fn page(url: &str, outcome: &Result<Drilled, Trouble>) -> String {
    let mut page = Page::new("Backup drill");
    let now = shown(wall_ms(SystemTime::now()));
    match outcome {
        Err(trouble) => {
            page.findings(&[Found {
                level: Level::Error,
                title: "The backup cannot be restored".to_owned(),
                facts: vec![trouble.text.clone()],
                meaning: "Until this is repaired, data that the cluster loses are lost.".to_owned(),
                remedies: vec!["mainstay backup verify names all that is damaged".to_owned()],
            }]);
            page.facts(&[("Backup".to_owned(), url.to_owned()), ("Drill".to_owned(), now)]);
        }
        Ok(result) => {
            page.paragraph(&format!("The backup {}.", sentence(result)));
            let fact = |name: &str, value: String| (name.to_owned(), value);
            page.facts(&[
                fact("Backup", url.to_owned()),
                fact("Drill", now),
                fact("Revision", result.revision.to_string()),
                fact("Moment", shown(result.time_ms)),
                fact("Age of the newest moment", cli::go::duration(result.age)),
                fact("Keys", result.keys.to_string()),
                fact("Restored in", cli::go::duration(result.restored_in)),
                fact("HashKV computed in", cli::go::duration(result.hashed_in)),
                fact("Objects read", size(result.bytes)),
                fact("Positions at which the state was compared", result.compared.to_string()),
            ]);
        }
    }
    page.html()
}

fn write_file(path: &str, text: &str) -> Result<(), Failure> {
    if path.is_empty() {
        return Ok(());
    }
    // The collector of metrics must not read half a file.
    let making = format!("{path}.new");
    std::fs::write(&making, text)
        .and_then(|()| std::fs::rename(&making, path))
        .map_err(|error| Failure::error(format!("cannot write {path}: {error}")))
}
