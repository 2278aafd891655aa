//! Helpers shared by the tests.

use std::fmt::Write as _;

use mainstay_interchange::Source;
use mainstay_interchange::backend::{Backend, BackendWriter, Copy, CopyError, Release};
use mainstay_interchange::snapshot::Digesting;

/// Returns all contents of a database as text.
pub fn transcript<S: Source>(backend: &Backend<S>) -> Result<String, mainstay_interchange::Error> {
    let mut out = String::new();
    let _ = writeln!(out, "{:?}", backend.meta()?);
    let _ = writeln!(out, "{:?}", backend.membership()?);
    let _ = writeln!(out, "{:?}", backend.alarms()?);
    let auth = backend.auth()?;
    let _ = writeln!(out, "{auth:?}");
    // `Debug` does not print passwords.
    for user in &auth.users {
        let _ = writeln!(out, "{}: {}", user.name.escape_ascii(), user.password.escape_ascii());
    }
    let mut leases = backend.leases()?;
    while let Some(lease) = leases.step()? {
        let _ = writeln!(out, "{lease:?}");
    }
    let mut history = backend.history()?;
    while let Some(change) = history.step()? {
        let head = change.head;
        let _ = write!(out, "{}.{} ", head.revision.main, head.revision.sub);
        let key = String::from_utf8_lossy(head.key);
        if head.is_tombstone {
            let _ = writeln!(out, "delete {key}");
            continue;
        }
        let value = match change.value.len() {
            0..=40 => String::from_utf8_lossy(change.value).into_owned(),
            len => format!("{len} bytes, crc {:08x}", crc32c::crc32c(change.value)),
        };
        let _ = writeln!(
            out,
            "put {key} = {value} (created {}, version {}, lease {:x})",
            head.create_revision, head.version, head.lease
        );
    }
    Ok(out)
}

/// Returns a snapshot file with the same contents.
pub fn copy<S: Source>(from: &Backend<S>, release: Release) -> Vec<u8> {
    write_copy(&Copy::of(from, release).expect("can be read")).expect("can be copied")
}

pub fn write_copy<S: Source>(copy: &Copy<'_, S>) -> Result<Vec<u8>, CopyError> {
    let plan = copy.plan()?;
    let mut writer = BackendWriter::new(Digesting::new(Vec::new()), plan, copy.release)?;
    copy.write(&mut writer)?;
    let bytes = writer.finish()?.finish().expect("a vector takes all");
    assert_eq!(bytes.len() as u64, plan.size_bytes() + 32);
    Ok(bytes)
}
