//! Reads the flags and environment variables of a member's process on this machine: [`settings`].

use std::fs;

use cli::Failure;

use crate::migrate::Settings;

/// Maximum size of a command line or environment that is read; Linux allows less.
const BYTES_MAX: usize = 4 << 20;
/// Words before the flags that run a member.
const VERBS: [&str; 2] = ["server", "observer"];

/// Judges the flags and variables with which a process was started as a start of this release would.
///
/// # Errors
///
/// Returns an error if there is no such process, or it must not be read.
pub(super) fn settings(pid: u64) -> Result<Settings, Failure> {
    let read = |file: &str| {
        let path = format!("/proc/{pid}/{file}");
        let bytes = fs::read(&path).map_err(|error| Failure::error(format!("{path}: {error}")))?;
        Ok::<Vec<u8>, Failure>(bytes.into_iter().take(BYTES_MAX).collect())
    };
    let arguments = arguments(&read("cmdline")?);
    let Some(arguments) = arguments else {
        return Err(Failure::error(format!("process {pid} was not started as a member of Mainstay")));
    };
    Ok(Settings::of(&format!("process {pid}"), &arguments, &variables(&read("environ")?)))
}

/// Returns the flags in a command line whose words end with zero bytes; `None` if it does not start a member.
fn arguments(words: &[u8]) -> Option<Vec<String>> {
    let mut words = words.strip_suffix(b"\0").unwrap_or(words).split(|byte| *byte == 0);
    words.next().filter(|program| !program.is_empty())?;
    let mut words: Vec<String> = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    match words.first() {
        Some(verb) if VERBS.contains(&verb.as_str()) => drop(words.remove(0)),
        Some(verb) if !verb.starts_with('-') => return None,
        _ => {}
    }
    Some(words)
}

fn variables(environment: &[u8]) -> Vec<(String, String)> {
    let pairs = environment.split(|byte| *byte == 0).filter_map(|pair| std::str::from_utf8(pair).ok());
    pairs
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_of_a_member_are_found() {
        let words = |text: &str| arguments(text.replace(' ', "\0").as_bytes());
        assert_eq!(words("mainstay "), Some(Vec::new()));
        assert_eq!(words("/bin/mainstay --name m1 "), Some(vec!["--name".to_owned(), "m1".to_owned()]));
        assert_eq!(words("mainstay server --name=m1 "), Some(vec!["--name=m1".to_owned()]));
        for other in ["", "mainstay ctl get k ", "mainstay shadow "] {
            assert_eq!(words(other), None, "{other}");
        }
        let found = variables(b"ETCD_NAME=a=b\0x\0\xff=1\0");
        assert_eq!(found, [("ETCD_NAME".to_owned(), "a=b".to_owned())]);
    }

    #[test]
    fn a_process_that_is_no_member_is_refused() {
        // This process is a test program, whose arguments may be flags.
        assert!(settings(u64::MAX).is_err());
    }
}
