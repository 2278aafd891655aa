//! Tables whose cells hold bars.

use std::fmt::Write as _;

use crate::text::escape;

/// A table of bars: a figure of several things.
#[derive(Clone, Debug, Default)]
pub struct Bars {
    /// What the figure is, with the unit.
    pub title: String,
    /// Which figures are good.
    pub note: String,
    /// What stands behind each figure.
    pub beside: String,
    /// The bars.
    pub rows: Vec<Bar>,
}

/// One of them.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Whose figure it is.
    pub name: String,
    /// A remark on that one; may be empty.
    pub mark: String,
    /// Colour of the bar, by what it stands for.
    pub fill: Fill,
    /// Length of the bar, 1 for the whole width. A longer one is cut, which is seen.
    pub share: f64,
    /// The figure.
    pub value: String,
    /// What stands behind it; may be empty.
    pub beside: String,
}

/// How a bar is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// In the colour of that number, which a line of the same thing has too.
    Colour(usize),
    /// In grey: it is nobody's figure but a limit.
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
