//! Writes tables of bars, which compare one metric of several items.

use std::fmt::Write as _;

use crate::text::escape;

/// A table of bars: the values of one metric for several items, each with a bar.
#[derive(Clone, Debug, Default)]
pub struct Bars {
    /// Name of the metric, with the unit.
    pub title: String,
    /// Text that says whether high or low values are good.
    pub note: String,
    /// Heading of the column with the additional texts.
    pub beside: String,
    /// The bars.
    pub rows: Vec<Bar>,
}

/// One bar of the table.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Name of the item.
    pub name: String,
    /// Remark about the item; may be empty.
    pub mark: String,
    /// Meaning of the bar, which determines its color.
    pub fill: Fill,
    /// Length of the bar as a fraction of the full width. A bar longer than 1 is cut off, with a visible
    /// mark.
    pub share: f64,
    /// The value with its unit, as text.
    pub value: String,
    /// Additional text beside the value; may be empty.
    pub beside: String,
}

/// Meaning of a bar, which determines its color.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// An item. Contains the number of its color, which the item's lines in charts have too.
    Colour(usize),
    /// A limit rather than an item; the bar is gray.
    Limit,
}

impl Bars {
    pub(crate) fn write(&self, out: &mut String) {
        let [title, note, beside] = [&self.title, &self.note, &self.beside].map(|text| escape(text));
        let _ = writeln!(
            out,
            "<figure class=\"chart\"><figcaption><b>{title}</b><p class=\"note\">{note}</p></figcaption><table class=\"bars\">\
             <caption class=\"unseen\">{title}</caption><colgroup><col><col class=\"track\"><col class=\"number\">\
             <col class=\"number\"></colgroup><thead class=\"unseen\"><tr><th scope=\"col\">Of</th><td></td>\
             <th scope=\"col\">{title}</th><th scope=\"col\">{beside}</th></tr></thead><tbody>"
        );
        for row in &self.rows {
            let [name, mark, value, beside] =
                [&row.name, &row.mark, &row.value, &row.beside].map(|text| escape(text));
            let mark = if mark.is_empty() { mark } else { format!(" <small>{mark}</small>") };
            let kind = match row.fill {
                Fill::Colour(number) => format!("bar colour-{}", number % crate::chart::COLOURS),
                Fill::Limit => "bar limit".to_owned(),
            };
            let percent = if row.share.is_finite() { (row.share * 100.0).clamp(0.0, 100.0) } else { 0.0 };
            let cut = match row.share > 1.0 {
                true => "<line class=\"cut\" x1=\"96%\" x2=\"96%\" y1=\"0\" y2=\"100%\"/>",
                false => "",
            };
            let _ = writeln!(
                out,
                "<tr><th scope=\"row\">{name}{mark}</th><td aria-hidden=\"true\"><svg class=\"fill\">\
                 <rect class=\"whole\" width=\"100%\" height=\"100%\"/><rect class=\"{kind}\" width=\"{percent:.1}%\" \
                 height=\"100%\"/>{cut}</svg></td><td class=\"number\">{value}</td><td class=\"number\">{beside}</td></tr>"
            );
        }
        *out += "</tbody></table></figure>\n";
    }
}
