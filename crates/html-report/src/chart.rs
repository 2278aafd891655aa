//! Writes charts. Each chart is written as a table with the same values; a script draws the chart from that
//! table.

use std::fmt::Write as _;

use crate::text::{escape, with_unit};

/// Number of different colors and dash patterns for lines. If a chart has more lines, they repeat. The
/// number must be equal to `LINES_MAX` in plot.mjs.
pub(crate) const COLOURS: usize = 8;
/// Text of a cell for which there is no value.
const NONE: &str = "–";

/// A chart.
#[derive(Clone, Debug)]
pub enum Chart {
    /// Lines over an x axis.
    Lines(Lines),
    /// Periods of time in lanes.
    Lanes(Lanes),
}

/// A chart of lines.
#[derive(Clone, Debug)]
pub struct Lines {
    /// Title of the chart, which says what its values are.
    pub title: String,
    /// Additional text; may be empty.
    pub note: String,
    /// Unit of the values.
    pub unit: &'static str,
    /// Scale of the value axis.
    pub scale: Scale,
    /// Kind of the x axis.
    pub axis: Axis,
    /// True if readers can zoom into a part of the x axis. All charts of the page for which this is true zoom
    /// together.
    pub zooms: bool,
    /// Positions on the x axis, in ascending order.
    pub x: Vec<f64>,
    /// The lines.
    pub lines: Vec<Line>,
}

/// One line of a chart.
#[derive(Clone, Debug)]
pub struct Line {
    /// Name of the line, for the legend and the table.
    pub name: String,
    /// Number of the line's color, as in `Fill::Colour`.
    pub colour: usize,
    /// A value for each position on the x axis; `None` for a position without a value.
    pub values: Vec<Option<f64>>,
}

/// Scale of a value axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// A linear scale that starts at zero.
    Linear,
    /// Logarithmic scale.
    Log,
}

/// Kind of an x axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Seconds since the start.
    Seconds,
    /// Percentages. On this scale, the distances from 90 to 99 and from 99 to 99.9 are equal.
    Percent,
}

/// A chart of periods of time, which are drawn as spans in lanes.
#[derive(Clone, Debug)]
pub struct Lanes {
    /// Title of the chart, which says what the chart shows.
    pub title: String,
    /// Additional text; may be empty.
    pub note: String,
    /// End of the time axis, in seconds.
    pub end: f64,
    /// The spans. Where spans of a lane overlap, later ones are drawn over earlier ones.
    pub spans: Vec<Span>,
}

/// A period of time.
#[derive(Clone, Debug)]
pub struct Span {
    /// Name of the lane in which the span is drawn.
    pub lane: String,
    /// Kind of the span, for the legend. Spans of one kind must have the same word.
    pub kind: &'static str,
    /// Text beside this span; `None` if its kind says enough.
    pub label: Option<String>,
    /// Start of the span in seconds.
    pub from: f64,
    /// End of the span in seconds.
    pub to: f64,
    /// Additional text about the span; may be empty.
    pub detail: String,
    /// Meaning of the span, which determines its color.
    pub tone: Tone,
    /// Other lanes in which the outline of the span is drawn, such as those of the members that a fault
    /// affects. These names must not contain spaces.
    pub also: Vec<String>,
    /// True if the period is shaded in all charts that can be zoomed.
    pub shades: bool,
}

/// Meaning of a span, which determines its color.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// A fault that was injected.
    Fault,
    /// The time from the end of a fault until all members have recovered.
    After,
    /// Everything is healthy.
    Good,
    /// A state that is better than good; drawn over [`Tone::Good`].
    Strong,
    /// A state that is worse than good; drawn over [`Tone::Good`].
    Warning,
    /// A process is stopped for some time.
    Paused,
    /// A process is not running.
    Off,
}

impl Tone {
    fn word(self) -> &'static str {
        match self {
            Tone::Fault => "fault",
            Tone::After => "after",
            Tone::Good => "good",
            Tone::Strong => "strong",
            Tone::Warning => "warning",
            Tone::Paused => "paused",
            Tone::Off => "off",
        }
    }
}

impl Axis {
    fn word(self) -> &'static str {
        match self {
            Axis::Seconds => "seconds",
            Axis::Percent => "percent",
        }
    }

    /// Returns the text of a position on the axis for the table. The script parses it, so its format must not
    /// change.
    fn text(self, place: f64) -> String {
        match self {
            Axis::Seconds => format!("{place}\u{a0}s"),
            Axis::Percent => {
                // Use enough digits to distinguish the position from its neighbors, for example 99.9 from
                // 99.99.
                let nines = -(1.0 - place / 100.0).max(1e-9).log10();
                let digits = nines.max(0.0).floor() as usize + if place.fract() == 0.0 { 0 } else { 1 };
                format!("{place:.digits$}\u{a0}%")
            }
        }
    }
}

impl Chart {
    pub(crate) fn write(&self, out: &mut String) {
        match self {
            Chart::Lines(lines) => lines.write(out),
            Chart::Lanes(lanes) => lanes.write(out),
        }
    }
}

/// Writes the beginning of a chart: everything up to the first cell of the table's header.
fn open(attributes: &str, title: &str, note: &str, out: &mut String) {
    let title = escape(title);
    let note = match note {
        "" => String::new(),
        note => format!("<p class=\"note\">{}</p>", escape(note)),
    };
    let _ = write!(
        out,
        "<figure {attributes}><figcaption><b>{title}</b>{note}</figcaption><details open><summary>Table<span class=\"unseen\">: {title}</span></summary>\
         <div class=\"scroll chart-table\" tabindex=\"0\" role=\"region\" aria-label=\"Table: {title}\"><table>\
         <caption class=\"unseen\">{title}</caption><thead><tr>"
    );
}

const CLOSE: &str = "</tbody></table></div></details></figure>\n";

impl Lines {
    fn write(&self, out: &mut String) {
        let Lines { unit, axis, zooms, .. } = self;
        let scale = if self.scale == Scale::Log { "log" } else { "linear" };
        // Give a chart that can be zoomed the full width of the page, so that the same times are below each
        // other in all such charts.
        let (class, zooms) = if *zooms { ("chart wide-chart", " data-zooms") } else { ("chart", "") };
        let (axis_word, unit_text) = (axis.word(), escape(unit));
        let attributes = format!(
            "class=\"{class}\" data-chart=\"lines\" data-unit=\"{unit_text}\" data-scale=\"{scale}\" data-axis=\"{axis_word}\"{zooms}"
        );
        open(&attributes, &self.title, &self.note, out);
        let head = if *axis == Axis::Seconds { "Second" } else { "Percentile" };
        let _ = write!(out, "<th scope=\"col\">{head}</th>");
        for line in &self.lines {
            let (colour, name) = (line.colour % COLOURS, escape(&line.name));
            let _ = write!(out, "<th scope=\"col\" class=\"number\" data-colour=\"{colour}\">{name}</th>");
        }
        *out += "</tr></thead><tbody>\n";
        for (at, place) in self.x.iter().enumerate() {
            let _ = write!(out, "<tr><th scope=\"row\">{}</th>", axis.text(*place));
            for line in &self.lines {
                let value = line.values.get(at).copied().flatten().filter(|value| value.is_finite());
                let text = value.map_or_else(|| NONE.to_owned(), |value| with_unit(value, &unit_text));
                let _ = write!(out, "<td>{text}</td>");
            }
            *out += "</tr>\n";
        }
        *out += CLOSE;
    }
}

impl Lanes {
    fn write(&self, out: &mut String) {
        let attributes =
            format!("class=\"chart wide-chart\" data-chart=\"lanes\" data-zooms data-end=\"{}\"", self.end);
        open(&attributes, &self.title, &self.note, out);
        *out += "<th scope=\"col\">Where</th><th scope=\"col\">What</th><th scope=\"col\" class=\"number\">From</th>\
                 <th scope=\"col\" class=\"number\">To</th><th scope=\"col\">Detail</th></tr></thead><tbody>\n";
        for span in &self.spans {
            let tone = span.tone.word();
            let kind = span
                .label
                .as_ref()
                .map_or_else(String::new, |_| format!(" data-kind=\"{}\"", escape(span.kind)));
            let also = match span.also.is_empty() {
                true => String::new(),
                false => format!(" data-also=\"{}\"", escape(&span.also.join(" "))),
            };
            let shades = if span.shades { " data-shades" } else { "" };
            let what = escape(span.label.as_deref().unwrap_or(span.kind));
            let (lane, detail) = (escape(&span.lane), escape(&span.detail));
            let _ = writeln!(
                out,
                "<tr data-tone=\"{tone}\"{kind}{also}{shades}><th scope=\"row\">{lane}</th><td class=\"text\">{what}</td>\
                 <td>{}\u{a0}s</td><td>{}\u{a0}s</td><td class=\"text\">{detail}</td></tr>",
                span.from, span.to
            );
        }
        *out += CLOSE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_can_be_told_apart_and_read_back() {
        for step in 0..=100 {
            let percent = 100.0 * (1.0 - 0.5_f64.powf(f64::from(step) / 4.0));
            let text = Axis::Percent.text(percent);
            let read: f64 = text.strip_suffix("\u{a0}%").unwrap().parse().unwrap();
            let (left, left_read) = (1.0 - percent / 100.0, 1.0 - read / 100.0);
            assert!((left / left_read - 1.0).abs() < 0.1, "{percent}: {text}");
        }
        assert_eq!(Axis::Percent.text(50.0), "50\u{a0}%");
    }

    #[test]
    fn the_script_has_as_many_colours() {
        assert!(crate::script::PLOT.contains(&format!("const LINES_MAX = {COLOURS};")));
        let colours = (0..).take_while(|at| crate::PARTS.contains(&format!(".colour-{at} {{"))).count();
        assert_eq!(colours, COLOURS);
    }

    #[test]
    fn a_chart_has_its_table() {
        let mut out = String::new();
        Chart::Lines(Lines {
            title: "Latency".into(),
            note: String::new(),
            unit: "ms",
            scale: Scale::Log,
            axis: Axis::Seconds,
            zooms: true,
            x: vec![0.0, 1.5],
            lines: vec![Line { name: "a<b".into(), colour: 9, values: vec![Some(1.25), Some(f64::NAN)] }],
        })
        .write(&mut out);
        assert!(out.contains(
            "data-chart=\"lines\" data-unit=\"ms\" data-scale=\"log\" data-axis=\"seconds\" data-zooms"
        ));
        assert!(out.contains("<th scope=\"col\" class=\"number\" data-colour=\"1\">a&lt;b</th>"), "{out}");
        assert!(out.contains("<tr><th scope=\"row\">0\u{a0}s</th><td>1.25\u{a0}ms</td></tr>"), "{out}");
        assert!(out.contains("<tr><th scope=\"row\">1.5\u{a0}s</th><td>–</td></tr>"), "{out}");
    }
}
