//! Builds the page of a report: [`Page`].

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use crate::bars::Bars;
use crate::chart::Chart;
use crate::script::script;
use crate::table::Table;
use crate::text::escape;
use crate::{PARTS, THEME};

/// Styles that are needed by reports only, and not by the console.
const REPORT: &str = include_str!("../assets/report.css");

/// A report that is being built. Each method appends a part to the page.
#[derive(Clone, Debug)]
pub struct Page {
    title: String,
    main: String,
    has_charts: bool,
}

/// Severity of a finding, which determines its color and its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// No problem.
    Good,
    /// A warning: a value is worse than it should be.
    Warning,
    /// An error: an operation fails.
    Error,
}

/// A finding of the report.
#[derive(Clone, Debug)]
pub struct Found {
    /// Severity of the finding.
    pub level: Level,
    /// Description of the finding in one line.
    pub title: String,
    /// Facts with numbers that prove the finding.
    pub facts: Vec<String>,
    /// Consequence of the finding; may be empty.
    pub meaning: String,
    /// Remedies, the best one first.
    pub remedies: Vec<String>,
}

impl Page {
    /// Creates an empty page with this title.
    pub fn new(title: &str) -> Page {
        let title = escape(title);
        Page { main: format!("<h1>{title}</h1>\n"), title, has_charts: false }
    }

    /// Adds a heading.
    pub fn heading(&mut self, text: &str) {
        self.element("h2", text);
    }

    /// Adds a subheading.
    pub fn subheading(&mut self, text: &str) {
        self.element("h3", text);
    }

    /// Adds a paragraph.
    pub fn paragraph(&mut self, text: &str) {
        self.element("p", text);
    }

    /// Adds a paragraph in a muted color.
    pub fn note(&mut self, text: &str) {
        let _ = writeln!(self.main, "<p class=\"note\">{}</p>", escape(text));
    }

    /// Adds a command, or another text that readers may want to copy.
    pub fn command(&mut self, text: &str) {
        self.element("pre", text);
    }

    fn element(&mut self, name: &str, text: &str) {
        let _ = writeln!(self.main, "<{name}>{}</{name}>", escape(text));
    }

    /// Adds a list.
    pub fn list<T: AsRef<str>>(&mut self, items: &[T]) {
        list("listed", items, &mut self.main);
    }

    /// Adds a box with warnings, which readers should see before the results.
    pub fn warning<T: AsRef<str>>(&mut self, title: &str, items: &[T]) {
        let _ = writeln!(self.main, "<div class=\"notice mild\"><h2>{}</h2>", escape(title));
        list("listed", items, &mut self.main);
        self.main += "</div>\n";
    }

    /// Adds a list of names, each with a text.
    pub fn facts(&mut self, facts: &[(String, String)]) {
        self.main += "<dl class=\"pairs\">";
        for (name, value) in facts {
            let _ = writeln!(self.main, "<dt>{}</dt><dd>{}</dd>", escape(name), escape(value));
        }
        self.main += "</dl>\n";
    }

    /// Adds a few numbers with their names, in large type.
    pub fn figures(&mut self, figures: &[(&str, String)]) {
        self.main += "<dl class=\"facts large\">";
        for (name, value) in figures {
            let _ = write!(self.main, "<div><dt>{}</dt><dd>{}</dd></div>", escape(name), escape(value));
        }
        self.main += "</dl>\n";
    }

    /// Adds findings, in the order in which they are given.
    pub fn findings(&mut self, findings: &[Found]) {
        self.main += "<ul class=\"problems\">\n";
        for found in findings {
            let (class, word) = match found.level {
                Level::Good => ("good", "Good"),
                Level::Warning => ("warning", "Warning"),
                Level::Error => ("error", "Error"),
            };
            let title = escape(&found.title);
            let _ = write!(
                self.main,
                "<li><span class=\"state {class}\">{word}</span><div><p class=\"what\">{title}</p>"
            );
            for fact in &found.facts {
                let _ = write!(self.main, "<p class=\"facts-line\">{}</p>", escape(fact));
            }
            if !found.meaning.is_empty() {
                let _ = write!(self.main, "<p>{}</p>", escape(&found.meaning));
            }
            if !found.remedies.is_empty() {
                self.main += "<p class=\"note\">What to do:</p>";
                list("remedies", &found.remedies, &mut self.main);
            }
            self.main += "</div></li>\n";
        }
        self.main += "</ul>\n";
    }

    /// Adds a table.
    pub fn table(&mut self, table: &Table) {
        table.write(&mut self.main);
    }

    /// Adds tables of bars. They are side by side if the page is wide enough.
    pub fn bars(&mut self, bars: &[Bars]) {
        self.main += "<div class=\"charts\">\n";
        for one in bars {
            one.write(&mut self.main);
        }
        self.main += "</div>\n";
    }

    /// Adds charts. They are side by side if the page is wide enough.
    pub fn charts(&mut self, charts: &[Chart]) {
        self.has_charts |= !charts.is_empty();
        self.main += "<div class=\"charts\">\n";
        for one in charts {
            one.write(&mut self.main);
        }
        self.main += "</div>\n";
    }

    /// Returns the page as an HTML file. Its content security policy allows only its own style and script, by
    /// their hashes.
    pub fn html(&self) -> String {
        let style = format!("\n{THEME}{PARTS}{REPORT}");
        let script = if self.has_charts { script() } else { String::new() };
        let hash = |text: &str| format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text.as_bytes())));
        let scripts = if self.has_charts { hash(&script) } else { "'none'".to_owned() };
        let element = match self.has_charts {
            true => format!("<script type=\"module\">{script}</script>\n"),
            false => String::new(),
        };
        format!(
            "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src {}; script-src {scripts}; \
             base-uri 'none'; form-action 'none'\">\n\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{}</title>\n\
             <style>{style}</style>\n</head>\n<body class=\"report\">\n<main>\n{}</main>\n{element}</body>\n</html>\n",
            hash(&style),
            self.title,
            self.main
        )
    }
}

fn list<T: AsRef<str>>(class: &str, items: &[T], out: &mut String) {
    let _ = write!(out, "<ul class=\"{class}\">");
    for item in items {
        let _ = write!(out, "<li>{}</li>", escape(item.as_ref()));
    }
    *out += "</ul>\n";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Axis, Bar, Column, Fill, Group, Lanes, Line, Lines, Row, Scale, Span, Tone};

    const EVIL: &str = "</script></style></table>\" onload='x' <img src=x>&\u{202e}\u{7}";
    const SAFE: &str =
        "&lt;/script&gt;&lt;/style&gt;&lt;/table&gt;&quot; onload='x' &lt;img src=x&gt;&amp;\u{fffd}\u{fffd}";

    fn evil() -> String {
        EVIL.to_owned()
    }

    /// Returns a page with all kinds of parts, in which every text contains markup.
    fn evil_page() -> Page {
        let mut page = Page::new(EVIL);
        page.heading(EVIL);
        page.subheading(EVIL);
        page.paragraph(EVIL);
        page.note(EVIL);
        page.command(EVIL);
        page.list(&[EVIL]);
        page.warning(EVIL, &[EVIL]);
        page.facts(&[(evil(), evil())]);
        page.figures(&[(EVIL, evil())]);
        page.findings(&[Found {
            level: Level::Error,
            title: evil(),
            facts: vec![evil()],
            meaning: evil(),
            remedies: vec![evil()],
        }]);
        page.table(&Table {
            caption: evil(),
            columns: vec![Column::text(EVIL), Column::wide(EVIL)],
            groups: vec![Group {
                name: Some(evil()),
                rows: vec![Row { cells: vec![evil(), evil()], mark: Some(1.0) }],
            }],
            is_dense: true,
        });
        let bar = Bar {
            name: evil(),
            mark: evil(),
            fill: Fill::Colour(1),
            share: f64::NAN,
            value: evil(),
            beside: evil(),
        };
        page.bars(&[Bars { title: evil(), note: evil(), beside: evil(), rows: vec![bar] }]);
        let line = Line { name: evil(), colour: 0, values: vec![Some(1.0)] };
        let span = Span {
            lane: evil(),
            kind: EVIL,
            label: Some(evil()),
            from: 0.0,
            to: 1.0,
            detail: evil(),
            tone: Tone::Fault,
            also: vec![evil()],
            shades: true,
        };
        page.charts(&[
            Chart::Lines(Lines {
                title: evil(),
                note: evil(),
                unit: EVIL,
                scale: Scale::Linear,
                axis: Axis::Seconds,
                zooms: false,
                x: vec![0.0],
                lines: vec![line],
            }),
            Chart::Lanes(Lanes { title: evil(), note: evil(), end: 1.0, spans: vec![span] }),
        ]);
        page
    }

    #[test]
    fn what_others_wrote_is_text_in_every_part() {
        let html = evil_page().html();
        let (_, body) = html.split_once("<body").unwrap();
        let (main, script) = body.split_once("</main>").unwrap();
        assert!(!main.contains("<script") && !main.contains("</script") && !main.contains("<img"), "{main}");
        assert!(!html.contains('\u{202e}') && !html.contains('\u{7}'));
        assert!(main.matches(SAFE).count() > 40, "every text is there: {main}");
        assert_eq!(script.matches("</script").count(), 1);
    }

    #[test]
    fn a_page_asks_for_nothing_and_its_policy_says_so() {
        let mut page = Page::new("x");
        let bare = page.html();
        assert!(bare.contains("script-src 'none'; base-uri 'none'") && !bare.contains("<script"), "{bare}");
        page.charts(&[Chart::Lanes(Lanes {
            title: "x".into(),
            note: String::new(),
            end: 1.0,
            spans: vec![],
        })]);
        let html = page.html();
        let between = |open: &str, close: &str| html.split_once(open).unwrap().1.split_once(close).unwrap().0;
        for (name, text) in [
            ("style-src", between("<style>", "</style>")),
            ("script-src", between("<script type=\"module\">", "</script>")),
        ] {
            let hash = STANDARD.encode(Sha256::digest(text.as_bytes()));
            assert!(html.contains(&format!("{name} 'sha256-{hash}';")), "{name}");
        }
        assert!(html.contains("content=\"default-src 'none'; "));
        for outside in ["http://", "https://", "src=", "@import", "url(", " style=", "<link"] {
            let found = html.replace("http://www.w3.org/2000/svg", "");
            assert!(!found.contains(outside), "it refers to something outside: {outside}");
        }
    }
}
