//! The image of a member as a directory in the OCI image layout, for one or more architectures, built without
//! a daemon. It has the files of `packaging/docker/root-filesystem`, and the settings of the Dockerfile.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::archive::{Archive, gzip};
use super::sha256;

/// User and group of the member in the image.
const USER: u32 = 65532;
/// Names of the program. The first is the file, the others are links.
const NAMES: [&str; 5] = ["mainstay", "etcd", "etcdctl", "etcdutl", "etcd-bench"];
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

/// A program of the image, which needs no library.
pub struct Program<'a> {
    /// OCI's name of its architecture.
    pub architecture: &'a str,
    pub binary: &'a [u8],
}

/// Facts that are the same for all architectures.
pub struct Facts<'a> {
    pub version: &'a str,
    pub commit: &'a str,
    /// Time of the commit, in seconds since 1970 and in RFC 3339's form.
    pub epoch: u64,
    pub created: &'a str,
    /// Certificates of authorities, for clients of other clusters in the image.
    pub authorities: Option<&'a [u8]>,
    pub licence: &'a [u8],
    pub notices: &'a [u8],
}

/// Writes the layout directory, which must not exist. Returns the digest of its index.
///
/// # Errors
///
/// Returns an error if a file cannot be written.
pub fn write(folder: &Path, programs: &[Program], facts: &Facts) -> Result<String, String> {
    let blobs = folder.join("blobs/sha256");
    fs::create_dir_all(&blobs).map_err(|e| format!("{}: {e}", blobs.display()))?;
    let put = |kind: &str, bytes: &[u8]| -> Result<Value, String> {
        let digest = sha256(bytes);
        let path = blobs.join(&digest);
        fs::write(&path, bytes).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(json!({ "mediaType": kind, "digest": format!("sha256:{digest}"), "size": bytes.len() }))
    };
    let labels = json!({
        "org.opencontainers.image.title": "Mainstay",
        "org.opencontainers.image.description": "Distributed key-value store with etcd's API",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": facts.version,
        "org.opencontainers.image.revision": facts.commit,
        "org.opencontainers.image.created": facts.created,
    });
    let mut manifests = Vec::new();
    for program in programs {
        let layer = layer(program, facts)?;
        let zipped = put("application/vnd.oci.image.layer.v1.tar+gzip", &gzip(&layer)?)?;
        let config = json!({
            "architecture": program.architecture,
            "os": "linux",
            "created": facts.created,
            "config": {
                "User": format!("{USER}:{USER}"),
                "ExposedPorts": { "2379/tcp": {}, "2380/tcp": {} },
                "Env": ["PATH=/usr/local/bin"],
                "Cmd": ["/usr/local/bin/etcd"],
                "WorkingDir": "/var/lib/etcd",
                "Labels": labels,
                // Docker's addition to the format; times in nanoseconds.
                "Healthcheck": {
                    "Test": ["CMD", "/usr/local/bin/etcdctl", "endpoint", "status"],
                    "Interval": 10_000_000_000_u64,
                    "Timeout": 6_000_000_000_u64,
                    "StartPeriod": 86_400_000_000_000_u64,
                },
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", sha256(&layer))] },
            "history": [{ "created": facts.created, "created_by": "cargo xtask release" }],
        });
        let config = put("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes())?;
        let manifest = json!({
            "schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": [zipped], "annotations": labels,
        });
        let mut manifest = put(MANIFEST, manifest.to_string().as_bytes())?;
        manifest["platform"] = json!({ "os": "linux", "architecture": program.architecture });
        manifests.push(manifest);
    }
    let index =
        json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": manifests, "annotations": labels });
    let mut index = put(INDEX, index.to_string().as_bytes())?;
    let digest = index["digest"].as_str().unwrap_or_default().to_owned();
    index["annotations"] = json!({ "org.opencontainers.image.ref.name": facts.version });
    let top = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [index] });
    for (name, content) in [("index.json", top), ("oci-layout", json!({ "imageLayoutVersion": "1.0.0" }))] {
        let path = folder.join(name);
        fs::write(&path, content.to_string()).map_err(|e| format!("{}: {e}", path.display()))?;
    }
    Ok(digest)
}

/// Returns the root file system of the image as an archive.
fn layer(program: &Program, facts: &Facts) -> Result<Vec<u8>, String> {
    let mut archive = Archive::new(facts.epoch);
    let users =
        format!("root:x:0:0:root:/:/nologin\nmainstay:x:{USER}:{USER}:Mainstay:/var/lib/etcd:/nologin\n");
    let groups = format!("root:x:0:\nmainstay:x:{USER}:\n");
    for folder in ["etc", "etc/ssl", "etc/ssl/certs"] {
        archive.directory(folder, 0o755, 0)?;
    }
    archive.file("etc/group", 0o644, groups.as_bytes())?;
    archive.file("etc/nsswitch.conf", 0o644, b"hosts: files dns\n")?;
    archive.file("etc/passwd", 0o644, users.as_bytes())?;
    if let Some(authorities) = facts.authorities {
        archive.file("etc/ssl/certs/ca-certificates.crt", 0o644, authorities)?;
    }
    archive.directory("tmp", 0o1777, 0)?;
    for folder in
        ["usr", "usr/local", "usr/local/bin", "usr/share", "usr/share/doc", "usr/share/doc/mainstay"]
    {
        archive.directory(folder, 0o755, 0)?;
    }
    archive.file(&format!("usr/local/bin/{}", NAMES[0]), 0o755, program.binary)?;
    for name in &NAMES[1..] {
        archive.link(&format!("usr/local/bin/{name}"), NAMES[0])?;
    }
    archive.file("usr/share/doc/mainstay/LICENSE", 0o644, facts.licence)?;
    archive.file("usr/share/doc/mainstay/third-party-notices.txt", 0o644, facts.notices)?;
    archive.directory("var", 0o755, 0)?;
    archive.directory("var/lib", 0o755, 0)?;
    archive.directory("var/lib/etcd", 0o700, USER)?;
    Ok(archive.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes an image of two architectures in a new folder, and returns its digest.
    fn written(folder: &Path) -> String {
        let _ = fs::remove_dir_all(folder);
        let programs = [
            Program { architecture: "amd64", binary: b"one" },
            Program { architecture: "arm64", binary: b"other" },
        ];
        let facts = Facts {
            version: "1.2.3",
            commit: "c0",
            epoch: 1_700_000_000,
            created: "2023-11-14T22:13:20Z",
            authorities: Some(b"certificates"),
            licence: b"licence",
            notices: b"notices",
        };
        write(folder, &programs, &facts).unwrap()
    }

    #[test]
    fn every_blob_has_its_digest_and_is_referred_to() {
        let folder = std::env::temp_dir().join(format!("xtask-image-{}", std::process::id()));
        let digest = written(&folder);
        assert_eq!(written(&folder), digest, "the same content gives the same image");
        let read = |name: &str| fs::read(folder.join(name)).unwrap();
        let json = |bytes: &[u8]| serde_json::from_slice::<Value>(bytes).unwrap();
        let top = json(&read("index.json"));
        assert_eq!(top["manifests"][0]["digest"], digest.as_str());
        let mut open = vec![top];
        let mut count = 0;
        while let Some(value) = open.pop() {
            let lists = ["manifests", "layers"].into_iter().flat_map(|name| value[name].as_array());
            let referred: Vec<&Value> = lists.flatten().chain(value.get("config")).collect();
            for one in referred.into_iter().filter(|one| one["digest"].is_string()) {
                let digest = one["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
                let bytes = read(&format!("blobs/sha256/{digest}"));
                assert_eq!(
                    (sha256(&bytes).as_str(), one["size"].as_u64()),
                    (digest, Some(bytes.len() as u64))
                );
                count += 1;
                if one["mediaType"].as_str().unwrap().ends_with("json") {
                    open.push(json(&bytes));
                }
            }
        }
        assert_eq!(count, 1 + 2 * 3, "an index, and for each architecture a manifest, a config and a layer");
        assert_eq!(fs::read_dir(folder.join("blobs/sha256")).unwrap().count(), count);
        fs::remove_dir_all(&folder).unwrap();
    }
}
