//! Random ids that are kept in files.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

/// Returns the id in a file; if there is none, a random one, which is written there.
///
/// # Errors
///
/// Returns the error of the operating system.
pub fn own_id(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Ok(text) if text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) => return Ok(text),
        // A file that is cut was written by a process that used its id for nothing that is durable yet.
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let mut random = [0; 8];
    fs::File::open("/dev/urandom")?.read_exact(&mut random)?;
    let text = format!("{:016x}", u64::from_le_bytes(random));
    let making = path.with_extension("new");
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&making)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&making, path)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use testkit::TempDir;

    use super::*;

    #[test]
    fn an_id_stays_and_two_are_different() {
        let dir = TempDir::new("backup-id");
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        let id = own_id(&one).expect("is made");
        assert_eq!(own_id(&one).expect("is read"), id);
        assert_ne!(own_id(&other).expect("is made"), id);
        fs::write(&one, "cut").expect("is written");
        assert_eq!(own_id(&one).expect("is made again").len(), 16);
    }
}
