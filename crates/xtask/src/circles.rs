//! Limits dependency cycles between the files of a crate ("circles": files that use each other, directly or
//! through other files). A test fails if a circle is too large, and names the uses that have to be removed or
//! reversed.
//!
//! A file uses another file if its code has a path into the module of that file, which begins with `crate::`,
//! `super::` or `self::`. Paths in comments and tests do not count, nor do paths to items in the root of the
//! crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::generated::root;

/// Maximum number of files of one circle.
const FILES_MAX: usize = 3;

/// Names of the modules below the crate's root: `["watch", "hub"]` for `src/watch/hub.rs`.
type Module = Vec<String>;

/// A place where a file names another module.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Use {
    line: usize,
    name: String,
}

/// For each module, the modules that its file uses, each with the places where this happens.
type Uses = BTreeMap<Module, BTreeMap<Module, Vec<Use>>>;

/// Checks the circles of every crate.
///
/// # Errors
///
/// Returns a description of each circle that is too large, with the uses whose removal breaks the circle.
/// Also returns an error if a file cannot be read.
pub fn check() -> Result<String, String> {
    let crates = root().join("crates");
    let mut wrong = String::new();
    let mut count = 0;
    let mut names: Vec<String> = Vec::new();
    for entry in fs::read_dir(&crates).map_err(|e| format!("{}: {e}", crates.display()))? {
        names.push(entry.map_err(|e| e.to_string())?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    for name in &names {
        let source = crates.join(name).join("src");
        if !source.is_dir() {
            continue;
        }
        let files = files(&source)?;
        let uses = uses(&files)?;
        let circles = circles(&uses, &files.keys().cloned().collect());
        count += circles.len();
        for circle in circles.iter().filter(|circle| circle.len() > FILES_MAX) {
            wrong.push_str(&describe(name, circle, &uses, |module| {
                let path = files.get(module).map(PathBuf::as_path).unwrap_or(Path::new(""));
                path.strip_prefix(&crates).unwrap_or(path).display().to_string()
            }));
        }
    }
    if wrong.is_empty() { Ok(format!("{count} circles of files, none too large")) } else { Err(wrong) }
}

/// Returns the files of a crate by their modules. The module of the root file is an empty list of names.
fn files(source: &Path) -> Result<BTreeMap<Module, PathBuf>, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![source.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let failed = |e: std::io::Error| format!("{}: {e}", folder.display());
        for entry in fs::read_dir(&folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let module = module_of(path.strip_prefix(source).unwrap_or(&path));
                if !module.iter().any(|name| name == "tests") {
                    found.insert(module, path);
                }
            }
        }
    }
    Ok(found)
}

/// Returns the module of a file, whose path is relative to `src`.
fn module_of(path: &Path) -> Module {
    let path = path.with_extension("");
    let mut module: Module = path.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    if module.last().is_some_and(|last| last == "mod") {
        module.pop();
    }
    if module == ["lib"] || module == ["main"] {
        module.clear();
    }
    module
}

/// Reads all files of a crate, and returns the uses of each.
fn uses(files: &BTreeMap<Module, PathBuf>) -> Result<Uses, String> {
    let mut uses = Uses::new();
    for (module, path) in files {
        let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        for (line, named) in named(&text, module) {
            // A path may continue to an item in a module, so take the longest beginning of the path that is a
            // module.
            let used =
                (0..=named.len()).rev().map(|len| &named[..len]).find(|used| files.contains_key(*used));
            let Some(used) = used.filter(|used| !used.is_empty() && *used != module) else { continue };
            let name = named.last().cloned().unwrap_or_default();
            uses.entry(module.clone())
                .or_default()
                .entry(used.to_vec())
                .or_default()
                .push(Use { line, name });
        }
    }
    Ok(uses)
}

/// Returns all paths from the crate's root that the code of a module names, each with its line.
fn named(text: &str, module: &[String]) -> Vec<(usize, Module)> {
    let mut code = String::with_capacity(text.len());
    for line in text.lines() {
        code.push_str(line.split_once("//").map_or(line, |(code, _)| code));
        code.push('\n');
    }
    if let Some(tests) = code.find("#[cfg(test)]\nmod tests") {
        code.truncate(tests);
    }
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(begin) = code[at..].find(is_name).map(|begin| at + begin) {
        let word = begin..begin + code[begin..].find(|c| !is_name(c)).unwrap_or(code.len() - begin);
        at = word.end;
        let mut base = match &code[word] {
            "crate" => Module::new(),
            "self" => module.to_vec(),
            "super" => module[..module.len().saturating_sub(1)].to_vec(),
            _ => continue,
        };
        let line = code[..begin].matches('\n').count() + 1;
        let Some(mut rest) = code[at..].strip_prefix("::") else { continue };
        while let Some(further) = rest.strip_prefix("super::") {
            base.pop();
            rest = further;
        }
        let end = tree(rest, &base, &mut |path| found.push((line, path)));
        at = code.len() - rest.len() + end;
    }
    found
}

/// Calls `found` with each path in a `use` tree such as `{a, b::{c, d}}`, or with the single path in an
/// expression such as `a::b`. Returns the length of the text that was read.
fn tree(text: &str, base: &[String], found: &mut impl FnMut(Module)) -> usize {
    let mut path = base.to_vec();
    let mut at = 0;
    loop {
        let rest = &text[at..];
        if rest.starts_with('{') {
            at += 1;
            loop {
                at += text[at..].find(|c: char| !c.is_whitespace() && c != ',').unwrap_or(text.len() - at);
                if text[at..].is_empty() || text[at..].starts_with('}') {
                    return (at + 1).min(text.len());
                }
                at += tree(&text[at..], &path, found).max(1);
                // Skip `as` and the name after it, up to the next item of the list: the new name does not
                // matter.
                at += text[at..].find([',', '}']).unwrap_or(text.len() - at);
            }
        }
        let len = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        if len == 0 {
            // The path ends here. After `*`, it is the module whose items are all imported.
            found(path);
            return at;
        }
        if &rest[..len] != "self" {
            path.push(rest[..len].to_owned());
        }
        at += len;
        let is_longer = text[at..].strip_prefix("::").is_some_and(|next| {
            next.starts_with(|c: char| c == '{' || c == '*' || c == '_' || c.is_alphabetic())
        });
        if !is_longer {
            found(path);
            return at;
        }
        at += 2;
    }
}

/// Returns the circles among these files: the maximal sets of at least two files in which each file uses
/// every other file, directly or through other files (strongly connected components).
fn circles(uses: &Uses, files: &BTreeSet<Module>) -> Vec<BTreeSet<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> = files
        .iter()
        .map(|file| {
            let (mut reached, mut next) = (BTreeSet::new(), vec![file]);
            while let Some(file) = next.pop() {
                for used in
                    uses.get(file).into_iter().flat_map(BTreeMap::keys).filter(|used| files.contains(*used))
                {
                    if reached.insert(used) {
                        next.push(used);
                    }
                }
            }
            (file, reached)
        })
        .collect();
    let mut left = files.clone();
    let mut circles = Vec::new();
    while let Some(file) = left.pop_first() {
        let others =
            left.iter().filter(|other| reached[&file].contains(other) && reached[other].contains(&file));
        let circle: BTreeSet<Module> = others.cloned().chain([file.clone()]).collect();
        left.retain(|file| !circle.contains(file));
        if circle.len() > 1 {
            circles.push(circle);
        }
    }
    circles
}

/// Returns uses whose removal breaks a circle, so that no circle of more than [`FILES_MAX`] files remains.
/// The choice is greedy: each step takes the use whose removal leaves the smallest circles and, among several
/// such uses, the one with the fewest places in the code.
fn openings(circle: &BTreeSet<Module>, uses: &Uses) -> Vec<(Module, Module)> {
    let mut left: Uses = uses.clone();
    left.retain(|file, _| circle.contains(file));
    left.values_mut().for_each(|used| used.retain(|file, _| circle.contains(file)));
    let mut openings = Vec::new();
    loop {
        let circles = circles(&left, circle);
        let mut candidates = Vec::new();
        for circle in circles.iter().filter(|circle| circle.len() > FILES_MAX) {
            for file in circle {
                for (used, places) in
                    left.get(file).into_iter().flatten().filter(|(used, _)| circle.contains(*used))
                {
                    candidates.push((file.clone(), used.clone(), places.len()));
                }
            }
        }
        let best = candidates.into_iter().min_by_key(|(file, used, places)| {
            let mut without = left.clone();
            without.entry(file.clone()).or_default().remove(used);
            let sizes =
                self::circles(&without, circle).iter().map(|circle| circle.len().pow(2)).sum::<usize>();
            (sizes, *places)
        });
        let Some((file, used, _)) = best else { return openings };
        left.entry(file.clone()).or_default().remove(&used);
        openings.push((file, used));
    }
}

/// Describes a circle that is too large, and the uses whose removal breaks it. `path` returns the path of a
/// module's file.
fn describe(name: &str, circle: &BTreeSet<Module>, uses: &Uses, path: impl Fn(&Module) -> String) -> String {
    let files: Vec<String> = circle.iter().map(|module| module.join("::")).collect();
    let mut text = format!(
        "{name}: {} files use each other, {FILES_MAX} may: {}\n  it opens without:\n",
        files.len(),
        files.join(", ")
    );
    for (file, used) in openings(circle, uses) {
        let places = uses.get(&file).and_then(|uses| uses.get(&used)).map(Vec::as_slice).unwrap_or_default();
        let mut names: Vec<&str> = places.iter().map(|place| place.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        let line = places.first().map_or(0, |place| place.line);
        let (file_name, used) = (file.join("::"), used.join("::"));
        let _ = writeln!(text, "    {file_name} -> {used} ({}), {}:{line}", names.join(", "), path(&file));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn module(name: &str) -> Module {
        name.split("::").filter(|name| !name.is_empty()).map(str::to_owned).collect()
    }

    /// Makes uses of lines like `a -> b 2`: the file `a` uses `b` in two places.
    fn graph(lines: &str) -> (Uses, BTreeSet<Module>) {
        let (mut uses, mut files) = (Uses::new(), BTreeSet::new());
        for line in lines.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [file, "->", used, places] = words[..] else { continue };
            let place = Use { line: 7, name: "Name".to_owned() };
            let places = vec![place; places.parse().expect("a number")];
            files.extend([module(file), module(used)]);
            uses.entry(module(file)).or_default().insert(module(used), places);
        }
        (uses, files)
    }

    #[test]
    fn no_circle_of_files_is_too_large() {
        check().unwrap_or_else(|wrong| panic!("{wrong}"));
    }

    #[test]
    fn modules_are_named_by_their_files() {
        for (path, expected) in
            [("lib.rs", ""), ("main.rs", ""), ("a.rs", "a"), ("a/mod.rs", "a"), ("a/b.rs", "a::b")]
        {
            assert_eq!(module_of(Path::new(path)), module(expected), "{path}");
        }
    }

    #[test]
    fn paths_in_code_are_found_with_their_lines() {
        let text = "//! See [`crate::comment::Comment`].\n\
            use crate::one::{One, two::{Two, three::self}, Other as Name};\n\
            use super::super::up::Up;\n\
            use self::below::*; // crate::comment\n\
            use elsewhere::{Elsewhere};\n\
            use crate::{first::First,\n    second};\n\
            fn f() -> crate::single::Type { super::neighbour::call::<u8>(self.field) }\n\
            #[cfg(test)]\nmod tests {\n    use crate::tested::Tested;\n}\n";
        let found: Vec<String> = named(text, &module("a::b"))
            .into_iter()
            .map(|(line, path)| format!("{line} {}", path.join("::")))
            .collect();
        let expected = [
            "2 one::One",
            "2 one::two::Two",
            "2 one::two::three",
            "2 one::Other",
            "3 up::Up",
            "4 a::b::below",
            "6 first::First",
            "6 second",
            "8 single::Type",
            "8 a::neighbour::call",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_circle_is_described_with_the_uses_that_open_it() {
        // Two circles that share the file `hub`. The use of `hub` by `stream` is in only one place, and its
        // removal leaves the smallest circles.
        let (uses, files) = graph(
            "hub -> stream 9\n stream -> hub 1\n stream -> long 2\n long -> stream 3\n hub -> drive 2\n drive -> hub 4\n \
             drive -> below 1",
        );
        let circles = circles(&uses, &files);
        let circle = BTreeSet::from(["hub", "stream", "long", "drive"].map(module));
        assert_eq!(circles, std::slice::from_ref(&circle));
        let expected = "watches: 4 files use each other, 3 may: drive, hub, long, stream\n  it opens without:\n    \
            stream -> hub (Name), stream.rs:7\n";
        assert_eq!(describe("watches", &circle, &uses, |file| format!("{}.rs", file.join("/"))), expected);
    }

    #[test]
    fn several_uses_are_named_where_one_does_not_open_the_circle() {
        let (uses, files) = graph(
            "a -> b 1\n b -> c 1\n c -> d 1\n d -> a 2\n a -> c 1\n c -> a 1\n b -> d 1\n d -> b 2\n b -> a 3\n d -> c 3\n \
             c -> b 3\n a -> d 3",
        );
        let openings = openings(&files, &uses);
        assert!(openings.len() > 1, "{openings:?}");
        let mut left = uses;
        for (file, used) in openings {
            left.get_mut(&file).expect("the file uses something").remove(&used);
        }
        assert!(circles(&left, &files).iter().all(|circle| circle.len() <= FILES_MAX));
    }
}
