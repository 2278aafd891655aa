//! Prints the results of `snapshot status` and `hashkv` in each output format.

use std::fmt::Write as _;

use cli::Failure;

/// An output format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Comma-separated values.
    Simple,
    /// One line per value.
    Fields,
    /// One JSON object.
    Json,
    /// A table in a box.
    Table,
    /// A format of etcdutl that these two commands do not support.
    Protobuf,
}

/// One value, with its names in the field, JSON and table formats.
pub struct Cell {
    /// Name in the field format.
    pub field: &'static str,
    /// Name in JSON.
    pub json: &'static str,
    /// Column heading in a table.
    pub column: &'static str,
    /// The value as a number or text.
    pub exact: serde_json::Value,
    /// The value as shown in the simple format and in a table.
    pub shown: String,
}

impl Format {
    /// Returns the format with this name.
    ///
    /// # Errors
    ///
    /// Returns an error if no format has this name.
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

    /// Returns the values as text in this format.
    ///
    /// # Errors
    ///
    /// Returns an error if the format is not supported by these commands.
    pub fn print(self, cells: &[Cell]) -> Result<String, Failure> {
        let shown = || cells.iter().map(|cell| cell.shown.clone()).collect::<Vec<_>>();
        match self {
            Format::Simple => Ok(shown().join(", ") + "\n"),
            Format::Fields => Ok(cells.iter().fold(String::new(), |mut text, cell| {
                let plain = match &cell.exact {
                    serde_json::Value::String(text) => text.clone(),
                    number => number.to_string(),
                };
                // Ignore the result, because writing to a String cannot fail.
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

/// Returns a table in a box with one row.
fn boxed(cells: &[Cell]) -> String {
    let mut table = cli::Table::new(cells.iter().map(|cell| cell.column));
    table.row(cells.iter().map(|cell| cell.shown.clone()).collect());
    table.to_string()
}
