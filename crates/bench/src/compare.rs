//! stub
use crate::outcome::Document;
use crate::command::Refusal;
pub fn run(_: &cli::Matches, _: &str) -> Result<Document, Refusal> { Err("later".into()) }
pub fn text(_: &Document) -> String { String::new() }
