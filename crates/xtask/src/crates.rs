//! Enforces the allowed dependencies between the crates of this repository, and writes the list of them in
//! ARCHITECTURE.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use crate::generated::root;

/// All crates, from the lowest to the highest. A crate may use only crates before it in this list.
/// Dev-dependencies do not count.
const ORDER: &[&str] = &[
    "stdx",
    "numbers",
    "planted",
    "clock",
    "disk",
    "compression",
    "api",
    "gateway",
    "html-report",
    "transport",
    "tls",
    "accounting",
    "mvcc",
    "machine",
    "consensus",
    "log",
    "cli",
    "telemetry",
    "config",
    "identity",
    "http2",
    "front",
    "peer",
    "profiling",
    "console",
    "interchange",
    "storage",
    "replica",
    "consistency",
    "client",
    "rpc",
    "server",
    "ctl",
    "utl",
    "bench",
    "doctor",
    "proxy",
    "shadow",
    "backup",
    "mainstay",
    "testkit",
    "oracle",
    "sim",
    "torture",
    "interleaving",
    "fuzzing",
    "xtask",
];

/// Lines of ARCHITECTURE.md directly before the generated list.
const BEGIN: &str = "<!-- crates: written by `cargo xtask crates` -->\n```text\n";
const END: &str = "```\n<!-- crates: end -->\n";

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Returns for each crate the other crates of this repository on which it depends.
fn dependencies() -> Result<BTreeMap<String, Vec<String>>, String> {
    let folder = root().join("crates");
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(&folder).map_err(|e| format!("{}: {e}", folder.display()))? {
        let name = entry.map_err(|e| e.to_string())?.file_name().to_string_lossy().into_owned();
        let manifest = folder.join(&name).join("Cargo.toml");
        if !manifest.exists() {
            continue;
        }
        let text = read(&manifest)?;
        let section = text.split("\n[").find_map(|section| section.strip_prefix("dependencies]\n"));
        let names = section.unwrap_or_default().lines().filter_map(|line| line.split(['.', ' ', '=']).next());
        found.insert(name, names.filter(|name| !name.is_empty()).map(str::to_owned).collect::<Vec<_>>());
    }
    let crates: Vec<String> = found.keys().cloned().collect();
    found.values_mut().for_each(|uses| uses.retain(|used| crates.contains(used)));
    Ok(found)
}

/// Returns the dependencies in `uses` that are not also dependencies of another crate in `uses`.
fn direct<'a>(uses: &'a [String], all: &BTreeMap<String, Vec<String>>) -> Vec<&'a str> {
    fn leads(from: &str, to: &str, all: &BTreeMap<String, Vec<String>>) -> bool {
        all.get(from).is_some_and(|uses| uses.iter().any(|used| used == to || leads(used, to, all)))
    }
    uses.iter().filter(|used| !uses.iter().any(|other| leads(other, used, all))).map(String::as_str).collect()
}

/// Returns the list for ARCHITECTURE.md: one line for each crate with its dependencies.
fn drawn() -> Result<String, String> {
    let all = dependencies()?;
    let place = |name: &str| ORDER.iter().position(|known| *known == name);
    let mut wrong = String::new();
    for (name, uses) in &all {
        let Some(own) = place(name) else {
            let _ = writeln!(wrong, "{name} has no place in the order of crates");
            continue;
        };
        for used in uses.iter().filter(|used| place(used).is_some_and(|used| used >= own)) {
            let _ = writeln!(wrong, "{name} uses {used}, which stands above it");
        }
    }
    for name in ORDER.iter().filter(|name| !all.contains_key(**name)) {
        let _ = writeln!(wrong, "there is no crate {name}");
    }
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let mut text = String::new();
    for name in ORDER {
        let mut uses = direct(&all[*name], &all);
        uses.sort_by_key(|used| place(used));
        let _ = writeln!(text, "{}", format!("{name:14}{}", uses.join(" ")).trim_end());
    }
    Ok(text)
}

/// Splits ARCHITECTURE.md into the text before the list, the list, and the text after it.
fn split(page: &str) -> Result<(&str, &str, &str), String> {
    let missing = || format!("ARCHITECTURE.md has no place for the list of crates: {BEGIN}{END}");
    let (before, rest) = page.split_once(BEGIN).ok_or_else(missing)?;
    let (list, after) = rest.split_once(END).ok_or_else(missing)?;
    Ok((before, list, after))
}

/// Writes the list of crates and their dependencies into ARCHITECTURE.md.
///
/// # Errors
///
/// Returns an error if [`ORDER`] does not name exactly the existing crates, if a crate depends on a crate
/// that is not before it in `ORDER`, if ARCHITECTURE.md lacks the lines around the list, or if a file cannot
/// be read or written.
pub fn write() -> Result<String, String> {
    let path = root().join("ARCHITECTURE.md");
    let page = read(&path)?;
    let (before, _, after) = split(&page)?;
    let page = format!("{before}{BEGIN}{}{END}{after}", drawn()?);
    fs::write(&path, page).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok("the list of crates is written".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Crates that contain unsafe code. All others forbid it.
    const UNSAFE: [&str; 9] =
        ["mvcc", "disk", "profiling", "ctl", "doctor", "mainstay", "torture", "interleaving", "fuzzing"];

    /// Crates that do no input or output, read no clock, start no threads and generate no random numbers
    /// (invariant I1).
    const PURE: [&str; 4] = ["api", "mvcc", "machine", "consensus"];

    #[test]
    fn every_crate_uses_only_those_before_it() {
        let drawn = drawn().unwrap_or_else(|wrong| panic!("{wrong}"));
        let page = read(&root().join("ARCHITECTURE.md")).expect("the page is there");
        let (_, list, _) = split(&page).expect("the list is there");
        assert_eq!(list, drawn, "`cargo xtask crates` writes it anew");
    }

    #[test]
    fn what_leads_to_another_anyway_is_left_out() {
        let uses = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let all = BTreeMap::from([
            ("a".to_owned(), uses(&[])),
            ("b".to_owned(), uses(&["a"])),
            ("c".to_owned(), uses(&["a", "b"])),
        ]);
        assert_eq!(direct(&all["c"], &all), ["b"]);
    }

    #[test]
    fn unchecked_code_stays_where_it_is() {
        for name in ORDER {
            let source = root().join("crates").join(name).join("src");
            let main = ["lib.rs", "main.rs"].map(|file| source.join(file));
            let text = main.iter().find_map(|path| read(path).ok()).expect("a crate has a root");
            let forbids = text.contains("#![forbid(unsafe_code)]");
            assert_eq!(forbids, !UNSAFE.contains(name), "{name}: `#![forbid(unsafe_code)]` in its root");
        }
    }

    #[test]
    fn pure_crates_are_refused_clocks_threads_files_and_randomness() {
        let bans =
            PURE.map(|name| read(&root().join("crates").join(name).join("clippy.toml")).expect("bans"));
        assert!(bans.iter().all(|ban| *ban == bans[0]), "all are refused the same");
        for banned in [
            "std::time::Instant::now",
            "std::time::SystemTime::now",
            "std::thread::spawn",
            "std::fs::File::open",
        ] {
            assert!(bans[0].contains(&format!("path = \"{banned}\"")), "{banned}");
        }
    }

    /// rustdoc takes a second for each crate, so doc tests are switched off for crates without examples. This
    /// test fails if such a crate has an example, which would not run.
    #[test]
    fn every_example_in_documentation_is_run() {
        for name in ORDER {
            let folder = root().join("crates").join(name);
            let has_tests =
                !read(&folder.join("Cargo.toml")).expect("a crate has one").contains("doctest = false");
            let examples = examples_below(&folder.join("src")).expect("sources can be read");
            let is_library = folder.join("src/lib.rs").exists();
            assert!(
                !is_library || has_tests != examples.is_empty(),
                "{name}: `doctest` in Cargo.toml, {examples:?}"
            );
        }
    }

    /// Returns the file and line of each Rust code block in the documentation comments below a directory.
    fn examples_below(folder: &Path) -> std::io::Result<Vec<String>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                found.extend(examples_below(&path)?);
                continue;
            }
            if path.extension().is_none_or(|e| e != "rs") {
                continue;
            }
            let mut is_open = false;
            for (number, line) in fs::read_to_string(&path)?.lines().enumerate() {
                let line = line.trim_start();
                let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
                let Some(language) = text.and_then(|text| text.trim_start().strip_prefix("```")) else {
                    continue;
                };
                if !is_open && matches!(language.trim(), "" | "rust" | "no_run" | "should_panic") {
                    found.push(format!("{}:{}", path.display(), number + 1));
                }
                is_open = !is_open;
            }
        }
        Ok(found)
    }
}
