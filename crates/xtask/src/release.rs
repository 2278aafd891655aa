//! `cargo xtask release`: builds the artefacts of a release in one folder. The same commit, compiler and
//! targets give the same bytes, in any directory and at any time.

mod archive;
mod image;
mod provenance;
mod rpm;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest as _, Sha256};

use self::archive::{Archive, gzip};
use crate::deb::{self, Words};
use crate::{generated, sbom};

const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Documents of the tarball beside the folder `docs`.
const DOCUMENTS: [&str; 7] =
    ["README.md", "README.zh-CN.md", "LICENSE", "CHANGELOG.md", "COMPAT.md", "SECURITY.md", "SUPPORT.md"];
/// Files of `packaging` in the tarball.
const PACKAGING: [&str; 6] = [
    "third-party-notices.txt",
    "systemd/mainstay.service",
    "debian/default",
    "prometheus/mainstay-alerts.yaml",
    "prometheus/mainstay-rules.yaml",
    "grafana/mainstay.json",
];
/// Certificates of authorities that the image gets from the machine of the build.
const AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Identity of a builder that was not named.
const UNNAMED_BUILDER: &str = "urn:mainstay:builder:unnamed";

/// Options of the command.
struct Options {
    targets: Vec<String>,
    out: PathBuf,
    profile: String,
    builder: String,
    /// File with a secret key of minisign.
    key: Option<String>,
}

/// Facts about an architecture, by the first word of a target.
struct Architecture {
    name: &'static str,
    /// Name for Debian and OCI.
    debian: &'static str,
}

const ARCHITECTURES: [Architecture; 2] =
    [Architecture { name: "x86_64", debian: "amd64" }, Architecture { name: "aarch64", debian: "arm64" }];

/// A target of the release.
struct Target<'a> {
    triple: &'a str,
    architecture: &'static Architecture,
}

impl Target<'_> {
    fn of(triple: &str) -> Result<Target<'_>, String> {
        let is_known = triple.ends_with("-unknown-linux-gnu") || triple.ends_with("-unknown-linux-musl");
        ARCHITECTURES
            .iter()
            .find(|one| is_known && triple.split('-').next() == Some(one.name))
            .map(|architecture| Target { triple, architecture })
            .ok_or_else(|| format!("{triple}: the release has (x86_64|aarch64)-unknown-linux-(gnu|musl)"))
    }

    fn is_native(&self) -> bool {
        self.architecture.name == std::env::consts::ARCH
    }

    /// Returns the name of one of the tools of binutils that reads programs of the target.
    fn tool(&self, name: &str) -> String {
        if self.is_native() {
            name.to_owned()
        } else {
            format!("{}-linux-gnu-{name}", self.architecture.name)
        }
    }

    /// Returns the triple as names of environment variables have it.
    fn variable(&self) -> String {
        self.triple.replace('-', "_")
    }

    /// Returns the command that starts a program of the target on this machine: cargo's runner if one is set,
    /// or QEMU's for another architecture.
    fn start(&self, program: &Path) -> Command {
        let variable = format!("CARGO_TARGET_{}_RUNNER", self.variable().to_uppercase());
        let given = std::env::var(variable).unwrap_or_default();
        let emulator = format!("qemu-{}-static -L /usr/{0}-linux-gnu", self.architecture.name);
        let runner = match given.as_str() {
            "" if self.is_native() => "",
            "" => &emulator,
            given => given,
        };
        let mut words = runner.split_whitespace().map(OsStr::new).chain([program.as_os_str()]);
        let mut command = Command::new(words.next().unwrap_or(program.as_os_str()));
        command.args(words);
        command
    }
}

/// Builds the release. Returns a message that names the folder.
///
/// # Errors
///
/// Returns an error if an option or target is unknown, if the checkout has changes that are not committed, if
/// a build or a tool fails, or if a file cannot be read or written.
pub fn make(words: &[&str]) -> Result<String, String> {
    let root = generated::root().canonicalize().map_err(|e| e.to_string())?;
    let options = options(words, &root)?;
    let targets: Vec<Target> =
        options.targets.iter().map(|triple| Target::of(triple)).collect::<Result<_, _>>()?;
    let git = |words: &[&str]| {
        let all =
            ["-C", root.to_str().unwrap_or(".")].into_iter().chain(words.iter().copied()).map(OsStr::new);
        deb::said("git", all).map(|said| String::from_utf8_lossy(&said).trim().to_owned())
    };
    let commit = git(&["rev-parse", "HEAD"])?;
    let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
    if !changes.is_empty() {
        return Err(format!("a release is made of a commit; these changes are in none:\n{changes}"));
    }
    let epoch = deb::epoch(&root)?;
    let created = deb::said("date", ["--utc", &format!("--date=@{epoch}"), "+%Y-%m-%dT%H:%M:%SZ"])?;
    let created = String::from_utf8_lossy(&created).trim().to_owned();
    if options.out.exists() {
        fs::remove_dir_all(&options.out).map_err(|e| format!("{}: {e}", options.out.display()))?;
    }
    let work = deb::target_dir(&root).join("release-work");
    for folder in [&options.out, &work] {
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }

    let mut static_programs = Vec::new();
    for target in &targets {
        let built = build(target, &options, &root, &commit, epoch)?;
        let name = format!("mainstay-{VERSION}-{}", target.triple);
        let program = split(target, &built, &work)?;
        let words = Words::of(&mut target.start(&built))?;
        let binary = deb::read(&program.stripped)?;
        let bom = sbom::of(target.triple, &name, &sha256(&binary))?;
        let bom = format!("{bom:#}\n");
        save(&options.out, &format!("{name}.cdx.json"), bom.as_bytes())?;
        let tarball = tarball(&root, &name, &binary, &words, &bom, epoch)?;
        save(&options.out, &format!("{name}.tar.gz"), &tarball)?;
        let mut symbols = Archive::new(epoch);
        symbols.file(&format!("{name}/mainstay.debug"), 0o644, &deb::read(&program.symbols)?)?;
        save(&options.out, &format!("{name}-symbols.tar.gz"), &gzip(&symbols.finish())?)?;
        if target.triple.ends_with("-gnu") {
            let objdump = target.tool("objdump");
            let folder = work.join("deb");
            fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
            let package =
                deb::build(&program.stripped, &words, target.architecture.debian, &objdump, &folder)?;
            let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
            save(&options.out, &name, &deb::read(&package)?)?;
            let facts = rpm::Facts { version: VERSION, architecture: target.architecture.name, epoch };
            let package = rpm::build(&folder.join("tree"), &facts, &work.join("rpm"))?;
            let name = package.file_name().unwrap_or_default().to_string_lossy().into_owned();
            save(&options.out, &name, &deb::read(&package)?)?;
        } else {
            static_programs.push((target.architecture.debian, binary));
        }
    }

    let authorities = fs::read(AUTHORITIES).ok();
    if !static_programs.is_empty() {
        let programs: Vec<_> = static_programs
            .iter()
            .map(|(architecture, binary)| image::Program { architecture, binary })
            .collect();
        let facts = image::Facts {
            version: VERSION,
            commit: &commit,
            epoch,
            created: &created,
            authorities: authorities.as_deref(),
            licence: &deb::read(&root.join("LICENSE"))?,
            notices: &deb::read(&root.join("packaging/third-party-notices.txt"))?,
        };
        image::write(&options.out.join(format!("mainstay-{VERSION}-oci")), &programs, &facts)?;
    }

    let mut files = digests(&options.out, &options.out)?;
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let compiler = deb::said(compiler, ["--version"])?;
    let authorities = authorities.as_deref().map(sha256).filter(|_| !static_programs.is_empty());
    let statement = provenance::statement(
        &files,
        &provenance::Build {
            commit: &commit,
            targets: &options.targets,
            profile: &options.profile,
            builder: &options.builder,
            compiler: String::from_utf8_lossy(&compiler).trim(),
            lock: &sha256(&deb::read(&root.join("Cargo.lock"))?),
            authorities: authorities.as_deref(),
        },
    );
    let name = format!("mainstay-{VERSION}.intoto.jsonl");
    let statement = format!("{statement}\n");
    save(&options.out, &name, statement.as_bytes())?;
    files.insert(name, sha256(statement.as_bytes()));
    let sums: String = files.iter().map(|(name, digest)| format!("{digest}  {name}\n")).collect();
    save(&options.out, "SHA256SUMS", sums.as_bytes())?;
    if let Some(key) = &options.key {
        let sums = options.out.join("SHA256SUMS");
        let comment = format!("mainstay {VERSION}, commit {commit}");
        let words = ["-S", "-s", key, "-t", &comment, "-m"].map(OsStr::new);
        deb::run("minisign", words.into_iter().chain([sums.as_os_str()]))?;
    }
    Ok(format!("made {}: {} files", options.out.display(), files.len() + 1))
}

fn options(words: &[&str], root: &Path) -> Result<Options, String> {
    let mut options = Options {
        targets: Vec::new(),
        out: deb::target_dir(root).join("release-artefacts"),
        profile: "release".to_owned(),
        builder: UNNAMED_BUILDER.to_owned(),
        key: None,
    };
    let mut words = words.iter();
    while let Some(flag) = words.next() {
        let value = words.next().ok_or_else(|| format!("{flag}: a value is missing"))?;
        let value = (*value).to_owned();
        match *flag {
            "--target" => options.targets.push(value),
            "--out" => options.out = root.join(value),
            "--profile" => options.profile = value,
            "--builder" => options.builder = value,
            "--sign" => options.key = Some(value),
            _ => return Err(format!("{flag}: no flag of `cargo xtask release`")),
        }
    }
    if options.targets.is_empty() {
        options.targets = vec![format!("{}-unknown-linux-gnu", std::env::consts::ARCH)];
    }
    options.targets.sort();
    options.targets.dedup();
    Ok(options)
}

/// Compiles the binary for a target, without paths of this machine in it. Returns the binary with its symbols.
fn build(
    target: &Target,
    options: &Options,
    root: &Path,
    commit: &str,
    epoch: u64,
) -> Result<PathBuf, String> {
    let cargo_home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")))
        .ok_or("neither CARGO_HOME nor HOME is set")?;
    let folder = deb::target_dir(root);
    let compiler = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let sysroot = deb::said(compiler, ["--print", "sysroot"])?;
    let sysroot = PathBuf::from(String::from_utf8_lossy(&sysroot).trim());
    // The last prefix that fits counts.
    let paths = [
        (root.display(), "."),
        (folder.display(), "target"),
        (cargo_home.display(), "cargo"),
        (sysroot.display(), "rust"),
    ];
    let mut rust: Vec<String> = Vec::new();
    let mut c = String::new();
    for (from, to) in paths {
        rust.push(format!("--remap-path-prefix={from}={to}"));
        c.push_str(&format!("-ffile-prefix-map={from}={to} "));
    }
    // Flags of the caller count, too: a linker for a target without a standard library of its own needs some.
    rust.extend(std::env::var("RUSTFLAGS").unwrap_or_default().split_whitespace().map(str::to_owned));
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .current_dir(root)
        .args(["build", "--locked", "--package", "mainstay", "--target", target.triple, "--profile"])
        .arg(&options.profile)
        .args(std::env::var("MAINSTAY_CARGO_FLAGS").unwrap_or_default().split_whitespace())
        .env_remove("RUSTFLAGS")
        .env("CARGO_ENCODED_RUSTFLAGS", rust.join("\u{1f}"))
        .env(format!("CFLAGS_{}", target.variable()), c.trim_end())
        .env("SOURCE_DATE_EPOCH", epoch.to_string())
        .env("MAINSTAY_GIT_SHA", commit)
        .env("CARGO_INCREMENTAL", "0")
        // Lines of the source in the symbols, which no binary of a release contains.
        .env(format!("CARGO_PROFILE_{}_DEBUG", options.profile.to_uppercase()), "line-tables-only");
    if !target.is_native() && target.triple.ends_with("-gnu") {
        let variable = format!("CARGO_TARGET_{}_LINKER", target.variable().to_uppercase());
        if std::env::var_os(&variable).is_none() {
            cargo.env(variable, target.tool("gcc"));
        }
    }
    let status = cargo.status().map_err(|e| format!("cargo: {e}"))?;
    if !status.success() {
        return Err(format!("cargo build for {}: {status}", target.triple));
    }
    Ok(folder.join(target.triple).join(&options.profile).join("mainstay"))
}

/// A program without symbols, and a file with them.
struct Split {
    stripped: PathBuf,
    symbols: PathBuf,
}

/// Separates a program from its symbols. The program names the file of the symbols, and so debuggers find it.
fn split(target: &Target, built: &Path, work: &Path) -> Result<Split, String> {
    let folder = work.join(target.triple);
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let split = Split { stripped: folder.join("mainstay"), symbols: folder.join("mainstay.debug") };
    let objcopy = target.tool("objcopy");
    let link = format!("--add-gnu-debuglink={}", split.symbols.display());
    deb::run(&objcopy, [OsStr::new("--only-keep-debug"), built.as_os_str(), split.symbols.as_os_str()])?;
    deb::run(
        &objcopy,
        [OsStr::new("--strip-unneeded"), link.as_ref(), built.as_os_str(), split.stripped.as_os_str()],
    )?;
    Ok(split)
}

/// Returns the tarball with the program, its pages, and documents.
fn tarball(
    root: &Path,
    name: &str,
    binary: &[u8],
    words: &Words,
    bom: &str,
    epoch: u64,
) -> Result<Vec<u8>, String> {
    let mut archive = Archive::new(epoch);
    archive.file(&format!("{name}/bin/mainstay"), 0o755, binary)?;
    for tool in ["etcd", "etcdctl", "etcdutl"] {
        archive.link(&format!("{name}/bin/{tool}"), "mainstay")?;
    }
    for document in DOCUMENTS {
        archive.file(&format!("{name}/{document}"), 0o644, &deb::read(&root.join(document))?)?;
    }
    for file in PACKAGING {
        let last = file.rsplit('/').next().unwrap_or(file);
        let path =
            if last == "third-party-notices.txt" { last.to_owned() } else { format!("packaging/{file}") };
        archive.file(&format!("{name}/{path}"), 0o644, &deb::read(&root.join("packaging").join(file))?)?;
    }
    archive.file(&format!("{name}/mainstay.cdx.json"), 0o644, bom.as_bytes())?;
    let docs = deb::said("git", ["-C", root.to_str().unwrap_or("."), "ls-files", "docs"])?;
    for path in String::from_utf8_lossy(&docs).lines() {
        archive.file(&format!("{name}/{path}"), 0o644, &deb::read(&root.join(path))?)?;
    }
    for (page, section, text) in &words.pages {
        archive.file(&format!("{name}/man/man{section}/{page}.{section}"), 0o644, text)?;
    }
    for (path, text) in &words.completion {
        let file = path.trim_start_matches("usr/share/");
        archive.file(&format!("{name}/completion/{file}"), 0o644, text)?;
    }
    gzip(&archive.finish())
}

fn save(folder: &Path, name: &str, content: &[u8]) -> Result<(), String> {
    let path = folder.join(name);
    fs::write(&path, content).map_err(|e| format!("{}: {e}", path.display()))
}

/// Returns the SHA-256 of all files in a folder and below it, by their paths from `top`.
fn digests(folder: &Path, top: &Path) -> Result<BTreeMap<String, String>, String> {
    let at = |e: std::io::Error| format!("{}: {e}", folder.display());
    let mut files = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(at)? {
        let path = entry.map_err(at)?.path();
        if path.is_dir() {
            files.extend(digests(&path, top)?);
        } else {
            let name = path.strip_prefix(top).unwrap_or(&path).to_string_lossy().into_owned();
            files.insert(name, sha256(&deb::read(&path)?));
        }
    }
    Ok(files)
}

/// Returns the SHA-256 of bytes in hexadecimal.
fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_known_by_their_triples() {
        let target = Target::of("aarch64-unknown-linux-musl").unwrap();
        assert_eq!(target.architecture.debian, "arm64");
        for unknown in ["riscv64gc-unknown-linux-gnu", "x86_64-apple-darwin", "x86_64", ""] {
            assert!(Target::of(unknown).is_err(), "{unknown}");
        }
    }

    #[test]
    fn flags_are_read_and_unknown_ones_refused() {
        let root = Path::new("/r");
        let read = options(&["--target", "b", "--target", "a", "--out", "o", "--sign", "k"], root).unwrap();
        assert_eq!(read.targets, ["a", "b"]);
        assert_eq!((read.out.as_path(), read.key.as_deref()), (Path::new("/r/o"), Some("k")));
        assert!(options(&["--target"], root).is_err());
        assert!(options(&["--fast", "yes"], root).is_err());
    }
}
