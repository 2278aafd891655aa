//! Developers' commands: `cargo xtask proto [--check]`.

mod proto;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo xtask VERB

  proto           write crates/api/src/proto/*.rs anew from crates/api/proto/*.proto
  proto --check   say whether they are up to date, and change nothing
";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words.as_slice() {
        ["proto"] => proto::write(),
        ["proto", "--check"] => proto::check(),
        _ => Err(USAGE.to_owned()),
    };
    match outcome {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}
