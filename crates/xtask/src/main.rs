//! Runs the commands for developers of Mainstay, which [`USAGE`] lists.
//!
//! The commands write generated files (`proto`, `console`, `crates`, `dashboards`), check dependencies, and
//! build packages, bills of materials and releases. Of the code of a member, the crate uses only the table of metrics
//! and the list of RPCs. Its tests, beside the code, check properties of the whole repository: that the
//! crates depend on each other only in the order in `ARCHITECTURE.md`, that only the listed crates contain
//! unsafe code, that `clippy.toml` bans what it should, and that all generated files are current. Start
//! reading with `main` and `crates.rs`.

#![forbid(unsafe_code)]

mod circles;
mod compat;
mod console;
mod crates;
mod deb;
mod dependencies;
mod generated;
mod monitoring;
mod notices;
mod proto;
mod release;
mod release_notes;
mod sbom;

use std::process::{Command, ExitCode};

const USAGE: &str = "usage: cargo xtask VERB

  proto           regenerate crates/api/src/proto/*.rs from crates/api/proto/*.proto
  proto --check   say whether they are up to date, and change nothing
  console         regenerate crates/console/src/table.rs, the list of the files of crates/console/assets
  console --check say whether it is up to date, and change nothing
  crates          regenerate the list of which crate uses which, in ARCHITECTURE.md
  circles         say whether files of a crate use each other in large circles, and which use to turn around
  compat          say whether the tests exist that COMPAT.md names
  dependencies    say whether all that is taken from others may be used: licences, sources, versions
  dashboards      write the dashboard, rules, alerts, runbook and docs/metrics.md from the table of metrics
  dashboards --check
                  say whether they are up to date, and change nothing
  deb [BINARY]    make a Debian package of target/release/mainstay, or of another binary: target/debian/*.deb
  notices         write packaging/third-party-notices.txt, the licences of what the binary contains
  notices --check say whether it is up to date, and change nothing
  sbom            list what the binary is made of, in CycloneDX's JSON: target/sbom/mainstay.cdx.json
  release [--target TRIPLE]... [--out FOLDER] [--profile NAME] [--sign KEY] [--builder URI]
                  build the artefacts of a release: target/release-artefacts. KEY is a file of minisign, and the
                  targets are (x86_64|aarch64)-unknown-linux-(gnu|musl); docs/release.md
  release-notes VERSION
                  print the section of CHANGELOG.md of that version
  check           form, lints and generated files: .ci/run checks
  ci [PART]       what has to hold before a change goes in: .ci/run; `full` is everything else
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["proto"] => proto::generate().and_then(|files| generated::write(&files)),
        ["proto", "--check"] => proto::generate().and_then(|files| generated::check(&files, "proto")),
        ["console"] => console::generate().and_then(|files| generated::write(&files)),
        ["console", "--check"] => console::generate().and_then(|files| generated::check(&files, "console")),
        ["crates"] => crates::write(),
        ["circles"] => circles::check(),
        ["compat"] => compat::check(),
        ["dependencies"] => dependencies::check(),
        ["dashboards"] => monitoring::generate().and_then(|files| generated::write(&files)),
        ["dashboards", "--check"] => {
            monitoring::generate().and_then(|files| generated::check(&files, "dashboards"))
        }
        ["notices"] => notices::generate().and_then(|files| generated::write(&files)),
        ["notices", "--check"] => notices::generate().and_then(|files| generated::check(&files, "notices")),
        ["sbom"] => sbom::write(),
        ["release", words @ ..] => release::make(words),
        ["release-notes", version] => release_notes::print(version),
        ["deb"] => deb::make(None),
        ["deb", binary] => deb::make(Some(binary)),
        ["check"] => ci(&["checks"]),
        ["ci"] => ci(&[]),
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs `.ci/run`, the script that CI runs too, so that there is only one list of checks.
fn ci(arguments: &[&str]) -> Result<String, String> {
    let script = generated::root().join(".ci/run");
    let status =
        Command::new(&script).args(arguments).status().map_err(|e| format!("{}: {e}", script.display()))?;
    if status.success() {
        Ok("all of it holds".to_owned())
    } else {
        Err("something does not hold".to_owned())
    }
}
