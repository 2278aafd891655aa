//! Passes the commit of the git checkout to a release build, without running git. `MAINSTAY_GIT_SHA` names
//! the commit if there is no checkout. Builds of other profiles get no commit, so that a new commit does not
//! link them again.

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

/// Returns the checked-out commit in hexadecimal; `None` if there is no checkout or it cannot be read.
fn checked_out() -> Option<String> {
    let root = Path::new(&env::var_os("CARGO_MANIFEST_DIR")?).join("../..");
    let mut git = root.join(".git");
    if git.is_file() {
        // In a git worktree, `.git` is a file that names the directory.
        git = root.join(fs::read_to_string(&git).ok()?.strip_prefix("gitdir:")?.trim());
    }
    let common = fs::read_to_string(git.join("commondir"));
    let common = common.map_or_else(|_| git.clone(), |path| git.join(path.trim()));
    // Every commit and checkout appends a line to this file, even if the branch has no file of its own yet.
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

/// Returns the text of a file, and makes cargo run this script again when the file changes. A missing file is
/// not watched, because cargo would treat it as changed each time.
fn watched(path: PathBuf) -> Option<String> {
    let text = fs::read_to_string(&path).ok()?;
    println!("cargo::rerun-if-changed={}", path.display());
    Some(text)
}
