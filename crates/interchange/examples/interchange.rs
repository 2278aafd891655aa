//! Inspects and writes etcd's files, to compare the library manually with Go's bbolt and real etcd.
//!
//! ```text
//! interchange check    DB                 checks a bbolt file
//! interchange dump     DB                 prints every key, with the length and the FNV-1a hash of its value
//! interchange status   SNAPSHOT           prints the figures of `etcdutl snapshot status`
//! interchange hashkv   SNAPSHOT REVISION  prints the figures of HashKV
//! interchange copy     SNAPSHOT RELEASE NEW        reads a snapshot and writes it again
//! interchange export   SNAPSHOT RELEASE NEW-DIR    writes a data directory for etcd
//! interchange datadir  DIR                prints the contents of a data directory
//! ```

use std::error::Error;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use disk::RealDisk;
use mainstay_interchange::backend::{Backend, BackendWriter, Copy, Release};
use mainstay_interchange::bolt::{Bolt, Cursor};
use mainstay_interchange::wal::Identity;
use mainstay_interchange::{Command, DataDir, NewDataDir, NewMember, Source, Status, hash_kv, snapshot};
use numbers::Revision;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["check", db] => println!("{:?}", database(db)?.check()?),
        ["dump", db] => {
            let bolt = database(db)?;
            dump("", &bolt, bolt.root())?;
        }
        ["status", path] => println!("{:?}", Status::of(&open(path)?)?),
        ["hashkv", path, revision] => println!("{:?}", hash_kv(&open(path)?, Revision(revision.parse()?))?),
        ["copy", path, version, new] => {
            let from = open(path)?;
            let copy = Copy::of(&from, release(version)?)?;
            let plan = copy.plan()?;
            let out = snapshot::Digesting::new(BufWriter::new(File::create(new)?));
            let mut writer = BackendWriter::new(out, plan, copy.release)?;
            copy.write(&mut writer)?;
            writer.finish()?.finish()?.flush()?;
            println!("{plan:?}");
        }
        ["export", path, version, dir] => export(path, release(version)?, dir)?,
        ["datadir", dir] => look(dir)?,
        _ => return Err("check | dump | status | hashkv | copy | export | datadir; see the source".into()),
    }
    Ok(())
}

fn release(version: &str) -> Result<Release, String> {
    Release::of_cluster_version(version).ok_or_else(|| format!("{version} is not one of 3.4, 3.5, 3.6, 3.7"))
}

fn database(path: &str) -> Result<Bolt<File>, Box<dyn Error>> {
    let file = File::open(path)?;
    let parts = snapshot::Parts::of_size(file.len_bytes()?);
    Ok(Bolt::open(file, parts.database_bytes)?)
}

fn open(path: &str) -> Result<Backend<File>, Box<dyn Error>> {
    Ok(snapshot::open(File::open(path)?)?.0)
}

fn dump(path: &str, bolt: &Bolt<File>, mut cursor: Cursor<'_, File>) -> Result<(), Box<dyn Error>> {
    while let Some(item) = cursor.step()? {
        let hex: String = item.key.iter().map(|byte| format!("{byte:02x}")).collect();
        match item.bucket {
            Some(bucket) => {
                let name = String::from_utf8_lossy(item.key);
                let path = if path.is_empty() { name.into_owned() } else { format!("{path}/{name}") };
                dump(&path, bolt, bolt.walk(&bucket))?;
            }
            None => {
                let hash = item.value.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
                    (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
                });
                println!("{path} {hex} {} {hash:016x}", item.value.len());
            }
        }
    }
    Ok(())
}

fn export(path: &str, release: Release, dir: &str) -> Result<(), Box<dyn Error>> {
    let from = open(path)?;
    let mut copy = Copy::of(&from, release)?;
    copy.membership.members.truncate(1);
    let Some(only) = copy.membership.members.first() else { return Err("no member to be".into()) };
    let identity = Identity { member_id: only.id, cluster_id: 0xc1 };
    let member = NewMember {
        identity,
        index: copy.meta.consistent_index.max(1),
        term: copy.meta.term.unwrap_or(1).max(1),
        release,
        conf_state: copy.membership.conf_state(),
        newest_term: copy.meta.term.unwrap_or(1).max(1),
        vote: only.id,
        entries: Vec::new(),
    };
    let new = NewDataDir::begin(&RealDisk, Path::new(dir), member)?;
    copy.meta = new.meta(copy.meta.compact_revision());
    let mut database = new.database(copy.plan()?)?;
    copy.write(&mut database)?;
    new.finish(database, &copy.membership)?;
    Ok(())
}

fn look(dir: &str) -> Result<(), Box<dyn Error>> {
    let dir = DataDir::open(&RealDisk, Path::new(dir))?;
    println!("{:?} {:?} repair {:?}", dir.wal.identity, dir.wal.hard_state, dir.wal.repair);
    println!("snapshots {:?}", dir.wal.snapshots);
    println!("{:?}", dir.meta);
    println!("{:?}", dir.membership);
    println!(
        "base {} of term {:?}, committed {}, end {}, log {}..={}, voters {:?}",
        dir.base_index(),
        dir.base_term(),
        dir.committed(),
        dir.end(),
        dir.wal.first(),
        dir.wal.last(),
        dir.voters
    );
    let (mut nothing, mut requests, mut changes, mut old) = (0, 0, 0, Vec::new());
    for entry in dir.entries() {
        match Command::of(&entry?).map_err(|malformed| format!("{malformed:?}"))? {
            Command::Nothing => nothing += 1,
            Command::Request(_) => requests += 1,
            Command::ConfChange(_) => changes += 1,
            Command::OldWrite { method, path } => old.push((method, path)),
        }
    }
    println!("entries: {nothing} say nothing, {requests} requests, {changes} of members, old: {old:?}");
    Ok(())
}
