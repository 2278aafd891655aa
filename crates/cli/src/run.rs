//! Runs the commands of a program: [`Program::run_in`].

use std::ffi::OsString;

use crate::{Failure, Invocation, Io, Matches, Program};

impl<R: Copy> Program<R> {
    /// Runs the command that `args`, the words after the program's name, request: `command` gets its flags and arguments,
    /// and the value in its table. Help goes to standard output, usage errors and failures to standard error. Returns the
    /// exit code.
    ///
    /// Tools whose usage errors have to look like those of a tool of etcd do this in their own way.
    pub fn run_in(
        &self,
        args: &[OsString],
        io: &Io,
        command: impl FnOnce(&Matches, R) -> Result<(), Failure>,
    ) -> u8 {
        let outcome = match self.parse(args, io.text_environment()) {
            Err(error) => {
                io.err.notice(format!("Error: {error}\n{}", self.usage(&error.path)));
                return Failure::ERROR;
            }
            Ok(Invocation::Help(text)) => io.out.write(text.as_bytes()).map_err(Failure::error),
            Ok(Invocation::Group(matches)) => {
                io.out.write(self.help(&matches.path).as_bytes()).map_err(Failure::error)
            }
            Ok(Invocation::Run(matches, run)) => command(&matches, run),
        };
        match outcome {
            Ok(()) => 0,
            Err(failure) => {
                if failure.text.is_some() {
                    io.err.notice(format!("Error: {failure}\n"));
                }
                failure.code
            }
        }
    }
}
