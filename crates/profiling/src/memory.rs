//! Returns a profile of the memory that this process holds, by owner. Nothing is sampled: each owner counts
//! its own memory, and the memory that no owner counts is shown as a separate entry.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::time::SystemTime;

use crate::profile::Profile;

/// Memory held by one part of the process, as that part counts it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Name of the part, such as `index`. The name of a part within another one is a path, such as
    /// `clients/requests`.
    pub name: &'static str,
    /// Number of objects that the part holds; 0 if it does not count them.
    pub objects: u64,
    /// Bytes that the part holds.
    pub bytes: u64,
}

/// Resident memory of this process, as the kernel counts it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Bytes of anonymous memory: heap, stacks and similar.
    pub anonymous: u64,
    /// Bytes of the program, its libraries, and shared memory.
    pub files: u64,
}

impl Resident {
    /// Reads the kernel's current values. A value that the kernel does not provide is 0.
    pub fn read() -> Resident {
        Resident::of(&fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    /// Parses `/proc/self/status`.
    fn of(status: &str) -> Resident {
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
            let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
            kilobytes.unwrap_or(0).saturating_mul(1024)
        };
        Resident { anonymous: bytes("RssAnon"), files: bytes("RssFile").saturating_add(bytes("RssShmem")) }
    }

    /// Adds two entries to those of the owners, so that the sum of all is the resident memory: one for the
    /// program and its libraries, and one for anonymous memory that no owner counts. If the owners count more
    /// than the anonymous memory, the latter entry is 0.
    fn completed(self, owners: &[Owner]) -> Vec<Owner> {
        let counted = owners.iter().map(|owner| owner.bytes).fold(0, u64::saturating_add);
        let rest = self.anonymous.saturating_sub(counted);
        let mut all = owners.to_vec();
        all.push(Owner { name: NOT_COUNTED, objects: 0, bytes: rest });
        all.push(Owner { name: FILES, objects: 0, bytes: self.files });
        all
    }
}

/// Name of the entry for memory that is resident but counted by no owner: stacks, tables, and memory that the
/// allocator keeps.
const NOT_COUNTED: &str = "not counted";
/// Name of the entry for the program, its libraries and shared memory.
const FILES: &str = "program and libraries";
/// Name of the root entry, which contains all owners.
const PROCESS: &str = "process";

/// Returns a profile that has one sample for each owner, with the number of objects and the bytes in use.
pub fn memory_profile(owners: &[Owner], resident: Resident) -> Vec<u8> {
    let mut profile = Profile::new();
    profile.values(&[("inuse_objects", "count"), ("inuse_space", "bytes")]);
    profile.shows_first("inuse_space");
    let mut places: HashMap<&str, u64> = HashMap::new();
    for owner in resident.completed(owners) {
        let frames = owner.name.rsplit('/').chain([PROCESS]);
        let locations: Vec<u64> = frames
            .map(|frame| {
                let next = places.len() as u64 + 1;
                let id = *places.entry(frame).or_insert(next);
                if id == next {
                    profile.location(id, 0, 0, frame);
                }
                id
            })
            .collect();
        profile.sample(&locations, &[owner.objects, owner.bytes], &[]);
    }
    profile.finish(SystemTime::now())
}

/// Returns the memory in use as text. Each line has the bytes, the number of objects and the name of an
/// owner; the largest owner comes first.
pub fn memory_text(owners: &[Owner], resident: Resident) -> String {
    let mut all = resident.completed(owners);
    all.sort_by_key(|owner| std::cmp::Reverse(owner.bytes));
    let mut text = format!("resident: {} bytes\n", resident.anonymous.saturating_add(resident.files));
    for Owner { name, objects, bytes } in all {
        // Ignore the result, because writing to a string cannot fail.
        let _ = writeln!(text, "{bytes} {objects} {name}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::decoded;

    const OWNERS: [Owner; 3] = [
        Owner { name: "index", objects: 7, bytes: 4000 },
        Owner { name: "clients/requests", objects: 0, bytes: 500 },
        Owner { name: "clients/answers", objects: 0, bytes: 300 },
    ];

    #[test]
    fn owners_and_what_none_counts_are_told() {
        let resident = Resident { anonymous: 5000, files: 100 };
        let expected = "resident: 5100 bytes\n4000 7 index\n500 0 clients/requests\n300 0 clients/answers\n200 0 not counted\n100 0 program and libraries\n";
        assert_eq!(memory_text(&OWNERS, resident), expected);
        let told = decoded(&memory_profile(&OWNERS, resident));
        for name in ["inuse_space", "index", "clients", "requests", "answers", NOT_COUNTED, FILES, PROCESS] {
            assert_eq!(
                told.strings.iter().filter(|text| *text == name).count(),
                1,
                "{name}: {:?}",
                told.strings
            );
        }
        assert_eq!(told.samples, 7, "the sum of the first value");
    }

    #[test]
    fn owners_may_count_more_than_is_resident() {
        let resident = Resident { anonymous: 1, files: 0 };
        assert!(memory_text(&OWNERS, resident).contains("\n0 0 not counted\n"));
    }

    #[test]
    fn resident_memory_is_read_from_the_kernel() {
        let status =
            "Name:\tx\nVmRSS:\t  12 kB\nRssAnon:\t    2048 kB\nRssFile:\t 1024 kB\nRssShmem:\t   1 kB\n";
        assert_eq!(Resident::of(status), Resident { anonymous: 2048 << 10, files: 1025 << 10 });
        assert_eq!(Resident::of("RssAnon: much\n"), Resident::default());
        let now = Resident::read();
        assert!(now.anonymous > 0 && now.files > 0, "{now:?}");
    }
}
