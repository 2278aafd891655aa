//! Complete outputs, and examinations of a scripted member over real sockets.

mod certificates;
mod commands;
mod fake_member;
mod looking;
mod migrating;
mod output;
mod pages;
