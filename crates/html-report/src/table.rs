//! Tables.

use std::fmt::Write as _;

use crate::text::escape;

/// A table.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Caption of the table, which is visible only to screen readers.
    pub caption: String,
    /// The columns.
    pub columns: Vec<Column>,
    /// The rows, in groups.
    pub groups: Vec<Group>,
    /// True if the table has so many columns that it uses small type.
    pub is_dense: bool,
}

/// A column.
#[derive(Clone, Debug, Default)]
pub struct Column {
    /// Name of the column, with the unit.
    pub name: String,
    /// True if the cells are numbers, which are aligned to the right.
    pub is_number: bool,
    /// True if the cells are long texts.
    pub is_wide: bool,
}

/// Rows that belong together under a name.
#[derive(Clone, Debug, Default)]
pub struct Group {
    /// Name of the group; `None` if the table has no groups.
    pub name: Option<String>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A row.
#[derive(Clone, Debug, Default)]
pub struct Row {
    /// A cell for each column. The first cell is the name of the row.
    pub cells: Vec<Cell>,
    /// Time in seconds that the charts mark for this row; `None` for no mark.
    pub mark: Option<f64>,
}

/// Text of a cell.
pub type Cell = String;

impl Column {
    /// Creates a column of short texts.
    pub fn text(name: impl Into<String>) -> Column {
        Column { name: name.into(), ..Column::default() }
    }

    /// Creates a column of numbers.
    pub fn number(name: impl Into<String>) -> Column {
        Column { name: name.into(), is_number: true, ..Column::default() }
    }

    /// Creates a column of long texts.
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
    /// Writes the table. On a phone, each row is displayed as a list of its cells. Browsers then drop the
    /// roles of table elements, so the roles are written explicitly.
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
