//! Buckets of S3, Google Cloud Storage and Azure, and of what speaks their protocols, as stores.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3Builder, Checksum};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path;
use object_store::{ClientOptions, Error, ObjectStore, PutMode, PutOptions, RetryConfig};
use tokio::runtime::Runtime;

use crate::credentials::SharedFile;
use crate::store::{Creation, Listing, Store};
use crate::trouble::{Fault, Trouble};

/// Time limit of one request. An object has at most some tens of MiB.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(25);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Attempts that the client makes itself for a request that failed soon, such as with status 503. No other one begins
/// after the second number, so that a request, and with it the end of the process, takes no longer than
/// [`REQUEST_TIMEOUT`].
const RETRIES_MAX: usize = 3;
const RETRY_TIMEOUT: Duration = Duration::from_secs(10);

/// A bucket, and the prefix of the names in it.
pub struct CloudStore {
    bucket: Arc<dyn ObjectStore>,
    prefix: String,
    url: String,
    runtime: Runtime,
}

impl CloudStore {
    /// Opens the bucket that a URL names, with the credentials of the usual variables and files.
    ///
    /// # Errors
    ///
    /// Returns an error if the URL or the settings in the environment cannot be used.
    pub fn open(url: &str) -> Result<CloudStore, Trouble> {
        let refused = |error: &dyn std::fmt::Display| {
            Trouble::new(Fault::Refused, format!("cannot use {url}: {error}"))
        };
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(refused(&"it names no bucket"));
        }
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| refused(&e))?;
        let options = ClientOptions::new()
            .with_timeout(REQUEST_TIMEOUT)
            .with_connect_timeout(CONNECT_TIMEOUT)
            .with_allow_http(true);
        let retry =
            RetryConfig { max_retries: RETRIES_MAX, retry_timeout: RETRY_TIMEOUT, ..RetryConfig::default() };
        let opened: Result<Arc<dyn ObjectStore>, Error> = match scheme {
            "s3" => {
                let mut builder = AmazonS3Builder::from_env()
                    .with_bucket_name(bucket)
                    .with_client_options(options)
                    .with_retry(retry)
                    // A bucket with object lock takes no object without one.
                    .with_checksum_algorithm(Checksum::SHA256);
                if let Some(keys) = SharedFile::of_environment().and_then(|file| file.read().transpose()) {
                    let keys = keys.map_err(|error| Trouble::new(Fault::Denied, error))?;
                    builder = builder
                        .with_access_key_id(keys.access_key_id)
                        .with_secret_access_key(keys.secret_access_key);
                    if let Some(token) = keys.session_token {
                        builder = builder.with_token(token);
                    }
                }
                builder.build().map(|store| Arc::new(store) as _)
            }
            "gs" => GoogleCloudStorageBuilder::from_env()
                .with_bucket_name(bucket)
                .with_client_options(options)
                .with_retry(retry)
                .build()
                .map(|store| Arc::new(store) as _),
            _ => MicrosoftAzureBuilder::from_env()
                .with_container_name(bucket)
                .with_client_options(options)
                .with_retry(retry)
                .build()
                .map(|store| Arc::new(store) as _),
        };
        let bucket = opened.map_err(|error| refused(&error))?;
        Ok(CloudStore {
            bucket,
            prefix: prefix.trim_matches('/').to_owned(),
            url: url.trim_end_matches('/').to_owned(),
            runtime,
        })
    }

    fn path(&self, name: &str) -> Path {
        match (self.prefix.is_empty(), name.is_empty()) {
            (true, _) => Path::from(name),
            (false, true) => Path::from(self.prefix.as_str()),
            (false, false) => Path::from(format!("{}/{name}", self.prefix)),
        }
    }

    fn failed(&self, doing: &str, name: &str, error: &Error) -> Trouble {
        let text = error.to_string();
        let (fault, advice) = advice(error, &text);
        let place = if name.is_empty() { self.url.clone() } else { format!("{}/{name}", self.url) };
        Trouble::new(fault, format!("cannot {doing} {place}: {advice}{}", summary(&text)))
    }
}

/// Returns the part of an error that is the same at each attempt: the code and the message of the store's answer, or
/// the text without the time that the request took.
fn summary(text: &str) -> String {
    let between = |from: &str, to: &str| text.split_once(from)?.1.split_once(to).map(|(found, _)| found);
    if let (Some(code), Some(message)) = (between("<Code>", "</Code>"), between("<Message>", "</Message>")) {
        return format!("{code}: {message}");
    }
    let words: Vec<&str> = text.split_whitespace().collect();
    let is_time = |at: usize| {
        at > 0
            && words.get(at - 1) == Some(&"in")
            && words.get(at).is_some_and(|word| {
                word.starts_with(|c: char| c.is_ascii_digit()) && word.trim_end_matches(',').ends_with('s')
            })
    };
    let kept = words.iter().enumerate().filter(|(at, _)| !is_time(*at) && !is_time(at + 1));
    kept.map(|(_, word)| *word).collect::<Vec<_>>().join(" ").chars().take(400).collect()
}

/// Returns the kind of an error of a bucket, and what to do.
fn advice(error: &Error, text: &str) -> (Fault, &'static str) {
    if text.contains("RequestTimeTooSkewed") || text.contains("Request has expired") {
        return (
            Fault::ClockSkew,
            "the clock of this machine differs too much from that of the store: set it (NTP), the backup then goes on by \
             itself: ",
        );
    }
    if text.contains("NoSuchBucket")
        || text.contains("InvalidBucketName")
        || text.contains("ContainerNotFound")
    {
        return (
            Fault::NoPlace,
            "the bucket does not exist: create it, or correct the URL; the backup then goes on by itself: ",
        );
    }
    match error {
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => (
            Fault::Denied,
            "the store refuses the credentials: correct them or the rights of their owner; they are read again before \
             each attempt: ",
        ),
        _ if text.contains("InvalidAccessKeyId")
            || text.contains("SignatureDoesNotMatch")
            || text.contains("ExpiredToken") =>
        {
            (
                Fault::Denied,
                "the store refuses the credentials: correct them; they are read again before each attempt: ",
            )
        }
        Error::NotImplemented | Error::NotSupported { .. } => {
            (Fault::Refused, "the store cannot create objects on a condition, which a backup needs: ")
        }
        _ => (Fault::Passing, ""),
    }
}

impl Store for CloudStore {
    fn create(&self, name: &str, data: Bytes) -> Result<Creation, Trouble> {
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        let path = self.path(name);
        match self.runtime.block_on(self.bucket.put_opts(&path, data.into(), options)) {
            Ok(_) => Ok(Creation::Created),
            Err(Error::AlreadyExists { .. }) => Ok(Creation::Existed),
            Err(error) => Err(self.failed("write", name, &error)),
        }
    }

    fn read(&self, name: &str) -> Result<Option<Bytes>, Trouble> {
        let path = self.path(name);
        let got = self.runtime.block_on(async { self.bucket.get(&path).await?.bytes().await });
        match got {
            Ok(data) => Ok(Some(data)),
            Err(error) => self.none_or("read", name, &error),
        }
    }

    fn size(&self, name: &str) -> Result<Option<u64>, Trouble> {
        match self.runtime.block_on(self.bucket.head(&self.path(name))) {
            Ok(found) => Ok(Some(found.size)),
            Err(error) => self.none_or("look for", name, &error),
        }
    }

    fn list(&self, directory: &str) -> Result<Listing, Trouble> {
        let path = self.path(directory);
        let at = (!path.as_ref().is_empty()).then_some(&path);
        let found = self
            .runtime
            .block_on(self.bucket.list_with_delimiter(at))
            .map_err(|error| self.failed("list", directory, &error))?;
        let last = |path: &Path| path.filename().unwrap_or_default().to_owned();
        let mut listing = Listing {
            directories: found.common_prefixes.iter().map(last).collect(),
            objects: found.objects.iter().map(|object| last(&object.location)).collect(),
        };
        listing.directories.sort_unstable();
        listing.objects.sort_unstable();
        Ok(listing)
    }

    fn remove(&self, name: &str) -> Result<(), Trouble> {
        match self.runtime.block_on(self.bucket.delete(&self.path(name))) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(self.failed("delete", name, &error)),
        }
    }

    fn url(&self) -> &str {
        &self.url
    }
}

impl CloudStore {
    /// Returns nothing if the error says that the object does not exist, and its bucket does.
    fn none_or<T>(&self, doing: &str, name: &str, error: &Error) -> Result<Option<T>, Trouble> {
        let trouble = self.failed(doing, name, error);
        match error {
            Error::NotFound { .. } if trouble.fault != Fault::NoPlace => Ok(None),
            _ => Err(trouble),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_error_has_the_same_text_at_each_attempt() {
        let answer = "in 1.5ms - 400: <Error><Code>C</Code><Message>No.</Message><RequestId>18ED</RequestId>";
        assert_eq!(summary(answer), "C: No.");
        let (one, other) =
            ("GET http://a/b in 1.5ms - no answer in time", "GET http://a/b in 203ms - no answer in time");
        assert_eq!(summary(one), summary(other));
        assert_eq!(summary(one), "GET http://a/b - no answer in time");
    }

    #[test]
    fn errors_of_a_bucket_say_what_to_do() {
        let generic = |text: &str| Error::Generic { store: "S3", source: text.into() };
        let denied = Error::PermissionDenied { path: "p".to_owned(), source: "no".into() };
        for (error, fault) in [
            (generic("<Code>RequestTimeTooSkewed</Code>"), Fault::ClockSkew),
            (generic("<Code>NoSuchBucket</Code>"), Fault::NoPlace),
            (generic("<Code>InvalidAccessKeyId</Code>"), Fault::Denied),
            (denied, Fault::Denied),
            (generic("503 Slow Down"), Fault::Passing),
            (Error::NotImplemented, Fault::Refused),
        ] {
            assert_eq!(advice(&error, &error.to_string()).0, fault, "{error}");
        }
    }
}
