//! The program `mainstay-torture`: runs the tests that its arguments describe, and sets the exit code.

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use oracle::History;
use torture::options::{self, Invocation};
use torture::{report, run, timeline};

/// Set by the first termination signal, after which the run ends early. A second signal ends the process
/// immediately.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn interrupt(signal: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
    // SAFETY: `signal` may be called in a signal handler. The default action is a valid disposition.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
}

fn main() -> ExitCode {
    let arguments: Result<Vec<String>, _> =
        std::env::args_os().skip(1).map(|word| word.into_string()).collect();
    let Ok(arguments) = arguments else {
        eprintln!("arguments must be UTF-8");
        return ExitCode::from(2);
    };
    let options = match options::parse(&arguments) {
        Ok(Invocation::Help) => {
            print!("{}", options::help());
            return ExitCode::SUCCESS;
        }
        Ok(Invocation::Run(options)) => *options,
        Ok(Invocation::Judge(path)) => return judge(&path),
        Err(error) => {
            eprintln!("mainstay-torture: {error}");
            return ExitCode::from(2);
        }
    };
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler = interrupt as extern "C" fn(libc::c_int);
        // SAFETY: the handler only writes to an atomic variable and calls `signal`. Both are allowed in
        // signal handlers.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
    let finding = match run::run(options, &INTERRUPTED) {
        Ok(finding) => finding,
        Err(error) => {
            eprintln!("mainstay-torture: {}", error.text);
            return ExitCode::from(if error.is_of_machine { 3 } else { 2 });
        }
    };
    let kept = report::write(&finding).and_then(|()| timeline::write(&finding));
    print!("{}", report::summary(&finding));
    if let Err(error) = kept {
        eprintln!("mainstay-torture: {}: {error}", finding.out.display());
        return ExitCode::from(2);
    }
    if finding.is_clean() { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

/// Checks a recorded history with the oracle and prints the verdict.
fn judge(path: &Path) -> ExitCode {
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string());
    let history = text.and_then(|text| History::from_lines(&text).map_err(|error| error.to_string()));
    let history = match history {
        Ok(history) => history,
        Err(error) => {
            eprintln!("mainstay-torture: {}: {error}", path.display());
            return ExitCode::from(2);
        }
    };
    let verdict = oracle::check(&history);
    for violation in &verdict.violations {
        println!("VIOLATION   {violation}");
    }
    for undecided in &verdict.undecided {
        println!("UNDECIDED   {}", undecided.text);
    }
    println!("judged      {:?}", verdict.figures);
    if verdict.is_clean() {
        println!("verdict     no violation");
        return ExitCode::SUCCESS;
    }
    println!("verdict     {} violations, {} undecided", verdict.violations.len(), verdict.undecided.len());
    ExitCode::from(1)
}
