//! Checks that the tests exist that COMPAT.md names for each difference from etcd.

use std::fs;

use crate::generated::root;

/// Checks the last column of every row of COMPAT.md, which names the tests of the row.
///
/// # Errors
///
/// Returns a description of each row that names no test, or names a file or function that does not exist. Also
/// returns an error if COMPAT.md cannot be read or has no rows.
pub fn check() -> Result<String, String> {
    let path = root().join("COMPAT.md");
    let text = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (mut rows, mut wrong) = (0, Vec::new());
    for line in text.lines().filter(|line| line.starts_with("| COMPAT-")) {
        rows += 1;
        let cells: Vec<&str> = line.trim_end().trim_end_matches('|').split(" | ").collect();
        let number = cells[0].trim_start_matches("| ");
        let tests = cells.last().copied().unwrap_or_default();
        // Names are in backticks; what is between them are separators and remarks.
        let mut named = tests.split('`').skip(1).step_by(2).peekable();
        if named.peek().is_none() {
            wrong.push(format!("{number}: no test is named in {tests:?}"));
        }
        wrong.extend(named.filter_map(|test| exists(test).err()).map(|why| format!("{number}: {why}")));
    }
    match wrong.as_slice() {
        [] if rows > 0 => Ok(format!("the tests of {rows} rows of COMPAT.md exist")),
        [] => Err("COMPAT.md has no rows".to_owned()),
        _ => Err(wrong.join("\n")),
    }
}

/// Checks that a test exists: `PATH: FUNCTION` with a path below `crates/`, or the path of a program in
/// `interop/`.
fn exists(test: &str) -> Result<(), String> {
    let (file, function) = match test.split_once(": ") {
        Some((file, function)) => (file, Some(function)),
        None => (test, None),
    };
    let path = match file.starts_with("interop/") {
        true => root().join(file),
        false => root().join("crates").join(file),
    };
    let missing = || format!("there is no {test}");
    let Some(function) = function else { return path.is_file().then_some(()).ok_or_else(missing) };
    let source = fs::read_to_string(&path).map_err(|_| missing())?;
    source.contains(&format!("fn {function}(")).then_some(()).ok_or_else(missing)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_names_tests_that_exist() {
        check().unwrap();
    }

    #[test]
    fn a_test_that_does_not_exist_is_noticed() {
        let known = "xtask/src/compat.rs: a_test_that_does_not_exist_is_noticed";
        assert_eq!(exists(known), Ok(()));
        assert_eq!(exists("interop/gateway_same.py"), Ok(()));
        for unknown in
            ["none", "interop/nothing.py", "xtask/src/compat.rs: nothing", "xtask/src/nothing.rs: check"]
        {
            assert!(exists(unknown).is_err(), "{unknown}");
        }
    }
}
