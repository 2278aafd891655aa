//! docs later
mod evidence;
mod exposition;
mod finding;
mod findings;
#[cfg(test)]
mod fixture;
mod histogram;
mod limits;
mod page;
mod rule;
mod show;
