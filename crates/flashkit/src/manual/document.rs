//! A man page from a Markdown document.

use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use super::{reference, title};

/// Makes the page of a document. Its title becomes the NAME line, its headings the sections.
pub fn page(name: &str, markdown: &str, section: &str, date: &str) -> Vec<u8> {
    let mut page =
        Page { roff: Roff::new(), name, line: Vec::new(), style: Style::Roman, is_code: false, cell: 0 };
    title(&mut page.roff, name, section, date);
    Parser::new_ext(markdown, Options::ENABLE_TABLES).for_each(|event| page.take(event));
    page.roff.control("SH", ["SEE ALSO"]).text(reference("flashkit", "1"));
    page.roff.render().into_bytes()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Roman,
    Bold,
    Italic,
}

struct Page<'a> {
    roff: Roff,
    name: &'a str,
    /// Text of the current paragraph, heading or cell.
    line: Vec<Inline>,
    style: Style,
    is_code: bool,
    /// Index of the cell in the current table row.
    cell: usize,
}

impl Page<'_> {
    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(&tag),
            Event::End(tag) => self.end(tag),
            Event::Code(code) => self.line.push(bold(code.into_string())),
            Event::Text(text) if self.is_code => {
                text.lines().for_each(|line| {
                    self.roff.text([roman(line)]);
                });
            }
            Event::Text(text) => {
                let text = text.into_string();
                self.line.push(match self.style {
                    Style::Roman => roman(text),
                    Style::Bold => bold(text),
                    Style::Italic => italic(text),
                });
            }
            Event::SoftBreak | Event::HardBreak => self.line.push(roman(" ")),
            _ => {}
        }
    }

    fn start(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::Paragraph => self.begin("PP", &[]),
            Tag::Strong => self.style = Style::Bold,
            Tag::Emphasis => self.style = Style::Italic,
            Tag::CodeBlock(_) => {
                self.is_code = true;
                self.roff.control("PP", []).control("RS", ["4"]).control("EX", []);
            }
            Tag::Item => self.begin("IP", &["\\(bu", "2"]),
            Tag::TableHead => self.cell = 1,
            Tag::TableRow => self.cell = 0,
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::Item => self.flush(),
            TagEnd::Strong | TagEnd::Emphasis => self.style = Style::Roman,
            TagEnd::CodeBlock => {
                self.is_code = false;
                self.roff.control("EE", []).control("RE", []);
            }
            TagEnd::Heading(HeadingLevel::H1) => {
                self.line.insert(0, roman(format!("{} - ", self.name)));
                self.roff.control("SH", ["NAME"]);
                self.flush();
                self.roff.control("SH", ["DESCRIPTION"]);
            }
            TagEnd::Heading(_) => {
                self.roff.control("SH", []);
                self.flush();
            }
            // Pages have no table heads: the first cell of a row is a term, and the others explain it.
            TagEnd::TableHead => self.line.clear(),
            TagEnd::TableCell => {
                if self.cell == 0 && !self.line.is_empty() {
                    self.cell = 1;
                    self.roff.control("TP", []);
                    self.flush();
                } else {
                    self.line.push(roman(" "));
                }
            }
            TagEnd::TableRow => self.flush(),
            _ => {}
        }
    }

    fn begin(&mut self, request: &str, arguments: &[&str]) {
        self.roff.control(request, arguments.iter().copied());
    }

    fn flush(&mut self) {
        if !self.line.is_empty() {
            self.roff.text(std::mem::take(&mut self.line));
        }
    }
}
