//! The tool as a standalone program, for trials and for `interop/etcdctl_same.py`; the product contains it in
//! its single binary.

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    ctl::run(&args)
}
