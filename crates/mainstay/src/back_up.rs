//! `mainstay backup`: runs the node whose log is shipped, or a command that works with a backup.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};

use backup::command::{self, Follows, take_arguments};
use backup::live::LiveSource;
use backup::shipping::{Settings, Shipping};
use server::boot::Running;
use shadow::Companion;
use telemetry::logging::Logger;

use crate::member::{self, Purpose};

/// Runs a command of `mainstay backup`.
pub fn run(arguments: &[OsString]) -> ExitCode {
    let Some((verb, rest)) = arguments.split_first().filter(|(verb, _)| *verb == "run") else {
        return command::run(arguments);
    };
    let mut words = Vec::new();
    for word in rest {
        match word.to_str() {
            Some(word) => words.push(word.to_owned()),
            None => {
                eprintln!("{}: arguments must be UTF-8", word.to_string_lossy());
                return ExitCode::from(2);
            }
        }
    }
    let arguments = match take_arguments(&words) {
        Ok(Some(arguments)) => arguments,
        Ok(None) => return command::run(&[verb.clone(), OsString::from("--help")]),
        Err(failure) => {
            eprintln!("Error: {failure}\n{}", command::PROGRAM.usage(&["run"]));
            return ExitCode::from(2);
        }
    };
    let mut others: Vec<OsString> = arguments.others.iter().map(OsString::from).collect();
    match arguments.follows {
        Follows::Log => {
            if !arguments
                .others
                .iter()
                .any(|word| word.trim_start_matches('-').split('=').next() == Some("name"))
            {
                others.push(OsString::from("--name=backup"));
            }
            member::run_with(&others, Purpose::BackUp, Some(&arguments.settings))
        }
        Follows::Api => {
            let companion = BackedUp { settings: arguments.settings, shipping: Mutex::default() };
            crate::run_shadow_with(&others, Arc::new(companion))
        }
    }
}

/// Ships the log of a shadow's copy.
struct BackedUp {
    settings: Settings,
    shipping: Mutex<Option<Shipping>>,
}

impl BackedUp {
    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Shipping>> {
        self.shipping.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Companion for BackedUp {
    fn begin(
        &self,
        copy: &Running,
        cluster_id: u64,
        data_dir: &Path,
        logger: &Arc<Logger>,
    ) -> Result<(), String> {
        let copy_id = backup::own_id(&data_dir.join("backup-copy"))
            .map_err(|error| format!("cannot use {}: {error}", data_dir.display()))?;
        let metrics = &copy.shared().diagnostics.metrics;
        metrics.export_backup();
        let source = LiveSource::copy(copy.shared(), copy.entries(), cluster_id, &copy_id);
        let started =
            Shipping::start(Arc::new(source), &self.settings, metrics.backup.clone(), Arc::clone(logger));
        *self.lock() = Some(started.map_err(|trouble| format!("cannot start the backup: {trouble}"))?);
        Ok(())
    }

    fn end(&self) {
        // Dropping it waits until what was read last is shipped.
        if self.has_failed() {
            return;
        }
        drop(self.lock().take());
    }

    fn has_failed(&self) -> bool {
        self.lock().as_ref().is_some_and(|shipping| shipping.failure().is_some())
    }
}
