//! Why a command did not do what it was asked for.

use std::fmt;

/// What goes to standard error behind `Error: `, and the exit code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// etcdutl's: 1 for most, 4 for an output format that cannot be, 128 for arguments that do not fit together.
    pub code: u8,
    /// The text.
    pub text: String,
}

impl Refusal {
    /// The work could not be done.
    pub fn failed(text: impl fmt::Display) -> Refusal {
        Refusal { code: 1, text: text.to_string() }
    }

    /// It cannot be given out in this format.
    pub fn bad_feature(text: impl fmt::Display) -> Refusal {
        Refusal { code: 4, text: text.to_string() }
    }

    /// The arguments do not fit together.
    pub fn bad_args(text: impl fmt::Display) -> Refusal {
        Refusal { code: 128, text: text.to_string() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Refusal {}
