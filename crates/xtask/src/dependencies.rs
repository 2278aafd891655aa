//! Checks third-party dependencies: their licenses and sources, and that no package is built in two versions.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Licenses that dependencies may have, by their SPDX names.
const LICENCES: [&str; 8] =
    ["0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "Unicode-3.0", "Zlib"];

/// The only source from which dependencies may come.
const SOURCE: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// Packages that are allowed to be built in two versions, until the dependencies that need the older version
/// are updated.
const TWICE: [&str; 15] = [
    "base64",
    "bitflags",
    "cpufeatures",
    "getrandom",
    "hashbrown",
    "logos",
    "logos-codegen",
    "logos-derive",
    "rand",
    "rand_chacha",
    "rand_core",
    "syn",
    "synstructure",
    "thiserror",
    "thiserror-impl",
];

/// Checks every package that is built on Linux.
///
/// # Errors
///
/// Returns an error that names each package that may not be used, or that is built twice without being
/// listed.
pub fn check() -> Result<String, String> {
    let metadata = metadata()?;
    let built = strings(&metadata["resolve"]["nodes"], "id");
    let built: BTreeSet<&str> = built.iter().map(String::as_str).collect();
    let none = Vec::new();
    let packages = metadata["packages"].as_array().unwrap_or(&none);
    let packages: Vec<&Value> = packages
        .iter()
        .filter(|package| package["id"].as_str().is_some_and(|id| built.contains(id)))
        .collect();
    let wrong = wrong(&packages);
    if wrong.is_empty() {
        Ok(format!("{} packages may be used as they are", packages.len()))
    } else {
        Err(wrong.join("\n"))
    }
}

/// Returns cargo's metadata for a build on Linux, with the versions of the lock file.
pub fn metadata() -> Result<Value, String> {
    metadata_of("x86_64-unknown-linux-gnu")
}

/// Returns cargo's metadata for a build for a target, with the versions of the lock file.
pub fn metadata_of(target: &str) -> Result<Value, String> {
    let platform = format!("--filter-platform={target}");
    let arguments = ["metadata", "--format-version=1", "--locked", &platform];
    let output = Command::new(env!("CARGO")).args(arguments).output().map_err(|e| format!("cargo: {e}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|e| format!("cargo metadata: {e}"))
}

fn strings(list: &Value, field: &str) -> Vec<String> {
    let items = list.as_array().into_iter().flatten();
    items.filter_map(|item| item[field].as_str().map(str::to_owned)).collect()
}

fn wrong(packages: &[&Value]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in packages {
        let (Some(name), Some(version)) = (package["name"].as_str(), package["version"].as_str()) else {
            wrong.push(format!("a package without a name or version: {package}"));
            continue;
        };
        versions.entry(name).or_default().push(version);
        // Crates of this repository have no source. They have a description; other packages are somebody else's.
        if package["source"].is_null() && package["description"].as_str().is_none_or(str::is_empty) {
            wrong.push(format!("{name} has no description in its Cargo.toml"));
        }
        if let Some(source) = package["source"].as_str()
            && source != SOURCE
        {
            wrong.push(format!("{name} {version} comes from {source}"));
        }
        match package["license"].as_str() {
            Some(licence) if is_allowed(licence) => {}
            Some(licence) => wrong.push(format!("{name} {version} is under {licence}")),
            None => wrong.push(format!("{name} {version} names no licence")),
        }
    }
    for (name, versions) in &versions {
        if versions.len() > 1 && !TWICE.contains(name) {
            wrong.push(format!("{name} is built in several versions: {}", versions.join(", ")));
        }
    }
    for name in TWICE.iter().filter(|name| versions.get(*name).is_none_or(|versions| versions.len() < 2)) {
        wrong.push(format!("{name} is not built twice any more: take it off the list"));
    }
    wrong
}

/// Returns true if the allowed licenses satisfy an SPDX expression. `/` is an older notation for `OR`.
/// Exceptions are ignored, because they only add permissions to a license.
fn is_allowed(expression: &str) -> bool {
    let flat = expression.replace(['(', ')'], " ").replace('/', " OR ");
    // Parentheses are ignored and `OR` binds stronger than `AND`. This is enough, because all expressions of
    // dependencies that combine the two have the form `(A OR B) AND C`.
    flat.split(" AND ").all(|all| {
        all.split(" OR ").any(|one| LICENCES.contains(&one.split(" WITH ").next().unwrap_or(one).trim()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn all_that_is_taken_from_others_may_be_used() {
        check().unwrap();
    }

    #[test]
    fn licences_are_read() {
        for good in ["MIT", "MIT/Apache-2.0", "(MIT OR Apache-2.0) AND Unicode-3.0", "GPL-3.0 OR MIT"] {
            assert!(is_allowed(good), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "", "MITX"] {
            assert!(!is_allowed(bad), "{bad}");
        }
    }

    #[test]
    fn what_may_not_be_used_is_named() {
        let package = |name: &str, version: &str, licence: &str, source: &str| json!({ "name": name, "version": version, "license": licence, "source": source });
        let twice: Vec<Value> = TWICE
            .iter()
            .flat_map(|name| ["1.0.0", "2.0.0"].map(|version| package(name, version, "MIT", SOURCE)))
            .collect();
        let strange = [
            json!({ "name": "d", "version": "1.0.0", "license": "MIT", "source": null }),
            package("a", "1.0.0", "GPL-3.0", SOURCE),
            package("b", "1.0.0", "MIT", "git+https://example.com"),
            package("c", "1.0.0", "MIT", SOURCE),
            package("c", "2.0.0", "MIT", SOURCE),
        ];
        let good: Vec<&Value> = twice.iter().collect();
        assert_eq!(wrong(&good), Vec::<String>::new());
        let all: Vec<&Value> = twice.iter().skip(1).chain(&strange).collect();
        let found = wrong(&all);
        assert_eq!(found.len(), 5, "{found:?}");
        for (text, of) in found.iter().zip([
            "d has no description",
            "a 1.0.0 is under",
            "b 1.0.0 comes from",
            "c is built",
            TWICE[0],
        ]) {
            assert!(text.starts_with(of), "{text}");
        }
    }
}
