//! Colours of the charts, each with one meaning.

use plotters::style::RGBColor;

/// A colour of the page. The drawing contains a placeholder colour, which is replaced by the page's variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ink {
    /// Text.
    Text,
    /// Grid and axes.
    Grid,
    /// Our own file system.
    Ours,
    /// Another one.
    Rival,
    /// A published figure.
    Published,
    /// A cause of device time, by its number.
    Cause(u8),
    /// A curve of another file system, by the number of its row.
    Line(u8),
}

impl Ink {
    /// All colours.
    pub const ALL: [Ink; 20] = [
        Ink::Text,
        Ink::Grid,
        Ink::Ours,
        Ink::Rival,
        Ink::Published,
        Ink::Cause(0),
        Ink::Cause(1),
        Ink::Cause(2),
        Ink::Cause(3),
        Ink::Cause(4),
        Ink::Cause(5),
        Ink::Cause(6),
        Ink::Cause(7),
        Ink::Line(0),
        Ink::Line(1),
        Ink::Line(2),
        Ink::Line(3),
        Ink::Line(4),
        Ink::Line(5),
        Ink::Line(6),
    ];

    fn number(self) -> u8 {
        match self {
            Ink::Text => 1,
            Ink::Grid => 2,
            Ink::Ours => 3,
            Ink::Rival => 4,
            Ink::Published => 5,
            Ink::Cause(n) => 16 + n,
            Ink::Line(n) => 32 + n,
        }
    }

    /// Returns the placeholder.
    pub fn rgb(self) -> RGBColor {
        RGBColor(self.number(), 171, 205)
    }

    /// Returns the name of the page's variable.
    fn name(self) -> String {
        match self {
            Ink::Text => "--ink".into(),
            Ink::Grid => "--grid".into(),
            Ink::Ours => "--ours".into(),
            Ink::Rival => "--rival".into(),
            Ink::Published => "--published".into(),
            Ink::Cause(n) => format!("--cause-{n}"),
            Ink::Line(n) => format!("--line-{n}"),
        }
    }

    /// Returns the reference to the page's variable.
    pub fn variable(self) -> String {
        format!("var({})", self.name())
    }

    /// Returns the colour on light paper, which a downloaded chart has.
    fn light(self) -> &'static str {
        match self {
            Ink::Text | Ink::Published => "#1b1f24",
            Ink::Grid => "#d5dae0",
            Ink::Ours => "#b4450f",
            Ink::Rival => "#5b7fa6",
            Ink::Cause(n) => {
                ["#8d99a6", "#c9b458", "#6fb0b8", "#4f8f5b", "#a03050", "#8a5fa8", "#d48ab0", "#5a5a5a"]
                    [usize::from(n)]
            }
            Ink::Line(n) => {
                ["#2f6fb3", "#2e8b57", "#7a4fb0", "#b58900", "#008b94", "#9c3f6f", "#66707a"][usize::from(n)]
            }
        }
    }
}

/// Returns the address of a chart as a file of its own, with the colours of light paper.
pub fn download(svg: &str) -> String {
    let mut file = svg.replacen("<svg ", "<svg style=\"background:#fff\" ", 1);
    for ink in Ink::ALL {
        file = file.replace(&ink.variable(), ink.light());
    }
    format!("data:image/svg+xml;charset=utf-8,{}", encoded(&file))
}

/// Encodes text for an address.
pub fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'%' | b'#' | b'?' | b'"' | b'<' | b'>' | b'&' | b' ' | 0..0x20 | 0x7f.. => format!("%{byte:02X}"),
        _ => char::from(byte).to_string(),
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_downloaded_chart_needs_no_page() {
        let file = download("<svg fill=\"var(--cause-0)\"></svg>");
        assert!(file.starts_with("data:image/svg+xml;charset=utf-8,%3Csvg"), "{file}");
        assert!(!file.contains("var(") && file.contains("%238d99a6"), "{file}");
        assert_eq!(encoded("a b/ä#"), "a%20b/%C3%A4%23");
    }

    #[test]
    fn the_page_has_the_colours_of_downloaded_charts() {
        let page = include_str!("page.html");
        let light = &page[..page.find("@media").unwrap()];
        for ink in Ink::ALL {
            let wanted = format!("{}: {};", ink.name(), ink.light());
            assert!(light.contains(&wanted), "{wanted}");
        }
        let all: std::collections::BTreeSet<_> = Ink::ALL.iter().map(|ink| ink.light()).collect();
        assert_eq!(all.len(), Ink::ALL.len() - 1, "a colour means one thing; published figures are in ink");
    }
}
