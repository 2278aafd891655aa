//! Where the artefacts of a release come from: an in-toto statement with SLSA's predicate, version 1.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// Facts about a build.
pub struct Build<'a> {
    pub commit: &'a str,
    pub targets: &'a [String],
    pub profile: &'a str,
    /// Identity of the builder, a URI: `--builder`.
    pub builder: &'a str,
    /// First line of `rustc --version`.
    pub compiler: &'a str,
    /// SHA-256 of `Cargo.lock`.
    pub lock: &'a str,
    /// SHA-256 of the certificates of authorities in the image.
    pub authorities: Option<&'a str>,
}

/// Returns the statement about files, given by name with their SHA-256. It contains no time of the build, so
/// that a repeated build gives the same bytes.
pub fn statement(files: &BTreeMap<String, String>, build: &Build) -> Value {
    let subjects: Vec<Value> =
        files.iter().map(|(name, digest)| json!({ "name": name, "digest": { "sha256": digest } })).collect();
    let mut inputs = vec![
        json!({ "name": "source", "digest": { "gitCommit": build.commit } }),
        json!({ "name": "Cargo.lock", "digest": { "sha256": build.lock } }),
    ];
    if let Some(digest) = build.authorities {
        inputs.push(json!({ "name": "ca-certificates.crt", "digest": { "sha256": digest } }));
    }
    json!({
        "_type": "https://in-toto.io/Statement/v1",
        "subject": subjects,
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:mainstay:cargo-xtask-release:v1",
                "externalParameters": {
                    "commit": build.commit,
                    "targets": build.targets,
                    "profile": build.profile,
                },
                "internalParameters": { "compiler": build.compiler },
                "resolvedDependencies": inputs,
            },
            "runDetails": { "builder": { "id": build.builder } },
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_a_subject_with_its_digest() {
        let files = BTreeMap::from([("a".to_owned(), "12".to_owned()), ("b".to_owned(), "34".to_owned())]);
        let targets = ["x86_64-unknown-linux-gnu".to_owned()];
        let build = Build {
            commit: "c0",
            targets: &targets,
            profile: "release",
            builder: "urn:here",
            compiler: "rustc 1",
            lock: "56",
            authorities: None,
        };
        let said = statement(&files, &build);
        assert_eq!(said["subject"][1], json!({ "name": "b", "digest": { "sha256": "34" } }));
        assert_eq!(
            said["predicate"]["buildDefinition"]["resolvedDependencies"][0]["digest"]["gitCommit"],
            "c0"
        );
        assert_eq!(said["predicate"]["runDetails"]["builder"]["id"], "urn:here");
    }
}
