//! Tests of the backup with a model of a node, and stores that fail.

mod chain;
mod commands;
mod damage;
mod faults;
mod model;
mod moments;
mod pairs;
mod store;
