//! Defines the versions of a saved image, from which a store is built and blocks are read.

use numbers::{LeaseId, Revision};

use crate::version::{Value, Version};

/// Highest revision allowed in an image, so that later revisions cannot overflow.
pub(crate) const REVISION_MAX: Revision = Revision(i64::MAX / 2);

/// Highest version number allowed in an image.
pub(crate) const VERSION_MAX: i64 = REVISION_MAX.0;

/// A version of a saved image. A `version` of 0 is a tombstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedVersion<'k> {
    /// Key of which this is a version.
    pub key: &'k [u8],
    /// Main revision of the change.
    pub main: Revision,
    /// Number of the change within its transaction.
    pub sub: u32,
    /// Main revision that created the key; 0 for a tombstone.
    pub create_revision: Revision,
    /// Number of puts since the creation of the key; 0 for a tombstone.
    pub version: i64,
    /// Id of the lease, or 0.
    pub lease: LeaseId,
    /// Location, length and checksum of the value.
    pub value: Value,
}

impl<'k> From<Version<'k>> for LoadedVersion<'k> {
    fn from(version: Version<'k>) -> Self {
        LoadedVersion {
            key: version.key(),
            main: version.main(),
            sub: version.sub(),
            create_revision: version.create_revision(),
            version: version.version(),
            lease: version.lease(),
            value: version.value(),
        }
    }
}
