//! Writes tables of text and numbers.

use std::fmt::Write as _;

use crate::text::escape;

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Caption of the table. Only screen readers present it.
    pub caption: String,
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows, in groups.
    pub groups: Vec<Group>,
    /// True to use small type, because the table has many columns.
    pub is_dense: bool,
}

/// A column.
#[derive(Clone, Debug, Default)]
pub struct Column {
    /// Name of the column, with the unit of its values.
    pub name: String,
    /// True if the cells are numbers. These are aligned to the right.
    pub is_number: bool,
    /// True if the cells are long texts, for which the column is made wide.
    pub is_wide: bool,
}

/// Rows of a table that belong together.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Name of the group, which is shown above its rows; `None` if the table is not divided into groups.
    pub name: Option<String>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A row.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// A cell for each column. The first cell is the name of the row.
    pub cells: Vec<Cell>,
    /// Time in seconds at which charts have a mark for this row; `None` for no mark.
    pub mark: Option<f64>,
}

/// Text of a cell.
pub type Cell = String;

impl Column {
    /// Creates a column for short texts.
    pub fn text(name: impl Into<String>) -> Column {
        Column { name: name.into(), ..Column::default() }
    }

    /// Creates a column for numbers.
    pub fn number(name: impl Into<String>) -> Column {
        Column { name: name.into(), is_number: true, ..Column::default() }
    }

    /// Creates a column for long texts.
    pub fn wide(name: impl Into<String>) -> Column {
        Column { name: name.into(), is_wide: true, ..Column::default() }
    }

    fn class(&self) -> &'static str {
        match (self.is_number, self.is_wide) {
            (true, _) => " class=\"number\"",
            (false, true) => " class=\"wide\"",
            (false, false) => "",
        }
    }
}

impl Table {
    /// Writes the table. On a narrow screen, each row is shown as a list of its cells. In this layout,
    /// browsers no longer treat the elements as a table, so the roles are written explicitly, for screen
    /// readers.
    pub(crate) fn write(&self, out: &mut String) {
        let caption = escape(&self.caption);
        let dense = if self.is_dense { " class=\"figures\"" } else { "" };
        let _ = write!(
            out,
            "<div class=\"table-area stacks\"><div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\">\
             <table role=\"table\"{dense}><caption class=\"unseen\">{caption}</caption><thead role=\"rowgroup\"><tr role=\"row\">"
        );
        for column in &self.columns {
            let name = escape(&column.name);
            let _ = write!(out, "<th scope=\"col\" role=\"columnheader\"{}>{name}</th>", column.class());
        }
        *out += "</tr></thead>\n";
        for group in &self.groups {
            *out += "<tbody role=\"rowgroup\">";
            if let Some(name) = &group.name {
                let (columns, name) = (self.columns.len(), escape(name));
                let _ = writeln!(
                    out,
                    "<tr role=\"row\"><th scope=\"rowgroup\" role=\"rowheader\" colspan=\"{columns}\">{name}</th></tr>"
                );
            }
            for row in &group.rows {
                let mark = row.mark.map_or_else(String::new, |at| format!(" data-mark=\"{at}\""));
                let _ = write!(out, "<tr role=\"row\"{mark}>");
                for (at, (column, cell)) in self.columns.iter().zip(&row.cells).enumerate() {
                    let (class, cell) = (column.class(), escape(cell));
                    let _ = match at {
                        0 => write!(out, "<th scope=\"row\" role=\"rowheader\"{class}>{cell}</th>"),
                        _ => {
                            let label = escape(&column.name);
                            write!(out, "<td role=\"cell\"{class} data-label=\"{label}\">{cell}</td>")
                        }
                    };
                }
                *out += "</tr>\n";
            }
            *out += "</tbody>\n";
        }
        *out += "</table></div></div>\n";
    }
}
