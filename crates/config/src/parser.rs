//! Converts arguments and environment to a configuration.

use std::mem::take;

use super::refusal::Refusal;
use super::settings::{Asked, Settings};
use super::{Invocation, Parsed, config_file, table, validation};
use cli::go::quote;

/// Parses the arguments after the program's name, and the environment.
pub fn parse(args: &[String], env: &[(String, String)]) -> Result<Invocation, Refusal> {
    if let Some(command @ ("gateway" | "grpc-proxy")) = args.first().map(String::as_str) {
        let text = format!("the command {} is not supported by this version of Mainstay", quote(command));
        return Err(Refusal::invalid(text));
    }
    let mut settings = Settings::new();
    match interpret(&mut settings, args, env) {
        // Put the earlier warnings before the refusal, since one of them, for example about a misspelled
        // variable, may explain the refusal.
        Err(Refusal::Invalid(entries)) => {
            settings.warnings.extend(entries);
            Err(Refusal::Invalid(settings.warnings))
        }
        other => other,
    }
}

fn interpret(
    settings: &mut Settings,
    args: &[String],
    env: &[(String, String)],
) -> Result<Invocation, Refusal> {
    if settings.read_arguments(args)? == Asked::Help {
        return Ok(Invocation::Help);
    }
    if settings.get(table::VERSION) {
        return Ok(Invocation::Version);
    }
    match config_file_of(settings, env) {
        Some(path) => {
            settings.give_way(env);
            config_file::read(settings, &path)?;
        }
        None => settings.read_environment(env)?,
    }
    settings.refuse_unsupported()?;
    let gates = settings.resolve_gates()?;
    settings.note_statuses();
    let config = validation::build(settings, gates)?;
    let (warnings, notices) = (take(&mut settings.warnings), take(&mut settings.notices));
    Ok(Invocation::Serve(Box::new(Parsed { config, warnings, notices })))
}

/// Returns the path of the configuration file, from the flag or else from the environment. The file replaces
/// all other flags and variables.
fn config_file_of(settings: &Settings, env: &[(String, String)]) -> Option<String> {
    let file = table::CONFIG_FILE;
    let variable = file.row().env();
    let named = || env.iter().find(|(name, _)| *name == variable).map(|(_, path)| path.as_str());
    settings.non_empty(file).or_else(named).filter(|path| !path.is_empty()).map(str::to_owned)
}
