//! Reports of one HTML file, and the look and the charts that they share with the web console.
//!
//! What it is: [`Page`] puts a report together from parts: texts, facts, tables, bars, charts, findings. Every part takes plain texts and
//! escapes them itself, so nothing that a server, a key or an error says can be markup. A chart is its table; a script draws it from the
//! table's cells, with the modules that also draw the console's charts ([`SHARED`]). Without scripts the table is there, open.
//!
//! What it does not know: what is reported, who serves the pages, files.
//!
//! Invariants: a page asks for nothing (its content security policy allows its own style and script by hash, and nothing else); every
//! chart has a table with the same figures; each value has its unit.
//!
//! Tests: beside the code; in a browser `interop/console/reports.py`.

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

/// Files that the console serves beside its own: names and contents.
pub const SHARED: &[(&str, &str)] = &[
    ("theme.css", THEME),
    ("parts.css", PARTS),
    ("dom.mjs", script::DOM),
    ("frame.mjs", script::FRAME),
    ("plot.mjs", script::PLOT),
];

const THEME: &str = include_str!("../assets/theme.css");
const PARTS: &str = include_str!("../assets/parts.css");
