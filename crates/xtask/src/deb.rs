//! `cargo xtask deb`: builds the Debian package from a compiled binary.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The manual pages: the argument of `mainstay man`, the name of the page, and the page's section.
const PAGES: [(&str, &str, u8); 11] = [
    ("", "mainstay", 8),
    ("ctl", "mainstay-ctl", 1),
    ("utl", "mainstay-utl", 1),
    ("bench", "mainstay-bench", 1),
    ("doctor", "mainstay-doctor", 1),
    ("console", "mainstay-console", 1),
    ("check", "mainstay-check", 1),
    ("rebuild", "mainstay-rebuild", 1),
    ("gateway", "mainstay-gateway", 1),
    ("grpc-proxy", "mainstay-grpc-proxy", 1),
    ("completion", "mainstay-completion", 1),
];
/// Names of etcd's tools. The package contains links with these names, in a separate directory that users can
/// add to their PATH, because Debian's own etcd packages have files with these names in /usr/bin.
const TOOLS: [&str; 3] = ["etcd", "etcdctl", "etcdutl"];
/// Version of the program with the Debian revision of its package.
const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "-1");
const MAINTAINER: &str = "The authors of Mainstay <mainstay@localhost>";
const DESCRIPTION: &str = "distributed key-value store with etcd's API
 Mainstay serves the API of etcd, version 3, with etcd's flags, tools, protocol
 between members and semantics. Started on etcd's data directory it goes on as
 the same member.";

/// Builds the package from `binary`, or from `target/release/mainstay` if `binary` is `None`. Returns a
/// message that names the package.
pub fn make(binary: Option<&str>) -> Result<String, String> {
    let root = crate::generated::root().canonicalize().map_err(|e| e.to_string())?;
    let target = target_dir(&root);
    let binary = binary.map_or_else(|| target.join("release/mainstay"), PathBuf::from);
    if !binary.is_file() {
        return Err(format!("{} is not there: cargo build --release", binary.display()));
    }
    let stripped = target.join("debian/mainstay");
    let folder = stripped.parent().unwrap_or(&target);
    fs::create_dir_all(folder)
        .and_then(|()| fs::copy(&binary, &stripped))
        .map_err(|e| format!("{}: {e}", stripped.display()))?;
    run("strip", [OsStr::new("--strip-unneeded"), stripped.as_os_str()])?;
    let architecture = said("dpkg", ["--print-architecture"])?;
    let architecture = String::from_utf8_lossy(&architecture).trim().to_owned();
    let words = Words::of(&mut Command::new(&binary))?;
    let package = build(&stripped, &words, &architecture, "objdump", folder)?;
    Ok(format!("made {}", package.display()))
}

/// Directory of cargo's builds.
pub fn target_dir(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

/// Output of the program for its package: manual pages and completion.
pub struct Words {
    /// Each page with its name and section.
    pub pages: Vec<(&'static str, u8, Vec<u8>)>,
    /// Completion for each shell, by the path of its file.
    pub completion: Vec<(&'static str, Vec<u8>)>,
}

impl Words {
    /// Asks the program, which `program` starts, perhaps below an emulator.
    pub fn of(program: &mut Command) -> Result<Words, String> {
        let name = program.get_program().to_os_string();
        let first: Vec<_> = program.get_args().map(OsStr::to_os_string).collect();
        let ask = |words: &[&str]| {
            let words = words.iter().filter(|word| !word.is_empty()).map(std::ffi::OsString::from);
            said(&name, first.iter().cloned().chain(words))
        };
        let pages =
            PAGES.iter().map(|(command, page, section)| Ok((*page, *section, ask(&["man", command])?)));
        let shells = [
            ("bash", "usr/share/bash-completion/completions/mainstay"),
            ("zsh", "usr/share/zsh/vendor-completions/_mainstay"),
            ("fish", "usr/share/fish/vendor_completions.d/mainstay.fish"),
        ];
        let completion = shells.iter().map(|(shell, path)| Ok((*path, ask(&["completion", shell])?)));
        Ok(Words {
            pages: pages.collect::<Result<_, String>>()?,
            completion: completion.collect::<Result<_, String>>()?,
        })
    }
}

/// Builds the package of a stripped binary for an architecture, by Debian's name, in `folder`. `objdump` reads
/// programs of that architecture. Returns the path of the package.
pub fn build(
    binary: &Path,
    words: &Words,
    architecture: &str,
    objdump: &str,
    folder: &Path,
) -> Result<PathBuf, String> {
    let root = crate::generated::root().canonicalize().map_err(|e| e.to_string())?;
    let tree = Tree { root: folder.join("tree"), packaging: root.join("packaging") };
    if tree.root.exists() {
        fs::remove_dir_all(&tree.root).map_err(|e| format!("{}: {e}", tree.root.display()))?;
    }
    tree.put("usr/bin/mainstay", &read(binary)?, 0o755)?;
    for tool in TOOLS {
        tree.link(&format!("usr/lib/mainstay/bin/{tool}"), "../../../bin/mainstay")?;
    }
    tree.copy("systemd/mainstay.service", "usr/lib/systemd/system/mainstay.service", 0o644)?;
    tree.copy("debian/default", "etc/default/mainstay", 0o644)?;
    tree.copy("debian/copyright", "usr/share/doc/mainstay/copyright", 0o644)?;
    tree.zipped(
        "usr/share/doc/mainstay/third-party-notices.txt.gz",
        &read(&tree.packaging.join("third-party-notices.txt"))?,
    )?;
    tree.zipped("usr/share/doc/mainstay/changelog.gz", &read(&root.join("CHANGELOG.md"))?)?;
    let epoch = epoch(&root)?;
    let dated = said("date", ["--utc", "--rfc-email", format!("--date=@{epoch}").as_str()])?;
    let dated = String::from_utf8_lossy(&dated).trim().to_owned();
    let changes = format!(
        "mainstay ({VERSION}) unstable; urgency=medium\n\n  * What changed is in changelog.gz.\n\n -- {MAINTAINER}  {dated}\n"
    );
    tree.zipped("usr/share/doc/mainstay/changelog.Debian.gz", changes.as_bytes())?;
    for (page, section, text) in &words.pages {
        tree.zipped(&format!("usr/share/man/man{section}/{page}.{section}.gz"), text)?;
    }
    for (path, text) in &words.completion {
        tree.put(path, text, 0o644)?;
    }
    for script in ["postinst", "prerm", "postrm"] {
        tree.copy(&format!("debian/{script}"), &format!("DEBIAN/{script}"), 0o755)?;
    }
    tree.put("DEBIAN/conffiles", b"/etc/default/mainstay\n", 0o644)?;
    let kib = said("du", [OsStr::new("-sk"), tree.root.as_os_str()])?;
    let kib: String =
        kib.iter().take_while(|byte| byte.is_ascii_digit()).map(|byte| char::from(*byte)).collect();
    let libc = needed_libc(&tree.root.join("usr/bin/mainstay"), objdump)?;
    let control = format!(
        "Package: mainstay\nVersion: {VERSION}\nArchitecture: {architecture}\nMaintainer: {MAINTAINER}\n\
         Installed-Size: {kib}\nDepends: libc6 (>= {libc}), libgcc-s1, adduser\nSection: database\nPriority: optional\n\
         Description: {DESCRIPTION}\n"
    );
    tree.put("DEBIAN/control", control.as_bytes(), 0o644)?;
    let package = folder.join(format!("mainstay_{VERSION}_{architecture}.deb"));
    let mut packed = Command::new("dpkg-deb");
    // `dpkg-deb` replaces all later file times by this time, so that the time of the build does not get into
    // the package.
    packed.env("SOURCE_DATE_EPOCH", epoch.to_string());
    packed.args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build"]).args([&tree.root, &package]);
    let done = packed.output().map_err(|e| format!("dpkg-deb: {e}"))?;
    if !done.status.success() {
        return Err(format!("dpkg-deb: {}", String::from_utf8_lossy(&done.stderr).trim_end()));
    }
    Ok(package)
}

/// Returns the timestamp of the package in seconds since 1970: the value of `SOURCE_DATE_EPOCH`, or the time
/// of the last commit. It does not depend on the time of the build, so the same binary and source always give
/// the same package.
pub fn epoch(root: &Path) -> Result<u64, String> {
    let text = match std::env::var("SOURCE_DATE_EPOCH") {
        Ok(text) => text,
        Err(_) => {
            let arguments =
                [OsStr::new("-C"), root.as_os_str(), "log".as_ref(), "-1".as_ref(), "--format=%ct".as_ref()];
            String::from_utf8_lossy(&said("git", arguments)?).into_owned()
        }
    };
    text.trim().parse().map_err(|_| format!("SOURCE_DATE_EPOCH: {text:?} is no number of seconds"))
}

/// Directory with the files of the package.
struct Tree {
    root: PathBuf,
    /// The repository's `packaging` folder.
    packaging: PathBuf,
}

impl Tree {
    fn place(&self, path: &str) -> Result<PathBuf, String> {
        let path = self.root.join(path);
        let folder = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        // Set the permissions explicitly, so that they do not depend on the umask.
        for folder in folder.ancestors().take_while(|folder| folder.starts_with(&self.root)) {
            fs::set_permissions(folder, Permissions::from_mode(0o755))
                .map_err(|e| format!("{}: {e}", folder.display()))?;
        }
        Ok(path)
    }

    fn put(&self, path: &str, content: &[u8], mode: u32) -> Result<(), String> {
        let path = self.place(path)?;
        fs::write(&path, content)
            .and_then(|()| fs::set_permissions(&path, Permissions::from_mode(mode)))
            .map_err(|e| format!("{}: {e}", path.display()))
    }

    fn copy(&self, from: &str, to: &str, mode: u32) -> Result<(), String> {
        self.put(to, &read(&self.packaging.join(from))?, mode)
    }

    fn link(&self, path: &str, to: &str) -> Result<(), String> {
        let path = self.place(path)?;
        symlink(to, &path).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Adds a file in compressed form. The compressed file contains no name and no time, so that the same
    /// content always gives the same package.
    fn zipped(&self, path: &str, content: &[u8]) -> Result<(), String> {
        let plain = path.trim_end_matches(".gz");
        self.put(plain, content, 0o644)?;
        run("gzip", [OsStr::new("-9nf"), self.root.join(plain).as_os_str()])
    }
}

/// Returns the oldest release of glibc with which a program can run. It is the highest version among the
/// symbols that the program imports.
fn needed_libc(program: &Path, objdump: &str) -> Result<String, String> {
    let listed = said(objdump, [OsStr::new("-T"), program.as_os_str()])?;
    let listed = String::from_utf8_lossy(&listed);
    let versions = listed.split("GLIBC_").skip(1).filter_map(|rest| {
        let text: String = rest.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
        let numbers: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
        Some((numbers?, text))
    });
    versions
        .max()
        .map(|(_, text)| text)
        .ok_or_else(|| format!("{}: it wants no symbol of glibc", program.display()))
}

/// Reads a file; an error names it.
pub fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// Runs a program and returns what it wrote to standard output.
pub fn said<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    words: impl IntoIterator<Item = S>,
) -> Result<Vec<u8>, String> {
    let program = program.as_ref();
    let name = program.to_string_lossy();
    let done = Command::new(program).args(words).output().map_err(|e| format!("{name}: {e}"))?;
    if done.status.success() {
        Ok(done.stdout)
    } else {
        Err(format!("{name}: {}: {}", done.status, String::from_utf8_lossy(&done.stderr).trim_end()))
    }
}

/// Runs a program; an error has what it wrote to standard error.
pub fn run<S: AsRef<OsStr>>(program: &str, words: impl IntoIterator<Item = S>) -> Result<(), String> {
    said(program, words).map(drop)
}
