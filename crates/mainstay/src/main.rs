//! The binary. By its name, or by its first word, it is a member or one of the tools.

mod member;
mod open_files;
mod rebuild;
mod signals;

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use member::Purpose;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let called = words.first().and_then(|path| Path::new(path).file_name()).and_then(|name| name.to_str());
    let arguments = words.get(1..).unwrap_or_default();
    if called == Some("etcd") {
        return member::run(arguments, Purpose::Etcd);
    }
    let verb = arguments.first().and_then(|word| word.to_str());
    match verb {
        Some("server") => member::run(&arguments[1..], Purpose::Serve),
        Some("rebuild") => member::run(&arguments[1..], Purpose::Rebuild),
        Some(verb) if !verb.starts_with('-') => {
            eprintln!(
                "{verb:?} is no command of this version; to run a member, give flags only (see --help)"
            );
            ExitCode::from(2)
        }
        _ => member::run(arguments, Purpose::Serve),
    }
}
