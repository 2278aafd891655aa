//! `cargo xtask notices`: writes `packaging/third-party-notices.txt`, the licences of all packages whose code
//! the binary contains. Each text appears once, below the packages that bring it. The file is part of the
//! tarballs, the packages and the image.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::dependencies;
use crate::generated::Files;
use crate::sbom::{Kind, reached};

const FILE: &str = "packaging/third-party-notices.txt";
/// Targets of the release. A package is listed if one of the builds contains it.
const TARGETS: [&str; 4] = [
    "x86_64-unknown-linux-gnu",
    "aarch64-unknown-linux-gnu",
    "x86_64-unknown-linux-musl",
    "aarch64-unknown-linux-musl",
];
/// First words of the names of files with licences and notices, in capitals.
const NAMES: [&str; 6] = ["LICENSE", "LICENCE", "COPYING", "COPYRIGHT", "NOTICE", "UNLICENSE"];
/// Endings of files with such a name that are no text of a licence.
const OTHER_ENDINGS: [&str; 4] = ["rs", "toml", "py", "spdx"];
/// Licences of what every build contains besides packages.
const TOOLCHAIN: &str = include_str!("notices/toolchain.txt");
const RULE: &str = "--------------------------------------------------------------------------------";

/// Generates the file.
///
/// # Errors
///
/// Returns an error if `cargo metadata` fails or lacks a field, or if a file cannot be read.
pub fn generate() -> Result<Files, String> {
    let mut packages = BTreeMap::new();
    for target in TARGETS {
        let metadata = dependencies::metadata_of(target)?;
        for package in reached(&metadata, Kind::Linked)?.1 {
            if !package["source"].is_null() {
                let field = |name: &str| package[name].as_str().unwrap_or_default().to_owned();
                packages.insert((field("name"), field("version")), package.clone());
            }
        }
    }
    Ok(Files::from([(FILE.to_owned(), text(packages.values())?)]))
}

/// A licence's text, and the packages that bring it.
struct Licence {
    text: String,
    of: BTreeSet<String>,
}

/// Returns the text of the file.
fn text<'a>(packages: impl Iterator<Item = &'a Value>) -> Result<String, String> {
    let mut texts: BTreeMap<String, Licence> = BTreeMap::new();
    let mut list = String::new();
    let mut without = Vec::new();
    for package in packages {
        let field = |name: &str| {
            package[name].as_str().ok_or_else(|| format!("cargo metadata: {} has no {name}", package["id"]))
        };
        let name = format!("{} {}", field("name")?, field("version")?);
        let expression = field("license")?.replace('/', " OR ");
        list.push_str(&format!("{name}: {expression}\n"));
        let folder = Path::new(field("manifest_path")?).parent().unwrap_or(Path::new(""));
        let files = chosen(&expression, licence_files(folder)?);
        if files.is_empty() {
            without.push(format!("{name}: {expression}"));
        }
        for file in files {
            let bytes = fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            let text = String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
            let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
            let licence =
                texts.entry(words).or_insert_with(|| Licence { text: plain(&text), of: BTreeSet::new() });
            licence.of.insert(name.clone());
        }
    }
    let mut licences: Vec<&Licence> = texts.values().collect();
    licences.sort_by(|a, b| (&a.of, &a.text).cmp(&(&b.of, &b.text)));
    let mut out = format!(
        "Mainstay contains the packages below, each under its own licence; where several are offered, the MIT licence was chosen if it is\n\
         one of them. The texts follow the list. `cargo xtask notices` writes this file.\n\n{TOOLCHAIN}\n{list}"
    );
    if !without.is_empty() {
        out.push_str(&format!(
            "\nThese bring no text of their licence; it is that of the same name below:\n{}\n",
            without.join("\n")
        ));
    }
    for licence in licences {
        let of = licence.of.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        out.push_str(&format!("\n{RULE}\n{of}\n{RULE}\n\n{}\n", licence.text));
    }
    Ok(out)
}

/// Returns a text without blanks at the ends of lines, and without empty lines around it.
fn plain(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim_matches('\n').to_owned()
}

/// Returns the files that are needed: if the package may be used under the MIT licence and has its text, the
/// texts of the alternatives are left out.
fn chosen(expression: &str, files: Vec<PathBuf>) -> Vec<PathBuf> {
    let name = |file: &PathBuf| {
        file.file_name().map(|name| name.to_string_lossy().to_uppercase()).unwrap_or_default()
    };
    let is_choice = expression.split(" OR ").any(|one| one.trim_matches(['(', ')', ' ']) == "MIT");
    if !is_choice || !files.iter().any(|file| name(file).contains("MIT")) {
        return files;
    }
    let is_alternative =
        |name: &str| ["APACHE", "UNLICENSE", "ZLIB", "0BSD", "BOOST"].iter().any(|one| name.contains(one));
    files.into_iter().filter(|file| !is_alternative(&name(file))).collect()
}

/// Returns the files with licences in a folder and in the folders below it, sorted by path.
fn licence_files(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(folder) = open.pop() {
        let at = |e: std::io::Error| format!("{}: {e}", folder.display());
        for entry in fs::read_dir(&folder).map_err(at)? {
            let entry = entry.map_err(at)?;
            let path = entry.path();
            if entry.file_type().map_err(at)?.is_dir() {
                open.push(path);
            } else if is_licence(&path) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

fn is_licence(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_uppercase()).unwrap_or_default();
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase()).unwrap_or_default();
    let first = name.split(['.', '-', '_']).next().unwrap_or_default();
    NAMES.contains(&first) && !OTHER_ENDINGS.contains(&ending.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_notices_are_those_of_the_dependencies() {
        generate().and_then(|files| crate::generated::check(&files, "notices")).unwrap();
    }

    #[test]
    fn one_of_several_licences_is_chosen() {
        let files = |names: &[&str]| names.iter().map(PathBuf::from).collect::<Vec<_>>();
        let both = || files(&["a/LICENSE-APACHE", "a/LICENSE-MIT", "a/NOTICE"]);
        assert_eq!(chosen("MIT OR Apache-2.0", both()), files(&["a/LICENSE-MIT", "a/NOTICE"]));
        assert_eq!(chosen("(MIT OR Apache-2.0) AND Unicode-3.0", both()).len(), 2);
        assert_eq!(chosen("MIT AND Apache-2.0", both()), both(), "both count");
        assert_eq!(chosen("Apache-2.0 OR MIT", files(&["LICENSE"])), files(&["LICENSE"]));
    }

    #[test]
    fn licences_are_known_by_their_names() {
        for name in ["LICENSE", "license-mit", "COPYING.txt", "LICENSE_APACHE", "NOTICE.md"] {
            assert!(is_licence(Path::new(name)), "{name}");
        }
        for name in ["license.rs", "LICENSE.spdx", "licenses", "noticed.txt", "README"] {
            assert!(!is_licence(Path::new(name)), "{name}");
        }
    }
}
