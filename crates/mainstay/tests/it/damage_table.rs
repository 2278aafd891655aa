//! Every kind of file in the data directory, damaged in every way, under a real member: the member starts
//! with all acknowledged data, or refuses with file, position and remedy. `docs/reference/damage.md` is generated from
//! these runs: `MAINSTAY_WRITE_DOCS=1` writes the file, otherwise it is compared.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use api::Rpc;
use api::etcdserverpb::{RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use bytes::Bytes;
use disk::{Disk as _, RealDisk};

use testkit::TempDir;

use crate::client::{Client, put_op};
use crate::damage::{flip, open};
use crate::member::{Member, Setup};
use crate::{filler, run};

const SMALL_KEYS: u32 = 3000;
const LARGE_KEYS: u32 = 66;
const LARGE_BYTES: usize = 1 << 20;
const LATE_KEYS: u32 = 20;
const SEGMENT_HEADER_BYTES: u64 = 4096;
const PAGE_BYTES: u64 = 4096;
const WORKERS: usize = 4;
/// Unless `MAINSTAY_FULL_TABLE` is set, only one case of this many is run.
const SAMPLED: usize = 6;
/// Time after which a case is reported as slow.
const SLOW: std::time::Duration = std::time::Duration::from_secs(10);
/// Path of the documentation; the tables are between the marks below.
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/damage.md");
const BEGIN: &str = "<!-- made by damage_table.rs: begin -->\n";
const END: &str = "<!-- made by damage_table.rs: end -->\n";

/// Data that a member had acknowledged when it ended.
#[derive(Default)]
struct Acknowledged {
    values: BTreeMap<Bytes, Bytes>,
    /// Keys written last, which may be lost if the very end of the log is damaged.
    late: Vec<Bytes>,
    leases: Vec<i64>,
    revision: i64,
}

/// A data directory whose copies are damaged.
struct Original {
    dir: PathBuf,
    /// Directory with earlier versions of files, by path relative to `member`.
    older: PathBuf,
    acknowledged: Acknowledged,
    /// Flags with which it was started, beside those of all members.
    flags: &'static [&'static str],
}

/// Returns the setup of a member of the table; the token determines its ids.
fn setup(dir: &Path, token: &str, flags: &[&str]) -> Setup {
    let mut setup = Setup::new(dir)
        .flag("--snapshot-count=10")
        .flag("--log-level=debug")
        .flag(format!("--initial-cluster-token={token}"));
    setup.data_dir = dir.to_owned();
    setup.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
    setup
}

/// Copies a file without its holes.
fn copy_sparse(from: &Path, to: &Path) {
    let source = RealDisk.open(from).expect("readable");
    let target = fs::File::create(to).expect("writable");
    let len = source.len().expect("readable");
    target.set_len(len).expect("it can grow");
    let mut page = vec![0; 256 << 10];
    let mut at = 0;
    while let Some(data) = source.next_data(at).expect("readable").filter(|data| *data < len) {
        // Copies page by page, like the page cache.
        at = data / PAGE_BYTES * PAGE_BYTES;
        let n = source.read_at(&mut page, at).expect("readable");
        let (words, rest) = page[..n].as_chunks::<8>();
        if words.iter().any(|word| *word != [0; 8]) || rest.iter().any(|byte| *byte != 0) {
            target.write_all_at(&page[..n], at).expect("writable");
        }
        at += n as u64;
    }
}

/// Copies a data directory; sealed segments are hard links, unless `own` says that a segment will be damaged.
fn copy_tree(from: &Path, to: &Path, own: &dyn Fn(&Path) -> bool) {
    fs::create_dir_all(to).expect("a directory can be made");
    for entry in fs::read_dir(from).expect("readable") {
        let source = entry.expect("readable").path();
        let target = to.join(source.file_name().expect("it has a name"));
        if source.is_dir() {
            copy_tree(&source, &target, own);
        } else if is_sealed(&source) && !own(&source) {
            fs::hard_link(&source, &target).expect("a link can be made");
        } else {
            copy_sparse(&source, &target);
        }
    }
}

/// Returns true if this is a sealed segment, to which nothing is written any more.
fn is_sealed(path: &Path) -> bool {
    let is_segment = |path: &Path| path.extension().is_some_and(|e| e == "seg");
    let in_use = |path: &Path| is_segment(path) && end(path) > SEGMENT_HEADER_BYTES;
    let later = fs::read_dir(path.parent().expect("it lies somewhere")).expect("readable");
    in_use(path) && later.map(|e| e.expect("readable").path()).any(|other| other > *path && in_use(&other))
}

/// Ends of the names of the files beside a base run that was written with a memory budget.
const CHANGES: &str = "-changes.run";
const TOP: &str = "-top.run";

/// Cluster token of the member whose files are put in the place of the damaged member's.
const ANOTHER: &str = "another";

impl Original {
    /// Creates a member with several segments and a checkpoint of several runs. `lacking`: its log no longer
    /// has the first entries. `crash`: it did not shut down cleanly.
    fn make(dir: &Path, token: &str, lacking: bool, crash: bool, flags: &'static [&'static str]) -> Original {
        let mut setup = setup(&dir.join("data"), token, flags);
        let checkpoints = !crash;
        if crash {
            // Without a checkpoint, the member's start reads every segment.
            setup = setup.flag("--snapshot-count=1000000");
        }
        let older = dir.join("older");
        let mut known = Acknowledged::default();
        let member = setup.start();
        run(async {
            let client = member.client().await;
            for from in (0..SMALL_KEYS).step_by(100) {
                let puts = (from..from + 100).map(|n| (Bytes::from(format!("small/{n:05}")), filler(n, 40)));
                let success = puts
                    .map(|(key, value)| {
                        known.values.insert(key.clone(), value.clone());
                        put_op(key, value)
                    })
                    .collect();
                let request = TxnRequest { success, ..TxnRequest::default() };
                let _: TxnResponse =
                    client.call(Rpc::KvTxn, &request).await.expect("transactions are served");
            }
            // The names of runs contain the applied index, which differs by a few entries between starts. The
            // other member is so far ahead that its runs never have the names of this one's.
            let leases = if token == ANOTHER { 50 } else { 5 };
            for n in 0..leases {
                let lease = client.grant(100_000).await.expect("leases are granted");
                known.leases.push(lease);
                let key = Bytes::from(format!("leased/{n}"));
                client.put_leased(key.clone(), "x", lease).await.expect("puts are served");
                known.values.insert(key, "x".into());
            }
            known.put_large(&client, "a").await;
            if checkpoints {
                wait_for_checkpoints(&member, 1).await;
            }
            copy_tree(&setup.data_dir.join("member"), &older, &|_| true);
            if lacking {
                for n in 0..LARGE_KEYS {
                    let key = Bytes::from(format!("a/{n:05}"));
                    client.delete(key.clone()).await.expect("deletes are served");
                    known.values.remove(&key);
                }
                let revision = client.status().await.expect("it serves").header.expect("a header").revision;
                client.compact(revision, true).await.expect("compactions are served");
            }
            known.put_large(&client, "b").await;
            if checkpoints {
                wait_for_checkpoints(&member, 2).await;
            }
            if lacking {
                let first = setup.data_dir.join("member/log/0000000000000000.seg");
                testkit::eventually("the first segment goes", crate::cluster::PATIENCE, async || {
                    (!first.exists()).then_some(())
                })
                .await;
            }
            // The last segment in its present state, for the cases with an older copy.
            let log = setup.data_dir.join("member/log");
            // A background thread prepares the next segment and the reserve.
            testkit::eventually(
                "the next segment and the reserve are there",
                crate::cluster::PATIENCE,
                async || {
                    let roles = roles(&setup.data_dir);
                    (roles.contains_key("prepared segment") && roles.contains_key("free file")).then_some(())
                },
            )
            .await;
            let active = roles(&setup.data_dir).remove("active segment").expect("there is one");
            let name = active.file_name().expect("it has a name");
            copy_sparse(&active, &older.join("log").join(name));
            assert!(log.exists());
            for n in 0..LATE_KEYS {
                let (key, value) = (Bytes::from(format!("late/{n:03}")), filler(n, 300));
                known.revision = client.put(key.clone(), value.clone()).await.expect("puts are served");
                known.late.push(key.clone());
                known.values.insert(key, value);
            }
        });
        if crash {
            member.kill();
        } else {
            member.stop();
        }
        Original { dir: setup.data_dir, older, acknowledged: known, flags }
    }
}

impl Acknowledged {
    async fn put_large(&mut self, client: &Client, prefix: &str) {
        for n in 0..LARGE_KEYS {
            let (key, value) = (Bytes::from(format!("{prefix}/{n:05}")), filler(n, LARGE_BYTES));
            client.put(key.clone(), value.clone()).await.expect("puts are served");
            self.values.insert(key, value);
        }
    }

    /// Requests all keys, and one of `every` large values. `Ok` lists values whose read returns an error;
    /// `Err` lists values that are missing or wrong.
    async fn compare(&self, client: &Client, every: usize) -> Result<Vec<Bytes>, Vec<Bytes>> {
        let (mut failing, mut lost) = (Vec::new(), Vec::new());
        let all = |prefix: &str, keys_only| RangeRequest {
            key: prefix.to_owned().into(),
            range_end: crate::client::ALL.into(),
            keys_only,
            ..RangeRequest::default()
        };
        let counted: RangeResponse =
            client.call(Rpc::KvRange, &all("a", true)).await.expect("reads are served");
        let there: Vec<&Bytes> = counted.kvs.iter().map(|kv| &kv.key).collect();
        lost.extend(self.values.keys().filter(|key| !there.contains(key)).cloned());
        assert!(there.iter().all(|key| self.values.contains_key(*key)), "keys that nobody wrote");
        let small: Result<RangeResponse, _> = client.call(Rpc::KvRange, &all("l", false)).await;
        let mut known: BTreeMap<Bytes, Bytes> = match small {
            Ok(answer) => answer.kvs.into_iter().map(|kv| (kv.key, kv.value)).collect(),
            Err(_) => BTreeMap::new(),
        };
        let there = self.values.iter().filter(|(key, _)| !lost.contains(key));
        let chosen =
            there.enumerate().filter(|(at, (_, value))| value.len() < LARGE_BYTES || at % every == 0);
        for (_, (key, value)) in chosen {
            let found = match known.remove(key) {
                Some(found) => found,
                None => match client.get(key.clone()).await {
                    Ok(kv) => kv.expect("it was counted").value,
                    Err(status) => {
                        assert!(status.message.contains("is damaged at offset"), "{status}");
                        assert_eq!(status.code, api::Code::Internal);
                        failing.push(key.clone());
                        continue;
                    }
                },
            };
            assert!(found == *value, "{key:?} has a wrong value");
        }
        for lease in &self.leases {
            let found = client.time_to_live(*lease, true).await.expect("leases are served");
            assert!(found.ttl > 0 && found.keys.len() == 1, "{found:?}");
        }
        if !lost.is_empty() {
            return Err(lost);
        }
        let now = client.status().await.expect("it serves").header.expect("a header").revision;
        assert_eq!(now, self.revision, "the revision");
        Ok(failing)
    }
}

async fn wait_for_checkpoints(member: &Member, count: usize) {
    testkit::eventually("checkpoints are saved", crate::cluster::PATIENCE * 2, async || {
        (member.said().matches("saved a checkpoint").count() >= count).then_some(())
    })
    .await;
}

/// Returns the files of a data directory, by their role.
fn roles(data_dir: &Path) -> BTreeMap<&'static str, PathBuf> {
    let list = |dir: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(data_dir.join(dir)).expect("it is there");
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
        paths.sort();
        paths
    };
    let mut found = BTreeMap::new();
    let log = list("member/log");
    let named = |path: &&PathBuf, suffix: &str| path.to_string_lossy().ends_with(suffix);
    let segments: Vec<&PathBuf> = log.iter().filter(|path| named(path, ".seg")).collect();
    let used: Vec<&&PathBuf> = segments.iter().filter(|path| end(path) > SEGMENT_HEADER_BYTES).collect();
    let [.., before, active] = used.as_slice() else { panic!("too few segments: {segments:?}") };
    found.insert("active segment", active.to_path_buf());
    found.insert("sealed segment", before.to_path_buf());
    if let [first, _, _, ..] = used.as_slice() {
        found.insert("old segment", first.to_path_buf());
    }
    if let Some(prepared) = segments.iter().find(|path| ***path > ***active) {
        found.insert("prepared segment", prepared.to_path_buf());
    }
    if let Some(free) = log.iter().find(|path| named(path, ".free")) {
        found.insert("free file", free.clone());
    }
    let checkpoint = list("member/checkpoint");
    let is_companion = |path: &&PathBuf| named(path, CHANGES) || named(path, TOP);
    let runs: Vec<&PathBuf> =
        checkpoint.iter().filter(|path| named(path, ".run") && !is_companion(path)).collect();
    for (role, end) in [("change file", CHANGES), ("list of blocks", TOP)] {
        if let Some(path) = checkpoint.iter().find(|path| named(path, end)) {
            found.insert(role, path.clone());
        }
    }
    if let [base, rest @ ..] = runs.as_slice() {
        found.insert("base run", base.to_path_buf());
        if let Some(delta) = rest.last() {
            found.insert("delta run", delta.to_path_buf());
        }
    }
    let member = data_dir.join("member");
    for (role, name) in [("manifest", "checkpoint/MANIFEST"), ("witness", "witness"), ("lock", "lock")] {
        found.insert(role, member.join(name));
    }
    found
}

/// Returns the offsets at which the records of a segment begin, and the offset at which the last record ends.
fn records(path: &Path) -> (Vec<u64>, u64) {
    let file = fs::File::open(path).expect("readable");
    let mut found = Vec::new();
    let mut at = SEGMENT_HEADER_BYTES;
    let mut head = [0; 32];
    while file.read_exact_at(&mut head, at).is_ok() && head[8] != 0 {
        found.push(at);
        let len = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        at += (32 + u64::from(len)).next_multiple_of(8);
    }
    (found, at)
}

/// Returns the offset after the written part of a file.
fn end(path: &Path) -> u64 {
    if path.extension().is_some_and(|e| e == "seg") { records(path).1 } else { crate::damage::end(path) }
}

/// Damages a data directory; the arguments are the data directory, the file, and the original.
type Apply = dyn Fn(&Path, &Path, &Original) + Send + Sync + std::panic::RefUnwindSafe;

/// One way to damage a file in a data directory.
struct Case {
    role: &'static str,
    damage: &'static str,
    apply: Box<Apply>,
}

fn case(
    role: &'static str,
    damage: &'static str,
    apply: impl Fn(&Path, &Path, &Original) + Send + Sync + std::panic::RefUnwindSafe + 'static,
) -> Case {
    Case { role, damage, apply: Box::new(apply) }
}

fn zero_page(path: &Path, at: u64) {
    let len = fs::metadata(path).expect("readable").len();
    let from = (at / PAGE_BYTES * PAGE_BYTES).min(len);
    let zeros = vec![0; PAGE_BYTES.min(len - from) as usize];
    open(path).write_all_at(&zeros, from).expect("writable");
}

fn relative(path: &Path, data_dir: &Path) -> PathBuf {
    path.strip_prefix(data_dir.join("member")).expect("it lies below").to_owned()
}

/// Returns the cases that apply to any file.
fn common(role: &'static str) -> Vec<Case> {
    let set_mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    vec![
        case(role, "truncated to nothing", |_, path, _| open(path).set_len(0).expect("it can be cut")),
        case(role, "truncated to half", |_, path, _| {
            let half = fs::metadata(path).expect("readable").len() / 2;
            open(path).set_len(half).expect("it can be cut");
        }),
        case(role, "truncated by one byte", |_, path, _| {
            let len = fs::metadata(path).expect("readable").len();
            open(path).set_len(len.saturating_sub(1)).expect("it can be cut");
        }),
        case(role, "a zeroed page at its beginning", |_, path, _| zero_page(path, 0)),
        case(role, "missing", |_, path, _| fs::remove_file(path).expect("it is there")),
        case(role, "garbage behind its end", |_, path, _| {
            let len = fs::metadata(path).expect("readable").len();
            open(path).write_all_at(&[0xa5; 100], len).expect("writable");
        }),
        case(role, "a second time under another name", |_, path, _| {
            let name = path.file_name().expect("it has a name").to_string_lossy().into_owned();
            let other = match name.strip_suffix(".seg") {
                // The next unused number, or a number before all others.
                Some(_) if path.with_file_name("0000000000000009.seg").exists() => "copy.seg".to_owned(),
                Some(_) => "0000000000000009.seg".to_owned(),
                None => format!("{name}.copy"),
            };
            copy_sparse(path, &path.with_file_name(other));
        }),
        case(role, "unreadable (mode 000)", move |_, path, _| set_mode(path, 0o000)),
        case(role, "read-only (mode 444)", move |_, path, _| set_mode(path, 0o444)),
        case(role, "a directory in its place", |_, path, _| {
            fs::remove_file(path).expect("it is there");
            fs::create_dir(path).expect("a directory can be made");
        }),
        case(role, "a symbolic link in its place", |dir, path, _| {
            let aside = dir.join("elsewhere");
            fs::rename(path, &aside).expect("it can be moved");
            std::os::unix::fs::symlink(&aside, path).expect("a link can be made");
        }),
    ]
}

/// Returns the cases that apply to a file with contents.
fn contents(role: &'static str) -> Vec<Case> {
    vec![
        case(role, "a flipped bit in its header", |_, path, _| flip(path, 20)),
        case(role, "a flipped bit in its middle", |_, path, _| flip(path, end(path) / 2)),
        case(role, "a flipped bit at its end", |_, path, _| flip(path, end(path) - 4)),
        case(role, "a zeroed page in its middle", |_, path, _| zero_page(path, end(path) / 2)),
        case(role, "a zeroed page at its end", |_, path, _| zero_page(path, end(path) - 1)),
    ]
}

/// Returns the cases that apply to a segment of the log in use.
fn in_log(role: &'static str) -> Vec<Case> {
    let mut cases = contents(role);
    cases.extend([
        case(role, "a flipped bit in its first record's head", |_, path, _| {
            flip(path, SEGMENT_HEADER_BYTES + 16)
        }),
        case(role, "a zeroed page behind its header", |_, path, _| zero_page(path, SEGMENT_HEADER_BYTES)),
        case(role, "a flipped bit in the head of a record in its middle", |_, path, _| {
            let (records, _) = records(path);
            flip(path, records[records.len() / 2] + 16);
        }),
        case(role, "a flipped bit in the length of a record in its middle", |_, path, _| {
            let (records, _) = records(path);
            flip(path, records[records.len() / 2] + 4);
        }),
    ]);
    cases
}

/// Returns the cases in which another file replaces this one: a file of another member, or an earlier version.
fn replaced(role: &'static str, other: PathBuf) -> Vec<Case> {
    vec![
        case(role, "an older copy of itself in its place", |dir, path, original| {
            let older = original.older.join(relative(path, dir));
            assert!(older.exists(), "{} has no older copy", path.display());
            copy_sparse(&older, path);
        }),
        case(role, "another member's file in its place", move |_, path, _| {
            let theirs = roles(&other).remove(role).expect("they have one, too");
            copy_sparse(&theirs, path);
        }),
    ]
}

fn exchanged(role: &'static str, with: &'static str, damage: &'static str) -> Case {
    case(role, damage, move |dir, path, _| {
        let other = roles(dir).remove(with).expect("it is there");
        let aside = dir.join("aside");
        fs::rename(path, &aside).expect("it can be moved");
        fs::rename(&other, path).expect("it can be moved");
        fs::rename(&aside, &other).expect("it can be moved");
    })
}

fn whole_directories(other: &Path) -> Vec<Case> {
    let mut cases = vec![
        case("whole directories", "log/ missing", |dir, _, _| {
            fs::remove_dir_all(dir.join("member/log")).expect("it is there");
        }),
        case("whole directories", "checkpoint/ missing", |dir, _, _| {
            fs::remove_dir_all(dir.join("member/checkpoint")).expect("it is there");
        }),
        case("whole directories", "log/ and checkpoint/ missing", |dir, _, _| {
            fs::remove_dir_all(dir.join("member/log")).expect("it is there");
            fs::remove_dir_all(dir.join("member/checkpoint")).expect("it is there");
        }),
        case("whole directories", "log/ empty", |dir, _, _| {
            fs::remove_dir_all(dir.join("member/log")).expect("it is there");
            fs::create_dir(dir.join("member/log")).expect("a directory can be made");
        }),
        case("whole directories", "log/ unreadable (mode 000)", |dir, _, _| {
            let nobody = fs::Permissions::from_mode(0o000);
            fs::set_permissions(dir.join("member/log"), nobody).expect("it is ours");
        }),
        case("whole directories", "member/ read-only (mode 555)", |dir, _, _| {
            let readers = fs::Permissions::from_mode(0o555);
            fs::set_permissions(dir.join("member"), readers).expect("it is ours");
        }),
        case("whole directories", "a file in the place of member/", |dir, _, _| {
            fs::remove_dir_all(dir.join("member")).expect("it is there");
            fs::write(dir.join("member"), "x").expect("a file can be written");
        }),
    ];
    for (name, damage) in [("log", "another member's log/"), ("checkpoint", "another member's checkpoint/")] {
        let theirs = other.join("member").join(name);
        cases.push(case("whole directories", damage, move |dir, _, _| {
            let path = dir.join("member").join(name);
            fs::remove_dir_all(&path).expect("it is there");
            copy_tree(&theirs, &path, &|_| true);
        }));
    }
    cases
}

fn left_over() -> Vec<Case> {
    let mut cases = Vec::new();
    for name in
        ["log/next.tmp", "log/spare.tmp", "checkpoint/MANIFEST.tmp", "checkpoint/x.run.tmp", "witness.tmp"]
    {
        let file = move |dir: &Path, _: &Path, _: &Original| {
            fs::write(dir.join("member").join(name), [7; 9000]).expect("a file can be written");
        };
        let directory = move |dir: &Path, _: &Path, _: &Original| {
            fs::create_dir(dir.join("member").join(name)).expect("a directory can be made");
        };
        let (left, in_the_way): (&'static str, &'static str) = match name {
            "log/next.tmp" => ("log/next.tmp left behind", "a directory log/next.tmp"),
            "log/spare.tmp" => ("log/spare.tmp left behind", "a directory log/spare.tmp"),
            "witness.tmp" => ("witness.tmp left behind", "a directory witness.tmp"),
            "checkpoint/MANIFEST.tmp" => {
                ("checkpoint/MANIFEST.tmp left behind", "a directory checkpoint/MANIFEST.tmp")
            }
            _ => ("checkpoint/*.run.tmp left behind", "a directory checkpoint/*.run.tmp"),
        };
        cases.push(case("temporary files", left, file));
        cases.push(case("temporary files", in_the_way, directory));
    }
    cases
}

/// Outcome of a start on a damaged copy.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    /// The member started with all data; holds its log lines about the damage.
    Whole(Vec<String>),
    /// The member started with all data but some values, whose reads return errors.
    Failing(Vec<String>),
    /// The member started without the last writes.
    Short(Vec<String>),
    /// The member refused to start with this text.
    Refused(String),
    /// The member started, and stopped with this text when a read needed what is damaged.
    Stopped(String),
}

/// Lets the command run without the superuser's right to read and write all files.
fn without_privileges(command: &mut Command) {
    const DAC_OVERRIDE: libc::c_ulong = 1;
    const DAC_READ_SEARCH: libc::c_ulong = 2;
    // SAFETY: only plain system calls, which are allowed between fork and exec. They fail for a process
    // without these rights, which needs no change.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_CAPBSET_DROP, DAC_OVERRIDE, 0, 0, 0);
            libc::prctl(libc::PR_CAPBSET_DROP, DAC_READ_SEARCH, 0, 0, 0);
            Ok(())
        });
    }
}

/// Removes numbers and names that differ between runs of the test.
fn plain(text: &str, dir: &Path, roles: &BTreeMap<&'static str, PathBuf>) -> String {
    let mut text = text.to_owned();
    for (role, path) in roles {
        text = text.replace(&path.display().to_string(), &format!("*{role}*"));
    }
    text = text.replace(&dir.display().to_string(), "DIR").replace("DIR/member/", "");
    let mut words = String::new();
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let len = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let (word, behind) = rest.split_at(len);
        let is_number =
            word.chars().all(|c| c.is_ascii_hexdigit()) && word.contains(|c: char| c.is_ascii_digit());
        let named = behind.starts_with(".seg");
        // Modes and single digits carry meaning; other numbers differ between runs.
        words.push_str(if is_number && len > 1 && !named { "N" } else { word });
        let next = behind.chars().next().map_or(0, char::len_utf8);
        words.push_str(&behind[..next]);
        rest = &behind[next..];
    }
    words
}

/// Returns the value of a field in a line of the log.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let rest = line.split_once(&format!("\"{name}\":\""))?.1;
    let mut end = 0;
    let bytes = rest.as_bytes();
    while end < bytes.len() && bytes[end] != b'"' {
        end += if bytes[end] == b'\\' { 2 } else { 1 };
    }
    rest.get(..end)
}

/// Beginning of the message with which a member stops that cannot read a block of its index.
const TORN_INDEX: &str = "a part of the index cannot be read";

/// Reads the whole index, by key and by revision. Returns false if the member refuses that.
async fn reads_index(client: &Client) -> bool {
    let request =
        RangeRequest { key: "a".into(), range_end: crate::client::ALL.into(), ..RangeRequest::default() };
    let counted: Result<RangeResponse, _> =
        client.call(Rpc::KvRange, &RangeRequest { keys_only: true, ..request }).await;
    counted.is_ok() && client.hash_kv(0).await.is_ok()
}

impl Case {
    fn run(&self, original: &Original, dir: &Path, token: &str) -> Outcome {
        let data_dir = dir.join("data");
        let target = roles(&original.dir).remove(self.role);
        let touched = |path: &Path| Some(path) == target.as_deref() || self.damage.contains("exchanged");
        copy_tree(&original.dir, &data_dir, &touched);
        let roles = roles(&data_dir);
        let path = roles.get(self.role).cloned().unwrap_or_else(|| data_dir.clone());
        (self.apply)(&data_dir, &path, original);
        let mut command = setup(&data_dir, token, original.flags).command();
        without_privileges(&mut command);
        let mut member = Member::launch(command, None);
        let served = member.serves();
        let is_torn =
            served && !original.flags.is_empty() && run(async { !reads_index(&member.client().await).await });
        let outcome = if is_torn {
            assert!(!member.wait().success(), "the index is damaged, and the member goes on");
            let said = member.said();
            let line =
                said.lines().find(|line| line.contains(TORN_INDEX)).unwrap_or_else(|| panic!("{said}"));
            let begin = line.find(TORN_INDEX).unwrap_or_default();
            let error = line[begin..].split('"').next().unwrap_or_default();
            Outcome::Stopped(plain(error, &data_dir, &roles))
        } else if served {
            let compared = run(async {
                let client = member.client().await;
                // Damage to a segment may affect single values; damage to other files affects all values or none.
                let every = if self.role.ends_with("segment") { 1 } else { 8 };
                let compared = original.acknowledged.compare(&client, every).await;
                client.put("after", "x").await.expect("the member goes on");
                compared
            });
            let said = member.said();
            let told = |line: &&str| {
                line.contains("\"level\":\"warn\"") && (line.contains("damaged") || line.contains("repaired"))
            };
            let words: Vec<String> = said
                .lines()
                .filter(told)
                .filter_map(|line| {
                    field(line, "found").filter(|_| line.contains("repaired")).or(field(line, "msg"))
                })
                .map(|text| plain(text, &data_dir, &roles))
                .collect();
            member.kill();
            match compared {
                Ok(failing) if failing.is_empty() => Outcome::Whole(words),
                Ok(_) => Outcome::Failing(words),
                Err(lost) => {
                    let late = &original.acknowledged.late;
                    assert!(
                        lost.iter().all(|key| late.contains(key)),
                        "{}, {}: {lost:?} of long ago",
                        self.role,
                        self.damage
                    );
                    Outcome::Short(words)
                }
            }
        } else {
            let said = member.refuses();
            let line = said.lines().find(|line| line.contains("cannot start the member"));
            let error = line.and_then(|line| field(line, "error")).unwrap_or_else(|| panic!("{said}"));
            Outcome::Refused(plain(error, &data_dir, &roles))
        };
        // Without this, the directory could not be removed.
        for name in ["member", "member/log"] {
            let _ = fs::set_permissions(data_dir.join(name), fs::Permissions::from_mode(0o755));
        }
        fs::remove_dir_all(dir).expect("it is ours");
        outcome
    }
}

/// Runs all cases, several in parallel.
fn run_all(cases: &[Case], original: &Original, dir: &Path, token: &str) -> Vec<Outcome> {
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(vec![None; cases.len()]);
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(at) else { break };
                    let began = std::time::Instant::now();
                    let outcome = case.run(original, &dir.join(format!("case-{at}")), token);
                    if began.elapsed() > SLOW {
                        println!("{}, {} took {:?}: {outcome:?}", case.role, case.damage, began.elapsed());
                    }
                    outcomes.lock().expect("no worker panics")[at] = Some(outcome);
                }
            });
        }
    });
    let outcomes = outcomes.into_inner().expect("no worker panics");
    outcomes.into_iter().map(|outcome| outcome.expect("every case was run")).collect()
}

/// Asserts the conditions that every outcome has to satisfy.
fn check(case: &Case, outcome: &Outcome, limits: &[(&str, &str)]) {
    let what = format!("{}, {}: {outcome:?}", case.role, case.damage);
    match outcome {
        Outcome::Whole(_) => {}
        Outcome::Failing(_) => assert!(["old segment", "sealed segment"].contains(&case.role), "{what}"),
        Outcome::Short(words) => {
            assert!(limits.contains(&(case.role, case.damage)), "silent loss: {what}");
            let reported = !words.is_empty();
            assert!(
                reported || case.damage.contains("older copy") || case.damage.contains("zeroed page"),
                "{what}"
            );
        }
        Outcome::Refused(why) => {
            let file = why.contains('*')
                || why.contains('/')
                || why.contains(".tmp")
                || case.role == "whole directories";
            let remedies = [
                "mainstay rebuild",
                "allowed to read and write",
                "put the original file back",
                "move it elsewhere",
            ];
            assert!(file && remedies.iter().any(|remedy| why.contains(remedy)), "{what}");
        }
        Outcome::Stopped(why) => {
            assert!(["base run", "change file"].contains(&case.role), "{what}");
            assert!(why.contains("offset") && why.contains("mainstay rebuild"), "{what}");
        }
    }
}

/// Returns the table of one state, in Markdown, and the number of cases per kind of outcome.
fn table(cases: &[Case], outcomes: &[Outcome]) -> (String, [usize; 5]) {
    let mut text = String::from("| file | damage | what happens |\n|---|---|---|\n");
    let mut counts = [0; 5];
    for (case, outcome) in cases.iter().zip(outcomes) {
        let said = |words: &[String]| match words {
            [] => String::new(),
            words => format!("; logs: {}", words.join("; ")),
        };
        let (at, happens) = match outcome {
            Outcome::Whole(words) => (0, format!("starts, everything is there{}", said(words))),
            Outcome::Failing(words) => {
                let names = "starts; values in the damaged place return an error that names file and offset";
                (1, format!("{names}, all others are there{}", said(words)))
            }
            Outcome::Refused(why) => {
                let remedy = why.find(REMEDY_BEGIN).unwrap_or(why.len());
                let found =
                    why[..remedy].trim_end().trim_end_matches(" if it is gone,").trim_end_matches([';', ' ']);
                (2, format!("refuses: {found}"))
            }
            Outcome::Stopped(why) => {
                let found = why[..why.find(REMEDY_BEGIN).unwrap_or(why.len())].trim_end_matches([';', ' ']);
                (
                    4,
                    format!(
                        "starts; the first read that needs what is damaged is refused, and the member stops: {found}"
                    ),
                )
            }
            Outcome::Short(words) => {
                (3, format!("**limit:** starts without what was written last{}", said(words)))
            }
        };
        counts[at] += 1;
        let role = case.role;
        writeln!(text, "| {role} | {} | {} |", case.damage, happens.replace('|', "\\|"))
            .expect("a string grows");
    }
    (text, counts)
}

/// Beginning of the usual remedy, which the table does not repeat in every line.
const REMEDY_BEGIN: &str = "data that this member acknowledged may be missing";

#[test]
fn every_file_damaged_in_every_way() {
    let dir = TempDir::in_memory("table");
    let make = |name: &str, token: &str, lacking, crash| {
        Original::make(&dir.path().join(name), token, lacking, crash, &[])
    };
    let other = make("other", ANOTHER, false, false);
    let mut text = String::new();
    let mut total = [0; 5];
    let mut wrong = 0;
    let writes = std::env::var_os("MAINSTAY_WRITE_DOCS").is_some();
    let full = writes || std::env::var_os("MAINSTAY_FULL_TABLE").is_some();
    let mut section = |title: &str, original: &Original, mut cases: Vec<Case>, limits: &[(&str, &str)]| {
        if !full {
            let mut at = 0;
            cases.retain(|_| {
                at += 1;
                at % SAMPLED == 0
            });
        }
        let cases = cases.as_slice();
        let outcomes = run_all(cases, original, &dir.path().join("cases"), "table");
        for (case, outcome) in cases.iter().zip(&outcomes) {
            println!("{}, {}: {outcome:?}", case.role, case.damage);
        }
        for (case, outcome) in cases.iter().zip(&outcomes) {
            // All failures are reported before the test fails.
            wrong += usize::from(std::panic::catch_unwind(|| check(case, outcome, limits)).is_err());
        }
        let (rows, counts) = table(cases, &outcomes);
        writeln!(text, "\n## {title}\n\n{rows}").expect("a string grows");
        for (sum, count) in total.iter_mut().zip(counts) {
            *sum += count;
        }
    };

    // A member that was shut down cleanly, and whose log holds everything.
    let stopped = make("stopped", "table", false, false);
    let mut cases = Vec::new();
    for role in ["old segment", "sealed segment", "active segment"] {
        cases.extend(common(role));
        cases.extend(in_log(role));
        cases.extend(replaced(role, other.dir.clone()));
    }
    cases.push(exchanged("sealed segment", "old segment", "exchanged with the segment before"));
    cases.push(exchanged("active segment", "sealed segment", "exchanged with the segment before"));
    cases.extend(common("prepared segment"));
    cases.push(case("prepared segment", "a flipped bit in its header", |_, path, _| flip(path, 20)));
    cases.push(case("prepared segment", "a flipped bit behind its header", |_, path, _| flip(path, 5000)));
    cases.extend(common("free file"));
    for role in ["manifest", "base run", "delta run"] {
        cases.extend(common(role));
        cases.extend(contents(role));
    }
    cases.extend(replaced("manifest", other.dir.clone()));
    cases.push(exchanged("base run", "delta run", "exchanged with the delta run"));
    for role in ["witness", "lock"] {
        cases.extend(common(role));
    }
    cases.extend(contents("witness"));
    cases.extend(replaced("witness", other.dir.clone()));
    cases.extend(left_over());
    cases.extend(whole_directories(&other.dir));
    section("A member that was shut down cleanly", &stopped, cases, &[]);

    // A member that was killed: no record says where its log ended.
    let killed = make("killed", "table", false, true);
    let mut cases = Vec::new();
    for role in ["sealed segment", "active segment"] {
        cases.extend(common(role));
        cases.extend(in_log(role));
        cases.extend(replaced(role, other.dir.clone()));
    }
    cases.extend(common("prepared segment"));
    cases.extend(whole_directories(&other.dir));
    let limits = [
        ("active segment", "a flipped bit at its end"),
        ("active segment", "a zeroed page at its end"),
        ("active segment", "an older copy of itself in its place"),
    ];
    section("A member that was killed, and has no checkpoint", &killed, cases, &limits);

    // A member whose log no longer has the first entries, so that it needs its checkpoint.
    let lacking = make("lacking", "table", true, false);
    let mut cases = Vec::new();
    for role in ["manifest", "base run"] {
        cases.extend(common(role));
        cases.extend(contents(role));
    }
    cases.extend(replaced("manifest", other.dir.clone()));
    cases.extend(whole_directories(&other.dir));
    section("A member whose log no longer begins with the first entry", &lacking, cases, &[]);

    // The same with an index of which most is read from the checkpoint in blocks.
    const BUDGET: &[&str] = &["--memory-budget=1"];
    let in_blocks = Original::make(&dir.path().join("in-blocks"), "table", true, false, BUDGET);
    let mut cases = Vec::new();
    for role in ["base run", "change file", "list of blocks"] {
        cases.extend(common(role));
        cases.extend(contents(role));
    }
    cases.push(exchanged("change file", "list of blocks", "exchanged with the list of blocks"));
    cases.push(exchanged("base run", "change file", "exchanged with the change file"));
    section("The same with a memory budget", &in_blocks, cases, &[]);

    let [whole, failing, refused, short, stopped] = total;
    let counts = format!(
        "{} cases: {whole} start with everything, {failing} start and answer some values with an error, {refused} are \
         refused, {stopped} stop when a read needs what is damaged, {short} are the limit described above.\n",
        whole + failing + refused + stopped + short
    );
    println!("{counts}");
    let made = format!("{counts}{text}");
    if writes {
        write_docs(&made);
    }
    assert_eq!(wrong, 0, "cases with an outcome that must not be");
    if !writes {
        compare_docs(&made, full);
    }
}

/// Returns the documentation in three parts: before the tables, the tables, and after them.
fn docs() -> (String, String, String) {
    let docs = fs::read_to_string(DOCS).expect("the documentation is there");
    let (before, rest) = docs.split_once(BEGIN).expect("it has the mark of the beginning");
    let (tables, behind) = rest.split_once(END).expect("it has the mark of the end");
    (before.to_owned(), tables.to_owned(), behind.to_owned())
}

fn write_docs(made: &str) {
    let (before, _, behind) = docs();
    fs::write(DOCS, format!("{before}{BEGIN}{made}{END}{behind}")).expect("the documentation can be written");
}

/// Checks that every row is in its section of the documentation; if all cases were run, also that there are
/// no other rows.
fn compare_docs(made: &str, full: bool) {
    let (_, tables, _) = docs();
    if tables.is_empty() {
        // The tables were never written; the outcomes were checked all the same.
        println!("docs/reference/damage.md has no tables: run this test with MAINSTAY_WRITE_DOCS=1");
        return;
    }
    let stale = "docs/reference/damage.md is out of date: run this test with MAINSTAY_WRITE_DOCS=1";
    let mut rest = tables.as_str();
    for line in made.lines().filter(|line| full || line.starts_with("## ") || line.starts_with("| ")) {
        let at = rest.find(&format!("{line}\n")).unwrap_or_else(|| panic!("{stale}; it has no line\n{line}"));
        rest = &rest[at + line.len()..];
    }
    if full {
        assert_eq!(made, tables, "{stale}");
    }
}
