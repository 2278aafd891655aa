//! The terms of entries that are only on disk, kept with a checkpoint: a run of equal terms is its first index and the
//! term. A member knows from them, without reading the log, where a follower's log and its own part.

use machine::Machine;

/// Runs kept at most: that many changes of leader ago, a follower gets a snapshot.
const RUNS_MAX: usize = 1024;

/// Adds an entry.
pub fn push(runs: &mut Vec<(u64, u64)>, index: u64, term: u64) {
    if runs.last().is_none_or(|(_, last)| *last != term) {
        runs.push((index, term));
        if runs.len() > RUNS_MAX {
            runs.drain(..runs.len() - RUNS_MAX);
        }
    }
}

/// Forgets the runs before the one that holds the entry in front of `first`.
pub fn forget(runs: &mut Vec<(u64, u64)>, first: u64) {
    let needed = runs.iter().rposition(|(index, _)| *index < first).unwrap_or(0);
    runs.drain(..needed);
}

/// The bytes kept with a checkpoint.
pub fn write(runs: &[(u64, u64)]) -> Vec<u8> {
    runs.iter().flat_map(|(index, term)| [index.to_le_bytes(), term.to_le_bytes()]).flatten().collect()
}

/// Reads them back. What does not fit the state (an older version wrote none) counts as nothing known.
pub fn read(bytes: &[u8], machine: &Machine) -> Vec<(u64, u64)> {
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let runs: Vec<(u64, u64)> =
        bytes.chunks_exact(16).map(|pair| (number(&pair[..8]), number(&pair[8..]))).collect();
    let ascending = runs.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1);
    let ends = runs
        .last()
        .is_some_and(|(index, term)| *index <= machine.applied_index && *term == machine.applied_term);
    if ascending && ends && bytes.len().is_multiple_of(16) {
        return runs;
    }
    if machine.applied_index == 0 { Vec::new() } else { vec![(machine.applied_index, machine.applied_term)] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_come_back_and_forget_what_is_gone() {
        let mut runs = Vec::new();
        for (index, term) in [(1, 1), (2, 1), (3, 2), (4, 2), (5, 7)] {
            push(&mut runs, index, term);
        }
        assert_eq!(runs, [(1, 1), (3, 2), (5, 7)]);
        let mut machine = Machine::new(machine::Rules { learners_max: 1 });
        machine.applied_index = 6;
        machine.applied_term = 7;
        assert_eq!(read(&write(&runs), &machine), runs);
        assert_eq!(read(&[], &machine), [(6, 7)]);
        assert_eq!(read(&[1; 16], &machine), [(6, 7)]);
        forget(&mut runs, 4);
        assert_eq!(runs, [(3, 2), (5, 7)]);
        forget(&mut runs, 3);
        assert_eq!(runs, [(3, 2), (5, 7)]);
    }
}
