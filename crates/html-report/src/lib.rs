//! Builds reports as single HTML files. Their stylesheet and charts are the same as those of the web console.
//!
//! Structure: [`Page`] builds a report from parts: texts, facts, tables, bars, charts, findings. Every part
//! takes plain texts and escapes them itself, so no text of a server, a key or an error can become markup. A
//! chart is written as a table. A script draws the chart from the cells of the table, with the same modules
//! that draw the console's charts ([`SHARED`]). If scripts are disabled, the table itself is visible.
//!
//! The crate does not know what a report is about or who serves the pages, and it reads no files.
//!
//! Invariants: a page loads nothing (its content security policy allows only its own style and script, by
//! hash); every chart has a table with the same values; each value has its unit.
//!
//! Start reading with [`Page`] and `assets/plot.mjs`, which draws all charts. Tests: beside the code;
//! `interop/console/reports.py` tests in a browser.

#![forbid(unsafe_code)]

mod bars;
mod chart;
mod page;
mod script;
mod table;
mod text;

pub use bars::{Bar, Bars, Fill};
pub use chart::{Axis, Chart, Lanes, Line, Lines, Scale, Span, Tone};
pub use page::{Found, Level, Page};
pub use table::{Cell, Column, Group, Row, Table};
pub use text::short;

/// Names and contents of files that the console serves together with its own.
pub const SHARED: &[(&str, &str)] = &[
    ("theme.css", THEME),
    ("parts.css", PARTS),
    ("dom.mjs", script::DOM),
    ("frame.mjs", script::FRAME),
    ("plot.mjs", script::PLOT),
];

const THEME: &str = include_str!("../assets/theme.css");
const PARTS: &str = include_str!("../assets/parts.css");
