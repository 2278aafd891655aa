//! Compares outputs, errors and exit codes with etcdutl's.
//!
//! `golden/etcdutl-3.7.txt` was recorded with etcdutl 3.7.3: `MAINSTAY_REWRITE_GOLDEN=1
//! MAINSTAY_TEST_ETCD_DIR=DIR cargo test -p mainstay-utl --test it golden`, to be reviewed before it is
//! committed. Of standard error only lines that begin with `Error:` are compared, because log lines contain
//! times and places in etcd's source. Help texts are compared completely, except for Mainstay's own examples.
//! Cases in which etcdutl panics have no line.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use testkit::TempDir;

use crate::kit::{RELEASES, etcd_dir, golden, snapshot, text, utl};

const NAME: &str = "tests/it/golden/etcdutl-3.7.txt";

/// Commands, each on its own files; commands separated by `;` run one after the other on the same files.
fn cases() -> Vec<String> {
    let mut cases = Vec::new();
    for release in RELEASES {
        for format in ["simple", "fields", "json", "table", "protobuf", "other"] {
            cases.push(format!("snapshot status {release}.db -w {format}"));
            cases.push(format!("hashkv {release}.db --write-out={format}"));
        }
        for revision in ["0", "4", "5", "9", "10", "3", "11", "-1", "x"] {
            cases.push(format!("hashkv {release}.db --rev={revision} -w json"));
        }
        for target in ["3.5", "3.6", "3.7", "3.8"] {
            cases.push(format!(
                "migrate --data-dir {release}.etcd --target-version {target}; \
                 snapshot status {release}.etcd/member/snap/db -w fields; hashkv {release}.etcd/member/snap/db"
            ));
        }
        cases.push(format!(
            "defrag --data-dir {release}.etcd; snapshot status {release}.etcd/member/snap/db -w fields"
        ));
    }
    for target in ["3.4", "3", "3.x", "3.6.0", "4.0", "x.6", "", "3.4 --force", "4.0 --force", "3.9 --force"]
    {
        cases.push(format!(
            "migrate --data-dir 3.6.etcd --target-version {target}; snapshot status 3.6.etcd/member/snap/db -w fields"
        ));
    }
    let rest = [
        "snapshot",
        "snapshot status",
        "snapshot status 3.7.db 3.6.db",
        "snapshot status missing.db",
        "snapshot status missing.db -w other",
        "snapshot status 3.7.db --bogus",
        "snapshot status flipped.db",
        "snapshot bogus",
        "hashkv",
        "hashkv 3.7.db 3.6.db",
        "hashkv missing.db",
        "hashkv 3.7.db -w",
        "defrag",
        "defrag --data-dir missing",
        "migrate",
        "migrate --data-dir 3.6.etcd",
        "migrate --data-dir missing --target-version 3.6",
        "completion",
        "completion tcsh",
        "help",
        "help help",
        "help put",
        "snapshot --help",
        "snapshot status --help",
        "help snapshot restore",
        "hashkv --help",
        "defrag --help",
        "migrate --help",
        "version --help",
        "completion --help",
        "bogus",
        "--bogus",
        "version --bogus",
        "snapshot restore",
        "snapshot restore 3.7.db 3.6.db",
        "snapshot restore missing.db --data-dir out",
        "snapshot restore 3.7.db --data-dir 3.6.etcd",
        "snapshot restore 3.7.db --data-dir out --wal-dir 3.6.etcd FORMAT",
        "snapshot restore 3.7.db --data-dir out --bump-revision 5",
        "snapshot restore 3.7.db --data-dir out --mark-compacted",
        "snapshot restore 3.7.db --data-dir out --bump-revision -1 --mark-compacted",
        "snapshot restore 3.7.db --data-dir out --name other",
        "snapshot restore 3.7.db --data-dir out --initial-cluster default=bogus",
        "snapshot restore 3.7.db --data-dir out --initial-cluster default",
        "snapshot restore 3.7.db --data-dir out --initial-cluster=",
        "snapshot restore 3.7.db --data-dir out --initial-advertise-peer-urls bogus",
        "snapshot restore 3.7.db --data-dir out --initial-advertise-peer-urls=",
        "snapshot restore 3.7.db --data-dir out --initial-cluster a=http://127.0.0.1:1,default=http://localhost:2380,b=http://127.0.0.1:1",
        "snapshot restore bare.db --data-dir out",
        "snapshot restore flipped.db --data-dir out",
        "snapshot restore cut.db --data-dir out",
    ];
    cases.extend(rest.map(str::to_owned));
    for (file, more) in [
        ("3.4.db", ""),
        ("3.5.db", ""),
        ("3.6.db", ""),
        ("3.7.db", ""),
        ("3.7.db", "--bump-revision 100 --mark-compacted"),
        ("bare.db", "--skip-hash-check"),
        (
            "3.6.db",
            "--name m1 --initial-cluster m1=http://127.0.0.1:1,m2=http://127.0.0.1:2,m3=http://127.0.0.1:3 --initial-advertise-peer-urls http://127.0.0.1:1 --initial-cluster-token t",
        ),
    ] {
        cases.push(format!(
            "snapshot restore {file} --data-dir out {more} FORMAT; hashkv out/member/snap/db; hashkv out/member/snap/db --rev 10"
        ));
    }
    cases
}

fn prepare(dir: &TempDir) {
    for release in RELEASES {
        snapshot(dir, release);
        etcd_dir(dir, release);
    }
    let whole = golden("3.7-snapshot");
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.join(name), bytes).expect("is written");
    write("bare.db", &whole[..whole.len() - 32]);
    write("cut.db", &whole[..30_000]);
    let mut flipped = whole;
    flipped[20_000] ^= 1;
    write("flipped.db", &flipped);
}

/// Appends the compared parts of a command's result to `told`.
fn note(told: &mut String, line: &str, code: i32, out: &str, err: &str) {
    let _ = writeln!(told, "$ {line}\n= {code}");
    // The size of a file depends on the program that wrote it.
    let is_written = line.contains("/snap/db");
    let mut in_example = false;
    for line in out.lines().filter(|line| !is_written || !line.starts_with("\"Size\"")) {
        in_example = line == "Examples:" || in_example && line != "Flags:";
        if !in_example {
            let _ = writeln!(told, "{line}");
        }
    }
    let mut last = "";
    for line in err.lines().filter(|line| line.starts_with("Error:")) {
        if line != last {
            let _ = writeln!(told, "! {line}");
        }
        last = line;
    }
}

fn words<'l>(line: &'l str, dir: &Path, format: &'l str) -> Vec<String> {
    let is_file = |word: &str| word.ends_with(".db") || word.ends_with("db") || word.ends_with(".etcd");
    line.split(' ')
        .filter(|word| !word.is_empty())
        .flat_map(|word| match word {
            "FORMAT" => format.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect(),
            "out" | "missing" => vec![text(&dir.join(word)).to_owned()],
            word if is_file(word) => vec![text(&dir.join(word)).to_owned()],
            word => vec![word.to_owned()],
        })
        .collect()
}

fn record(real: Option<&Path>) -> String {
    let mut told = String::new();
    for case in cases() {
        let dir = TempDir::new("golden");
        prepare(&dir);
        for line in case.split(';').map(str::trim) {
            let root = dir.join("");
            match real {
                Some(program) => {
                    let output = Command::new(program)
                        .args(words(line, &root, ""))
                        .output()
                        .unwrap_or_else(|e| panic!("{}: {e}", program.display()));
                    let text = |bytes: &[u8]| {
                        String::from_utf8_lossy(bytes).replace(text(&root), "DIR/").replace("DIR//", "DIR/")
                    };
                    let code = output.status.code().unwrap_or(-1);
                    note(&mut told, line, code, &text(&output.stdout), &text(&output.stderr));
                }
                None => {
                    let words = words(line, &root, "--format etcd");
                    let words: Vec<&str> = words.iter().map(String::as_str).collect();
                    let found = utl(&words);
                    let masked =
                        |text: &str| text.replace(self::text(&root), "DIR/").replace("DIR//", "DIR/");
                    note(&mut told, line, found.code.into(), &masked(&found.out), &masked(&found.err));
                }
            }
        }
    }
    told
}

/// Deliberate differences: the command, and the reason.
const DIFFERENCES: [(&str, &str); 8] = [
    ("hashkv 3.4.db --rev=-1 -w json", NO_REVISION),
    ("hashkv 3.5.db --rev=-1 -w json", NO_REVISION),
    ("hashkv 3.6.db --rev=-1 -w json", NO_REVISION),
    ("hashkv 3.7.db --rev=-1 -w json", NO_REVISION),
    ("help", "`import` and `export` are ours"),
    ("help help", "the help text of the tool, in which `help` has its line"),
    ("help put", "a command that does not exist is an error for `help` too"),
    ("help snapshot restore", "`--format` is ours"),
];
const NO_REVISION: &str = "etcdutl hashes nothing and calls that the hash of revision -1";

#[test]
fn outputs_are_those_of_etcdutl() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(NAME);
    if std::env::var_os("MAINSTAY_REWRITE_GOLDEN").is_some() {
        let dir = std::env::var_os("MAINSTAY_TEST_ETCD_DIR").expect("says where etcdutl-3.7 is");
        let real = record(Some(&Path::new(&dir).join("etcdutl-3.7")));
        std::fs::create_dir_all(path.parent().expect("has one")).expect("is made");
        std::fs::write(&path, real).expect("is written");
    }
    let expected = std::fs::read_to_string(&path).expect("was recorded");
    let found = record(None);
    let blocks = |text: &str| -> Vec<String> {
        text.split("\n$ ").map(|block| block.trim_start_matches("$ ").trim_end().to_owned()).collect()
    };
    let (expected, found) = (blocks(&expected), blocks(&found));
    assert_eq!(expected.len(), found.len());
    let mut wrong = String::new();
    for (expected, found) in expected.iter().zip(&found) {
        let known = DIFFERENCES.iter().find(|(command, _)| expected.lines().next() == Some(*command));
        match (expected == found, known) {
            (true, None) | (false, Some(_)) => {}
            (true, Some((command, why))) => {
                let _ = writeln!(wrong, "{command} differs no longer, although {why}");
            }
            (false, None) => {
                let _ = writeln!(wrong, "--- etcdutl\n{expected}\n+++ utl\n{found}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
