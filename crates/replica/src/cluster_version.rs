//! Represents versions with a major and a minor number, such as a cluster version.

use std::fmt;

/// A version without a patch number. It is printed in the format in which etcd prints a cluster version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Minor(pub u32, pub u32);

impl Minor {
    /// Returns the version to which a cluster at this version may be downgraded: the previous minor version;
    /// `None` if there is none.
    pub fn before(self) -> Option<Minor> {
        Some(Minor(self.0, self.1.checked_sub(1)?))
    }
}

impl fmt::Display for Minor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.0", self.0, self.1)
    }
}

/// Returns the major and the minor number of a version; `None` if it does not begin with two numbers
/// separated by a dot.
pub fn minor(version: &str) -> Option<Minor> {
    let mut parts = version.split('.');
    Some(Minor(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
