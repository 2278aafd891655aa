//! Whole outputs, and looking at a scripted member over real sockets.

mod certificates;
mod commands;
mod fake_member;
mod looking;
mod migrating;
mod output;
mod pages;
