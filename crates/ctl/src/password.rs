//! Reads passwords from standard input without showing them.

use std::io;

use cli::Io;

use crate::process;

/// Prints the prompt and reads a line. A terminal does not show the typed characters.
///
/// # Errors
/// Returns an error if standard input cannot be read, or the line is not UTF-8.
pub fn ask(io: &Io, prompt: &str) -> io::Result<String> {
    io.out.write(prompt.as_bytes())?;
    let line = {
        let _unseen = io.is_process.then(process::EchoOff::new);
        io.input.rest_of_line()
    };
    io.out.write(b"\n")?;
    let line = String::from_utf8(line?).map_err(io::Error::other)?;
    Ok(line.trim().to_owned())
}
