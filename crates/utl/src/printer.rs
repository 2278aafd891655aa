//! What `snapshot status` and `hashkv` print, in each format.

use std::fmt::Write as _;

use cli::Failure;

/// An output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Cells with commas between them.
    Simple,
    /// A line for each.
    Fields,
    /// One object.
    Json,
    /// A box.
    Table,
    /// Is known, and is nothing that these commands have.
    Protobuf,
}

/// One cell: what it is called in the field, JSON and table formats, and what it is.
pub struct Cell {
    /// In the field format.
    pub field: &'static str,
    /// In JSON.
    pub json: &'static str,
    /// In a table.
    pub column: &'static str,
    /// The cell as a number or text.
    pub exact: serde_json::Value,
    /// The cell in simple format and table.
    pub shown: String,
}

impl Format {
    /// The format of that name.
    ///
    /// # Errors
    ///
    /// When there is none.
    pub fn of(name: &str) -> Result<Format, Failure> {
        match name {
            "simple" => Ok(Format::Simple),
            "fields" => Ok(Format::Fields),
            "json" => Ok(Format::Json),
            "table" => Ok(Format::Table),
            "protobuf" => Ok(Format::Protobuf),
            _ => Err(Failure::bad_feature("unsupported output format")),
        }
    }

    /// The text for these cells.
    ///
    /// # Errors
    ///
    /// When the format has none.
    pub fn print(self, cells: &[Cell]) -> Result<String, Failure> {
        let shown = || cells.iter().map(|cell| cell.shown.clone()).collect::<Vec<_>>();
        match self {
            Format::Simple => Ok(shown().join(", ") + "\n"),
            Format::Fields => Ok(cells.iter().fold(String::new(), |mut text, cell| {
                let plain = match &cell.exact {
                    serde_json::Value::String(text) => text.clone(),
                    number => number.to_string(),
                };
                // Strings take everything.
                let _ = writeln!(text, "\"{}\" : {plain}", cell.field);
                text
            })),
            Format::Json => {
                let fields: Vec<String> = cells
                    .iter()
                    .map(|cell| match &cell.exact {
                        serde_json::Value::String(text) => {
                            format!("\"{}\":{}", cell.json, cli::json::string(text))
                        }
                        number => format!("\"{}\":{number}", cell.json),
                    })
                    .collect();
                Ok(format!("{{{}}}\n", fields.join(",")))
            }
            Format::Table => Ok(boxed(cells)),
            Format::Protobuf => Err(Failure::bad_feature("protobuf not supported as output format")),
        }
    }
}

/// A box with one row.
fn boxed(cells: &[Cell]) -> String {
    let mut table = cli::Table::new(cells.iter().map(|cell| cell.column));
    table.row(cells.iter().map(|cell| cell.shown.clone()).collect());
    table.to_string()
}
