//! Builds reports that are single HTML files, with the stylesheet and the charts of the web console.
//!
//! Structure: [`Page`] builds a report from text, facts, tables, bars, charts and findings. Its methods take
//! plain text and escape it, so no text from a server, a key or an error can become markup. A chart is
//! written as a table. A script then draws the chart from the cells of this table, with the same modules that
//! draw the console's charts ([`SHARED`]). Without scripts, the table is visible instead.
//!
//! The crate does not know what a report is about, nor who serves it, and reads no files.
//!
//! Invariants: a page loads nothing, because its content security policy allows only its own style and
//! script, by their hashes. Each chart has a table with the same values. Each value has its unit.
//!
//! Start reading with [`Page`] and `assets/plot.mjs`, which draws all charts. Tests: beside the code;
//! `interop/console/reports.py` tests reports in a browser.

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

/// Names and contents of the files that the console serves in addition to its own, so that both look the
/// same.
pub const SHARED: &[(&str, &str)] = &[
    ("theme.css", THEME),
    ("parts.css", PARTS),
    ("dom.mjs", script::DOM),
    ("frame.mjs", script::FRAME),
    ("plot.mjs", script::PLOT),
];

const THEME: &str = include_str!("../assets/theme.css");
const PARTS: &str = include_str!("../assets/parts.css");
