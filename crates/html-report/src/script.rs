//! Builds the script of a report from modules: joins them into one, without their import and export lines.
//!
//! The modules are embedded in the page, because a browser does not load modules for a page that was opened
//! from disk. Joining them requires that each import and export is on a single line, and that no two modules
//! declare the same top-level name. A test checks both.

pub(crate) const DOM: &str = include_str!("../assets/dom.mjs");
pub(crate) const FRAME: &str = include_str!("../assets/frame.mjs");
pub(crate) const PLOT: &str = include_str!("../assets/plot.mjs");
const LANES: &str = include_str!("../assets/lanes.mjs");
const REPORT: &str = include_str!("../assets/report.mjs");

/// The modules. Each comes after those that it imports.
const MODULES: [&str; 5] = [DOM, FRAME, PLOT, LANES, REPORT];

/// Returns the script for the element `<script type="module">` of a page.
pub(crate) fn script() -> String {
    let mut out = "\n".to_owned();
    for line in MODULES.iter().flat_map(|module| module.lines()) {
        if !line.starts_with("import ") {
            out += line.strip_prefix("export ").unwrap_or(line);
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_modules_can_stand_in_one() {
        let mut names = BTreeSet::new();
        for line in MODULES.iter().flat_map(|module| module.lines()) {
            if line.starts_with("import ") {
                assert!(line.ends_with(".mjs';"), "an import of one line: {line}");
                assert!(!line.contains(" as "), "a name is the same in all modules: {line}");
            }
            let declared = line.strip_prefix("export ").unwrap_or(line);
            assert!(!declared.starts_with(['{', '*']), "an export of a declaration: {line}");
            let mut words = declared.split([' ', '(', '=', ';']);
            if ["const", "let", "function", "class"].contains(&words.next().unwrap_or_default()) {
                let name = words.next().unwrap_or_default();
                assert!(names.insert(name.to_owned()), "{name} is declared twice");
            }
        }
        assert!(names.contains("Plot") && names.contains("isKnown"), "{names:?}");
    }

    #[test]
    fn nothing_in_the_script_ends_it_or_asks_elsewhere() {
        let script = script();
        for part in
            ["</script", "<!--", "import", "fetch(", "XMLHttpRequest", "innerHTML", "http://", "https://"]
        {
            let found = script.replace("http://www.w3.org/2000/svg", "");
            assert!(!found.contains(part), "{part}");
        }
    }
}
