//! Tells a release build from a git checkout which commit it is of; git itself is not needed. `MAINSTAY_GIT_SHA` names it
//! where there is no checkout. Other builds are not told, so that a commit does not have them linked again.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=MAINSTAY_GIT_SHA");
    let given = env::var("MAINSTAY_GIT_SHA").ok().filter(|commit| !commit.is_empty());
    let is_release = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    if let Some(commit) = given.or_else(|| is_release.then(checked_out).flatten()) {
        println!("cargo::rustc-env=MAINSTAY_COMMIT={commit}");
    }
}

/// The commit that is checked out, in hexadecimal. `None` if this is no checkout, or one that cannot be read.
fn checked_out() -> Option<String> {
    let root = Path::new(&env::var_os("CARGO_MANIFEST_DIR")?).join("../..");
    let mut git = root.join(".git");
    if git.is_file() {
        // A work tree beside the repository.
        git = root.join(fs::read_to_string(&git).ok()?.strip_prefix("gitdir:")?.trim());
    }
    let common = fs::read_to_string(git.join("commondir"));
    let common = common.map_or_else(|_| git.clone(), |path| git.join(path.trim()));
    // Every commit and checkout adds a line here, also where the branch's own file is not there yet.
    watched(git.join("logs/HEAD"));
    let head = watched(git.join("HEAD"))?;
    let commit = match head.trim().strip_prefix("ref: ") {
        None => head.trim().to_owned(),
        Some(branch) => match watched(common.join(branch)) {
            Some(commit) => commit.trim().to_owned(),
            None => {
                let packed = watched(common.join("packed-refs"))?;
                let line = packed
                    .lines()
                    .find(|line| line.split_once(' ').is_some_and(|(_, name)| name == branch))?;
                line.split_once(' ')?.0.to_owned()
            }
        },
    };
    let is_commit = commit.len() >= 40 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_commit.then_some(commit)
}

/// The text of a file; when it changes, this is run again. A file that is not there is not watched: it would count as changed.
fn watched(path: PathBuf) -> Option<String> {
    let text = fs::read_to_string(&path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text)
}
