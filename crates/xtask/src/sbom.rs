//! `cargo xtask sbom`: writes a bill of materials for the binary in the format CycloneDX 1.5. It lists each
//! crate with version, license, digest, source and dependencies. The same source always gives the same bytes,
//! because the file contains no time and no random number.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::dependencies;

/// Name of the package whose binary the bill of materials describes.
const BINARY: &str = "mainstay";
const REGISTRY: &str = "registry+";

/// Writes `target/sbom/mainstay.cdx.json`. Returns a message about the file.
///
/// # Errors
///
/// Returns an error if `cargo metadata` fails, if its output lacks the binary, a package or a field of a
/// package, if the lock file has no digest for a package from the registry, or if a file cannot be read or
/// written.
pub fn write() -> Result<String, String> {
    let root = crate::generated::root();
    let lock = root.join("Cargo.lock");
    let lock = fs::read_to_string(&lock).map_err(|e| format!("{}: {e}", lock.display()))?;
    let bom = bom(&dependencies::metadata()?, &digests(&lock))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let path = target.join("sbom/mainstay.cdx.json");
    let folder = path.parent().unwrap_or(&target);
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&path, format!("{bom:#}\n")))
        .map_err(|e| format!("{}: {e}", path.display()))?;
    let count = bom["components"].as_array().map_or(0, Vec::len);
    Ok(format!("wrote {}: {count} components", path.display()))
}

/// Returns the bill of materials of an artefact: the binary for a target, with its SHA-256.
///
/// # Errors
///
/// See [`write()`].
pub fn of(target: &str, artefact: &str, digest: &str) -> Result<Value, String> {
    let lock = crate::generated::read("Cargo.lock")?;
    let mut bom = bom(&dependencies::metadata_of(target)?, &digests(&lock))?;
    let subject = &mut bom["metadata"]["component"];
    subject["hashes"] = json!([{ "alg": "SHA-256", "content": digest }]);
    subject["properties"] = json!([
        { "name": "mainstay:artefact", "value": artefact },
        { "name": "mainstay:target", "value": target },
    ]);
    Ok(bom)
}

/// Returns the SHA-256 of each registry package from the lock file, by name and version.
fn digests(lock: &str) -> BTreeMap<(String, String), String> {
    let mut digests = BTreeMap::new();
    for package in lock.split("[[package]]").skip(1) {
        let field = |name: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" = "));
            line.map(|value| value.trim_matches('"').to_owned())
        };
        if let (Some(name), Some(version), Some(digest)) =
            (field("name"), field("version"), field("checksum"))
        {
            digests.insert((name, version), digest);
        }
    }
    digests
}

/// Returns the packages of `cargo metadata` by id.
fn by_id(list: &Value) -> BTreeMap<&str, &Value> {
    let items = list.as_array().into_iter().flatten();
    items.filter_map(|item| Some((item["id"].as_str()?, item))).collect()
}

/// Dependencies that are followed from the binary.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Those that a package needs to build or to run.
    Used,
    /// Those that a package needs to run. Macros count, because they write code of the package.
    Linked,
}

/// Returns the ids of the packages that a package needs. Dev-dependencies do not count.
fn uses(node: &Value, which: Kind) -> impl Iterator<Item = &str> {
    let is_used = move |each: &&Value| {
        let mut kinds = each["dep_kinds"].as_array().into_iter().flatten();
        kinds.any(|kind| match kind["kind"].as_str() {
            None => true,
            Some(kind) => which == Kind::Used && kind != "dev",
        })
    };
    node["deps"].as_array().into_iter().flatten().filter(is_used).filter_map(|each| each["pkg"].as_str())
}

fn text<'a>(package: &'a Value, field: &str) -> Result<&'a str, String> {
    package[field].as_str().ok_or_else(|| format!("cargo metadata: {} has no {field}", package["id"]))
}

fn purl(package: &Value) -> Result<String, String> {
    // Escape the plus sign, which a version may contain before its build metadata, as package URLs require.
    Ok(format!("pkg:cargo/{}@{}", text(package, "name")?, text(package, "version")?.replace('+', "%2B")))
}

fn component(package: &Value, digests: &BTreeMap<(String, String), String>) -> Result<Value, String> {
    let (name, version) = (text(package, "name")?, text(package, "version")?);
    let purl = purl(package)?;
    let mut component = json!({
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "scope": "required",
        // Replace `/`, an older notation for `OR`, because CycloneDX requires a valid SPDX expression.
        "licenses": [{ "expression": text(package, "license")?.replace('/', " OR ") }],
    });
    if let Some(source) = package["source"].as_str() {
        let digest = digests.get(&(name.to_owned(), version.to_owned()));
        let digest = digest.filter(|_| source.starts_with(REGISTRY));
        let digest = digest
            .ok_or_else(|| format!("{name} {version} comes from {source}, without a digest in Cargo.lock"))?;
        component["hashes"] = json!([{ "alg": "SHA-256", "content": digest }]);
    }
    if let Some(repository) = package["repository"].as_str() {
        component["externalReferences"] = json!([{ "type": "vcs", "url": repository }]);
    }
    Ok(component)
}

/// Returns the package of the binary, and that package with all that it needs, sorted by id.
///
/// # Errors
///
/// Returns an error if the metadata lack the binary or a package.
pub fn reached(metadata: &Value, which: Kind) -> Result<(&Value, Vec<&Value>), String> {
    let packages = by_id(&metadata["packages"]);
    let nodes = by_id(&metadata["resolve"]["nodes"]);
    let binary =
        packages.iter().find(|(_, package)| package["name"] == BINARY && package["source"].is_null());
    let (id, binary) = binary.ok_or_else(|| format!("cargo metadata: there is no package {BINARY}"))?;
    let mut reached = BTreeSet::from([*id]);
    let mut open = vec![*id];
    while let Some(id) = open.pop() {
        let node = nodes.get(id).ok_or_else(|| format!("cargo metadata: {id} is not resolved"))?;
        open.extend(uses(node, which).filter(|used| reached.insert(used)));
    }
    let package =
        |id: &&str| packages.get(id).copied().ok_or_else(|| format!("cargo metadata: {id} is no package"));
    Ok((binary, reached.iter().map(package).collect::<Result<_, _>>()?))
}

/// Returns the bill of materials of the binary.
fn bom(metadata: &Value, digests: &BTreeMap<(String, String), String>) -> Result<Value, String> {
    let packages = by_id(&metadata["packages"]);
    let nodes = by_id(&metadata["resolve"]["nodes"]);
    let (binary, reached) = reached(metadata, Kind::Used)?;
    let mut components = BTreeMap::new();
    let mut graph = BTreeMap::new();
    for package in reached {
        let id = text(package, "id")?;
        let used: Result<BTreeSet<String>, String> = uses(nodes[id], Kind::Used)
            .map(|used| {
                purl(packages.get(used).ok_or_else(|| format!("cargo metadata: {used} is no package"))?)
            })
            .collect();
        graph.insert(purl(package)?, used?);
        components.insert(purl(package)?, component(package, digests)?);
    }
    let own = purl(binary)?;
    let mut subject = components.remove(&own).unwrap_or_default();
    subject["type"] = json!("application");
    let graph: Vec<Value> = graph.into_iter().map(|(of, on)| json!({ "ref": of, "dependsOn": on })).collect();
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": subject },
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": graph,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

    fn package(name: &str, source: Option<&str>) -> Value {
        json!({ "id": name, "name": name, "version": "1.0.0+a", "license": "MIT/Apache-2.0", "source": source })
    }

    fn metadata(source: &str) -> Value {
        let dep = |name: &str, kind: Option<&str>| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        json!({
            "packages": [package("mainstay", None), package("a", Some(source)), package("b", Some(source)), package("c", Some(source))],
            "resolve": { "nodes": [
                { "id": "mainstay", "deps": [dep("a", None), dep("b", Some("dev"))] },
                { "id": "a", "deps": [dep("c", Some("build"))] },
                { "id": "b", "deps": [] },
                { "id": "c", "deps": [] },
            ] },
        })
    }

    #[test]
    fn what_is_built_is_listed_with_its_digest() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0+a\"\nchecksum = \"12\"\n\n\
                    [[package]]\nname = \"c\"\nversion = \"1.0.0+a\"\nchecksum = \"34\"\n";
        let bom = bom(&metadata(REGISTRY), &digests(lock)).unwrap();
        let names: Vec<&str> =
            bom["components"].as_array().unwrap().iter().map(|each| each["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a", "c"], "neither what only tests use nor the binary itself");
        assert_eq!(bom["components"][1]["hashes"][0]["content"], "34");
        assert_eq!(bom["components"][0]["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(bom["metadata"]["component"]["purl"], "pkg:cargo/mainstay@1.0.0%2Ba");
        assert_eq!(
            bom["dependencies"][0],
            json!({ "ref": "pkg:cargo/a@1.0.0%2Ba", "dependsOn": ["pkg:cargo/c@1.0.0%2Ba"] })
        );
    }

    #[test]
    fn a_package_without_a_digest_is_refused() {
        for source in [REGISTRY, "git+https://example.com"] {
            let said = bom(&metadata(source), &BTreeMap::new()).unwrap_err();
            assert!(said.contains(&format!("a 1.0.0+a comes from {source}, without a digest")), "{said}");
        }
    }
}
