//! `cargo xtask release-notes VERSION`: prints the section of CHANGELOG.md for a version.

use crate::generated::read;

/// Returns the release notes of a version: a title and the version's section of CHANGELOG.md.
///
/// # Errors
///
/// Returns an error that lists the versions in CHANGELOG.md, if this version is not one of them.
pub fn print(version: &str) -> Result<String, String> {
    cut(&read("CHANGELOG.md")?, version)
}

/// Returns the version if the line is the heading of a version's section, such as `## 0.1.0 (unreleased)`.
fn version_of(line: &str) -> Option<&str> {
    line.strip_prefix("## ")?.split_whitespace().next()
}

fn is_version(text: &str) -> bool {
    let numbers: Vec<&str> = text.split('-').next().unwrap_or(text).split('.').collect();
    numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u32>().is_ok())
}

fn cut(changelog: &str, version: &str) -> Result<String, String> {
    let wanted = version.strip_prefix('v').unwrap_or(version);
    if !is_version(wanted) {
        return Err(format!(
            "{version:?} is no version: three numbers with dots between them, such as 0.1.0"
        ));
    }
    let mut lines = changelog.lines().skip_while(|line| version_of(line) != Some(wanted));
    let Some(title) = lines.next() else {
        let there: Vec<&str> = changelog.lines().filter_map(version_of).collect();
        return Err(format!("CHANGELOG.md has no section for {wanted}; it has {}", there.join(", ")));
    };
    let body: Vec<&str> = lines.take_while(|line| !line.starts_with("## ")).collect();
    let body = body.join("\n");
    if body.trim().is_empty() {
        return Err(format!("the section of CHANGELOG.md for {wanted} is empty"));
    }
    Ok(format!("# Mainstay {}\n\n{}", title.trim_start_matches("## "), body.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHANGELOG: &str = "# Changelog\n\n## 0.2.0 (unreleased)\n\n### Tools\n- a\n\n## 0.1.10\n- c\n\n## 0.1.1\n\n## 0.1.0\n- b\n";

    #[test]
    fn a_section_is_cut_out() {
        assert_eq!(cut(CHANGELOG, "0.2.0").unwrap(), "# Mainstay 0.2.0 (unreleased)\n\n### Tools\n- a");
        assert_eq!(cut(CHANGELOG, "v0.1.0").unwrap(), "# Mainstay 0.1.0\n\n- b");
    }

    #[test]
    fn what_is_no_version_or_has_no_section_is_refused() {
        for (version, why) in [
            ("latest", "is no version"),
            ("0.1", "is no version"),
            ("", "is no version"),
            ("0.3.0", "no section for 0.3.0; it has 0.2.0, 0.1.10, 0.1.1, 0.1.0"),
            ("0.1.1", "is empty"),
        ] {
            let said = cut(CHANGELOG, version).unwrap_err();
            assert!(said.contains(why), "{version}: {said}");
        }
    }
}
