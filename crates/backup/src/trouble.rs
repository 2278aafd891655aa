//! Errors of the backup: what failed, and what to do.

use std::fmt;

/// Kind of an error, which decides what its caller does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The store or the source does not answer now. Trying again may help without anybody's help.
    Passing,
    /// The store refuses the credentials. They are read again before the next attempt.
    Denied,
    /// The bucket or the directory does not exist.
    NoPlace,
    /// The clock of this machine differs too much from that of the store.
    ClockSkew,
    /// There is no space.
    Full,
    /// An object lacks bytes, has other ones than when it was written, or is missing.
    Damaged,
    /// The backup at this place belongs to another cluster or to another history of it.
    Foreign,
    /// The request cannot be carried out, for example because the moment is not in the backup.
    Refused,
}

/// An error with a sentence that says what happened and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// Kind of the error.
    pub fault: Fault,
    /// The sentence.
    pub text: String,
}

impl Trouble {
    /// Returns an error of this kind.
    pub fn new(fault: Fault, text: impl fmt::Display) -> Trouble {
        Trouble { fault, text: text.to_string() }
    }

    /// Returns an error about an object that cannot be used.
    pub(crate) fn damaged(name: &str, found: impl fmt::Display) -> Trouble {
        Trouble::new(
            Fault::Damaged,
            format!(
                "{name} {found}: `mainstay backup verify` lists all that is damaged, and moments that do not need this \
                 object can still be restored"
            ),
        )
    }

    /// Returns true if another attempt may succeed without a change of the configuration.
    pub fn is_passing(&self) -> bool {
        !matches!(self.fault, Fault::Foreign | Fault::Refused | Fault::Damaged)
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Trouble {}

impl From<Trouble> for cli::Failure {
    fn from(trouble: Trouble) -> cli::Failure {
        cli::Failure::error(trouble.text)
    }
}
