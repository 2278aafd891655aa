use std::fmt;
use std::path::{Path, PathBuf};

/// Reason why TLS files or settings cannot be used. Displayed as etcd's message, with the name of the file if
/// the message does not contain it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    file: Option<PathBuf>,
    problem: String,
}

impl LoadError {
    pub(crate) fn new(problem: impl Into<String>) -> LoadError {
        LoadError { file: None, problem: problem.into() }
    }

    pub(crate) fn of_file(file: &Path, problem: impl Into<String>) -> LoadError {
        LoadError { file: Some(file.to_owned()), problem: problem.into() }
    }

    /// Returns the file that cannot be used; `None` if the error is in the settings.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Returns the description of the problem: etcd's message if etcd has one for it.
    pub fn problem(&self) -> &str {
        &self.problem
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) if !self.problem.contains(&*file.to_string_lossy()) => {
                write!(f, "{} ({})", self.problem, file.display())
            }
            _ => f.write_str(&self.problem),
        }
    }
}

impl std::error::Error for LoadError {}
