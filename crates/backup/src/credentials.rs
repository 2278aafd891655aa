//! AWS's file of credentials, which other programs rewrite when credentials are rotated.

use std::path::{Path, PathBuf};

/// A profile in a file of credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedFile {
    path: PathBuf,
    profile: String,
    /// True if the environment names the file. Otherwise it may be missing.
    is_named: bool,
}

/// Keys for signing requests.
#[derive(Clone, PartialEq, Eq)]
pub struct Keys {
    /// Id of the key.
    pub access_key_id: String,
    /// The key.
    pub secret_access_key: String,
    /// Token of temporary credentials.
    pub session_token: Option<String>,
}

impl SharedFile {
    /// Returns the file that is used by default: that of `AWS_SHARED_CREDENTIALS_FILE`, or `~/.aws/credentials`, unless
    /// the environment contains a key. The profile is that of `AWS_PROFILE`, or `default`.
    pub fn of_environment() -> Option<SharedFile> {
        SharedFile::of(&|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn of(variable: &dyn Fn(&str) -> Option<std::ffi::OsString>) -> Option<SharedFile> {
        if variable("AWS_ACCESS_KEY_ID").is_some() {
            return None;
        }
        let named = variable("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from);
        let is_named = named.is_some();
        let path =
            named.or_else(|| variable("HOME").map(|home| Path::new(&home).join(".aws/credentials")))?;
        let profile = variable("AWS_PROFILE").and_then(|profile| profile.into_string().ok());
        Some(SharedFile { path, profile: profile.unwrap_or_else(|| "default".to_owned()), is_named })
    }

    /// Reads the keys; `None` if there is no such file and the environment does not name it.
    ///
    /// # Errors
    ///
    /// Returns a sentence that names the file and what is missing in it.
    pub fn read(&self) -> Result<Option<Keys>, String> {
        let text = match std::fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !self.is_named => return Ok(None),
            Err(error) => {
                return Err(format!("cannot read the credentials in {}: {error}", self.path.display()));
            }
        };
        match keys(&text, &self.profile) {
            Some(keys) => Ok(Some(keys)),
            None if self.is_named => Err(format!(
                "{} has no aws_access_key_id and aws_secret_access_key in the profile [{}]",
                self.path.display(),
                self.profile
            )),
            None => Ok(None),
        }
    }
}

fn keys(text: &str, profile: &str) -> Option<Keys> {
    let (mut is_there, mut id, mut secret, mut token) = (false, None, None, None);
    for line in text.lines().map(str::trim) {
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            is_there = name.trim() == profile;
            continue;
        }
        let Some((name, value)) = line.split_once('=').filter(|_| is_there) else { continue };
        let value = value.trim().to_owned();
        match name.trim() {
            "aws_access_key_id" => id = Some(value),
            "aws_secret_access_key" => secret = Some(value),
            "aws_session_token" => token = Some(value),
            _ => {}
        }
    }
    Some(Keys { access_key_id: id?, secret_access_key: secret?, session_token: token })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_profile_is_read_and_what_is_missing_is_named() {
        let text = "# mine\n[default]\naws_access_key_id = A\naws_secret_access_key=B\n\n[other]\naws_access_key_id=C\n\
                    aws_secret_access_key = D=\naws_session_token=E\nregion = x\n";
        let found = keys(text, "default").expect("is there");
        assert_eq!((&*found.access_key_id, &*found.secret_access_key, found.session_token), ("A", "B", None));
        let found = keys(text, "other").expect("is there");
        assert_eq!((&*found.secret_access_key, found.session_token.as_deref()), ("D=", Some("E")));
        assert!(keys(text, "third").is_none() && keys("[default]\naws_access_key_id=A", "default").is_none());
        let environment = |set: &'static [(&str, &str)]| {
            move |name: &str| set.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).into())
        };
        assert_eq!(SharedFile::of(&environment(&[("AWS_ACCESS_KEY_ID", "x"), ("HOME", "/h")])), None);
        let named = SharedFile::of(&environment(&[("AWS_SHARED_CREDENTIALS_FILE", "/nowhere/file")]));
        let error = named.expect("is named").read().err().unwrap_or_default();
        assert!(error.contains("/nowhere/file"), "{error}");
        let usual = SharedFile::of(&environment(&[("HOME", "/nowhere")])).expect("is the usual one");
        assert!(usual.read().is_ok_and(|keys| keys.is_none()));
    }
}
