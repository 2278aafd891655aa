//! The package for distributions with RPM, from the files of the Debian package.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::deb;

/// Facts about a package.
pub struct Facts<'a> {
    pub version: &'a str,
    /// RPM's name of the architecture.
    pub architecture: &'a str,
    /// Time of the package, in seconds since 1970.
    pub epoch: u64,
}

/// Parts of the Debian package that are not in this one: Debian's own scripts, documents and folders.
const LEFT_OUT: [&str; 3] =
    ["DEBIAN", "usr/share/zsh/vendor-completions", "usr/share/doc/mainstay/changelog.Debian.gz"];

/// Builds the package of the files in `tree`, the tree of the Debian package, in `folder`. Returns its path.
///
/// # Errors
///
/// Returns an error if a file cannot be read or written, or if `rpmbuild` fails.
pub fn build(tree: &Path, facts: &Facts, folder: &Path) -> Result<PathBuf, String> {
    let root = folder.join("files");
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    deb::run("cp", [OsStr::new("-a"), tree.as_os_str(), root.as_os_str()])?;
    for name in LEFT_OUT {
        let path = root.join(name);
        let removed = if path.is_dir() { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
        removed.map_err(|e| format!("{}: {e}", path.display()))?;
    }
    let text = spec(&root, facts)?;
    let path = folder.join("mainstay.spec");
    fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
    let top = format!("_topdir {}", folder.join("work").display());
    let epoch = format!("SOURCE_DATE_EPOCH={}", facts.epoch);
    let target = format!("--target={}-linux", facts.architecture);
    let words =
        [OsStr::new(&epoch), "rpmbuild".as_ref(), "-bb".as_ref(), "--quiet".as_ref(), target.as_ref()];
    let words = words.into_iter().chain(["--define".as_ref(), OsStr::new(&top), path.as_os_str()]);
    deb::run("env", words)?;
    let name = format!("mainstay-{}-1.{}.rpm", facts.version, facts.architecture);
    Ok(folder.join("work/RPMS").join(facts.architecture).join(name))
}

/// Returns the spec file: no step of it builds anything, and all files have the same time.
fn spec(root: &Path, facts: &Facts) -> Result<String, String> {
    let mut files = String::new();
    let mut open = vec![root.to_path_buf()];
    while let Some(folder) = open.pop() {
        let at = |e: std::io::Error| format!("{}: {e}", folder.display());
        for entry in fs::read_dir(&folder).map_err(at)? {
            let entry = entry.map_err(at)?;
            let path = entry.path();
            if entry.file_type().map_err(at)?.is_dir() {
                open.push(path);
                continue;
            }
            let name = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            let kind = if name.starts_with("etc/") { "%config(noreplace) " } else { "" };
            files.push_str(&format!("{kind}\"/{name}\"\n"));
        }
    }
    let mut files: Vec<&str> = files.lines().collect();
    files.sort_unstable();
    Ok(format!(
        "%global __os_install_post %{{nil}}
%global _build_id_links none
%global _buildhost reproducible
%global use_source_date_epoch_as_buildtime 1
%global clamp_mtime_to_source_date_epoch 1
%global _binary_payload w19.xzdio
Name: mainstay
Version: {version}
Release: 1
Summary: Distributed key-value store with etcd's API
License: Apache-2.0
Requires(pre): shadow-utils
AutoReqProv: yes

%description
Mainstay serves the API of etcd, version 3, with etcd's flags, tools, protocol between members and semantics. Started on etcd's data
directory it goes on as the same member.

%install
cp -a {root}/. %{{buildroot}}/

%pre
getent passwd mainstay >/dev/null || useradd --system --user-group --home-dir /var/lib/mainstay --no-create-home --shell /sbin/nologin mainstay

%post
[ -d /var/lib/mainstay ] || install -d -o mainstay -g mainstay -m 0700 /var/lib/mainstay
[ ! -d /run/systemd/system ] || systemctl --system daemon-reload >/dev/null || :

%preun
[ \"$1\" != 0 ] || [ ! -d /run/systemd/system ] || systemctl stop mainstay.service >/dev/null || :

%postun
[ ! -d /run/systemd/system ] || systemctl --system daemon-reload >/dev/null || :

%files
%defattr(-,root,root,-)
{files}
",
        version = facts.version,
        root = root.display(),
        files = files.join("\n"),
    ))
}
