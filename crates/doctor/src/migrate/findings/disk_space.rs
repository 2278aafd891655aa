use disk::DiskSpace;

use crate::finding::{Fact, Facts, Finding, Severity};
use crate::migrate::directory::Directory;
use crate::migrate::findings::MigrationRule;
use crate::migrate::survey::{Product, Survey};
use crate::show;

pub const RULE: MigrationRule =
    MigrationRule { name: "disk-space", about: "too little space for a second copy of the live data", judge };

/// Estimated size of Mainstay's log, per byte in use in etcd's database. It is above 1, because each record
/// has a header.
const LOG_SHARE: f64 = 1.2;
/// Estimated size of Mainstay's checkpoint, per byte in use in etcd's database. A checkpoint contains keys
/// but no values, so only databases with small values need that much.
const INDEX_SHARE: f64 = 0.4;
/// Estimated size of etcd's database, per byte in use in Mainstay's data. It is above 1, because the pages of
/// the database are partly empty.
const DATABASE_SHARE: f64 = 1.3;
/// Number of log segments for which space is needed besides the data: the one that is being written, and
/// those that are prepared or kept in reserve.
const SEGMENTS: f64 = 3.0;
/// Largest size of a log segment in bytes. On a small file system, Mainstay uses smaller segments.
const SEGMENT_BYTES: f64 = 67_108_864.0;
const SEGMENTS_PER_DISK: f64 = 32.0;
/// Space in bytes for all other files, such as markers.
const MARGIN_BYTES: f64 = 8_388_608.0;

fn judge(survey: &Survey) -> Option<Finding> {
    let directory = survey.directory.as_ref()?.as_ref().ok()?;
    if directory.of == survey.to {
        return None;
    }
    let in_use = survey.evidence.statuses().map(|(_, status)| status.db_bytes_in_use).fold(0.0, f64::max);
    // Use the size of the database file, which includes free pages, if no member reports how many bytes are
    // in use.
    let data = if in_use > 0.0 { in_use } else { directory.database_bytes as f64 };
    let mut facts = Facts::default();
    for (path, needed, space) in needs(directory, survey.to, data) {
        let free = space.free_bytes as f64;
        if free < needed {
            let (needed, free, data) = (show::bytes(needed), show::bytes(free), show::bytes(data));
            let text = format!("{path}: about {needed} are needed for {data} of data, {free} are free");
            facts.add(Severity::Error, Fact::all(text));
        }
    }
    facts.found(
        RULE.name,
        "the disk has too little space",
        "The old files stay beside the new ones, so the live data is stored twice. Without enough space, \
         the start is refused; nothing is lost, but the member is down during that time.",
        &[
            "remove history first: mainstay ctl compact REVISION, then at etcd: mainstay ctl defrag",
            "enlarge the file system, or remove other data from it",
            "to Mainstay: the log, which takes most of the space, may be on another disk (--wal-dir, if etcd's log is there too)",
        ],
    )
}

/// Returns how much space is needed where: for each directory, its path, the bytes that are needed, and the
/// space on its file system.
fn needs(directory: &Directory, to: Product, data: f64) -> Vec<(String, f64, DiskSpace)> {
    let path = directory.path.display().to_string();
    if to == Product::Etcd {
        return vec![(path, data * DATABASE_SHARE + MARGIN_BYTES, directory.space)];
    }
    let log = |space: DiskSpace| {
        let segment = (space.total_bytes as f64 / SEGMENTS_PER_DISK).min(SEGMENT_BYTES);
        data * LOG_SHARE + SEGMENTS * segment
    };
    let index = data * INDEX_SHARE + MARGIN_BYTES;
    match (&directory.wal_dir, directory.wal_space) {
        (Some(wal_dir), Some(space)) => {
            vec![(path, index, directory.space), (wal_dir.display().to_string(), log(space), space)]
        }
        _ => vec![(path, index + log(directory.space), directory.space)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::migrate::fixture::{directory, etcds, facts, judged};

    const MIB: u64 = 1 << 20;

    fn of(free_bytes: u64) -> Survey {
        let mut survey = etcds("3.6.16");
        for member in &mut survey.evidence.members {
            member.status.as_mut().unwrap().db_bytes_in_use = (100 * MIB) as f64;
        }
        survey.directory = Some(Ok(directory(500 * MIB, free_bytes)));
        survey
    }

    #[test]
    fn live_data_once_more_and_the_index() {
        // 120 MiB and three segments for the log, 40 MiB for the checkpoint, and the margin.
        assert_eq!(judged(&RULE, &of(360 * MIB)), None);
        assert_eq!(
            facts(&RULE, &of(360 * MIB - 1)),
            (
                Severity::Error,
                vec!["/var/lib/etcd: about 378 MB are needed for 105 MB of data, 378 MB are free".to_owned()]
            )
        );
    }

    #[test]
    fn a_log_on_another_disk_and_the_way_back() {
        let mut survey = of(50 * MIB);
        let seen = survey.directory.as_mut().unwrap().as_mut().unwrap();
        seen.wal_dir = Some("/wal".into());
        seen.wal_space = Some(DiskSpace { free_bytes: 313 * MIB, total_bytes: 100 << 30 });
        assert_eq!(judged(&RULE, &survey), None);
        let seen = survey.directory.as_mut().unwrap().as_mut().unwrap();
        seen.wal_space = Some(DiskSpace { free_bytes: 312 * MIB - 1, total_bytes: 100 << 30 });
        assert!(facts(&RULE, &survey).1[0].starts_with("/wal: about 327 MB are needed"));
        let mut survey = of(138 * MIB);
        survey.to = Product::Etcd;
        assert_eq!(judged(&RULE, &survey), None, "it is etcd's already");
        survey.directory.as_mut().unwrap().as_mut().unwrap().of = Product::Mainstay;
        assert_eq!(judged(&RULE, &survey), None);
        survey.directory.as_mut().unwrap().as_mut().unwrap().space.free_bytes = 137 * MIB;
        assert!(judged(&RULE, &survey).is_some());
    }

    #[test]
    fn without_a_member_that_says_its_size_the_file_counts() {
        let mut survey = of(600 * MIB);
        for member in &mut survey.evidence.members {
            member.status = Err("late".into());
        }
        assert!(judged(&RULE, &survey).is_some());
    }
}
