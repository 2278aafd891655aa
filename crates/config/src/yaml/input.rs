//! Input of the YAML parser that allows a tab between a key's colon and its value, as YAML 1.1 does.

use saphyr_parser::input::SkipTabs;
use saphyr_parser::{Input, StrInput};

/// A text in which a tab, like a space, may separate a colon from the value after it. The parser requires a
/// space there, but etcd's reader does not. This input therefore always reports that skipped white space
/// contained a space. This changes nothing else, because the parser uses the report nowhere else.
pub(super) struct TabTolerant<'a>(StrInput<'a>);

impl<'a> TabTolerant<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self(StrInput::new(text))
    }
}

impl Input for TabTolerant<'_> {
    fn lookahead(&mut self, count: usize) {
        self.0.lookahead(count);
    }

    fn buflen(&self) -> usize {
        self.0.buflen()
    }

    fn bufmaxlen(&self) -> usize {
        self.0.bufmaxlen()
    }

    fn raw_read_ch(&mut self) -> char {
        self.0.raw_read_ch()
    }

    fn raw_read_non_breakz_ch(&mut self) -> Option<char> {
        self.0.raw_read_non_breakz_ch()
    }

    fn skip(&mut self) {
        self.0.skip();
    }

    fn skip_n(&mut self, count: usize) {
        self.0.skip_n(count);
    }

    fn peek(&self) -> char {
        self.0.peek()
    }

    fn peek_nth(&self, n: usize) -> char {
        self.0.peek_nth(n)
    }

    fn peek_opt(&self) -> Option<char> {
        self.0.peek_opt()
    }

    fn skip_ws_to_eol(&mut self, skip_tabs: SkipTabs) -> (usize, Result<SkipTabs, &'static str>) {
        let (skipped, found) = self.0.skip_ws_to_eol(skip_tabs);
        (skipped, found.map(|found| SkipTabs::Result(found.found_tabs(), true)))
    }
}
