//! Lets fuzzers load TLS material from bytes instead of files.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

use arc_swap::ArcSwap;
use rustls::time_provider::TimeProvider;

use crate::error::LoadError;
use crate::files::{Contents, Part};
use crate::material::Material;
use crate::settings::Settings;
use crate::tickets::Tickets;
use crate::tls::{Shared, Tls};

/// Contents of the files that the settings name; `None` for a file that they do not name.
#[derive(Clone, Copy, Debug, Default)]
pub struct Files<'a> {
    /// Content of [`Settings::cert_file`].
    pub certificate: Option<&'a [u8]>,
    /// Content of [`Settings::key_file`].
    pub key: Option<&'a [u8]>,
    /// Content of [`Settings::trusted_ca_file`].
    pub authorities: Option<&'a [u8]>,
    /// Content of [`Settings::crl_file`].
    pub revocations: Option<&'a [u8]>,
}

/// Loads the material that [`Tls::load`] would load from files with these contents. Sets names for these
/// files in `settings`. Parts of `previous` whose contents are the same are reused.
///
/// # Errors
/// Returns the errors of [`Tls::load`].
pub fn load(
    mut settings: Settings,
    files: Files<'_>,
    time: Arc<dyn TimeProvider>,
    previous: Option<&Tls>,
) -> Result<Tls, LoadError> {
    let named = |part, name: &str, bytes: Option<&[u8]>| {
        bytes.map(|bytes| (part, PathBuf::from(name), Ok(bytes.to_vec())))
    };
    let all = [
        named(Part::Certificate, "cert", files.certificate),
        named(Part::Key, "key", files.key),
        named(Part::Authorities, "ca", files.authorities),
        named(Part::Revocations, "crl", files.revocations),
    ];
    let path = |part: usize| all[part].as_ref().map(|(_, path, _)| path.clone());
    (settings.cert_file, settings.key_file) = (path(0), path(1));
    (settings.trusted_ca_file, settings.crl_file) = (path(2), path(3));
    let contents = Contents::of(all.into_iter().flatten().collect());
    let tickets = match previous {
        Some(previous) => previous.shared.tickets.clone(),
        None => Tickets::new(UNIX_EPOCH),
    };
    let loaded = previous.map(|previous| previous.shared.current.load());
    let material =
        Material::build(&settings, &contents, &time, &tickets, loaded.as_ref().map(|material| &***material))?;
    let current = ArcSwap::from_pointee(material);
    Ok(Tls { shared: Arc::new(Shared { settings, time, current, tickets, failure: Mutex::default() }) })
}
