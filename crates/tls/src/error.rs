use std::fmt;
use std::path::{Path, PathBuf};

/// Why material for TLS cannot be used. It displays as etcd's text, with the file behind it when the text does not name it.
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

    /// The file that is at fault; `None` if it is the settings.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// What is wrong, in etcd's words where etcd has a text for it.
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
