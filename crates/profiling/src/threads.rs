//! Lists the threads of this process, which it reads from `/proc`, as a profile and as text.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::fs;
use std::time::SystemTime;

use crate::profile::Profile;

/// Returns the names of the threads, by thread id.
pub(crate) fn names() -> HashMap<usize, String> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    threads
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            let name = fs::read_to_string(entry.path().join("comm")).ok()?;
            Some((id, name.trim_end().to_owned()))
        })
        .collect()
}

/// Returns the number of threads for each thread name.
fn counted() -> BTreeMap<String, u64> {
    let mut counted = BTreeMap::new();
    for name in names().into_values() {
        *counted.entry(name).or_default() += 1;
    }
    counted
}

/// Returns a profile with one sample for each thread name, whose value is the number of threads with this
/// name. It contains no stacks.
pub fn threads_profile() -> Vec<u8> {
    let mut profile = Profile::new();
    profile.values(&[("threads", "count")]);
    for ((name, count), id) in counted().into_iter().zip(1..) {
        profile.location(id, 0, 0, &name);
        profile.sample(&[id], &[count], &[]);
    }
    profile.finish(SystemTime::now())
}

/// Returns the threads as text. Each line has a thread's id, name, state, and processor time in ticks of the
/// kernel.
pub fn threads_text() -> String {
    let threads: BTreeMap<usize, String> = names().into_iter().collect();
    let mut text = format!("threads: total {}\n", threads.len());
    for (id, name) in threads {
        let stat = fs::read_to_string(format!("/proc/self/task/{id}/stat")).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let field = |at: usize| fields.get(at).copied().unwrap_or("?");
        // `fields` begins after the name in parentheses: the first field is the state, and the 12th and 13th
        // are user and system time.
        let _ = writeln!(text, "{id} {name} state {} user {} system {}", field(0), field(11), field(12));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::decoded;

    #[test]
    fn threads_are_told_by_name() {
        let (sender, receiver) = std::sync::mpsc::channel::<()>();
        let waiting = std::thread::Builder::new().name("waits-here".to_owned()).spawn(move || {
            let _ = receiver.recv();
        });
        let waiting = waiting.expect("a thread");
        // Wait until the new thread has set its own name.
        while !threads_text().contains("waits-here state") {
            std::thread::yield_now();
        }
        let told = decoded(&threads_profile());
        assert!(told.strings.contains(&"waits-here".to_owned()), "{:?}", told.strings);
        assert!(told.samples >= 2);
        drop(sender);
        waiting.join().expect("it ends");
    }
}
