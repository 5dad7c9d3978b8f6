//! Charts as SVG, in colours that the page chooses: one drawing is for light and for dark.

use std::error::Error;

use plotters::{
    backend::SVGBackend,
    chart::ChartBuilder,
    drawing::IntoDrawingArea,
    element::{PathElement, Rectangle, Text},
    style::{
        Color, FontStyle, IntoFont, RGBColor, ShapeStyle, TextStyle,
        text_anchor::{HPos, Pos, VPos},
    },
};

/// Width of every chart; the page scales it.
const WIDTH: u32 = 480;
const BAR_HEIGHT: u32 = 24;
const NAME_WIDTH: u32 = 112;

/// Pixels between a bar and what is written beside it.
const GAP: i32 = 6;

/// A colour of the page: the drawing has a number where the page's variable comes to stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ink {
    Text,
    Grid,
    Ours,
    Rival,
    Published,
    Cause(u8),
}

impl Ink {
    const ALL: [Ink; 13] = [
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
    ];

    fn number(self) -> u8 {
        match self {
            Ink::Text => 1,
            Ink::Grid => 2,
            Ink::Ours => 3,
            Ink::Rival => 4,
            Ink::Published => 5,
            Ink::Cause(n) => 16 + n,
        }
    }

    fn rgb(self) -> RGBColor {
        RGBColor(self.number(), 171, 205)
    }

    fn variable(self) -> String {
        match self {
            Ink::Text => "var(--ink)".into(),
            Ink::Grid => "var(--grid)".into(),
            Ink::Ours => "var(--ours)".into(),
            Ink::Rival => "var(--rival)".into(),
            Ink::Published => "var(--published)".into(),
            Ink::Cause(n) => format!("var(--cause-{n})"),
        }
    }
}

/// One bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Whose.
    pub name: String,
    /// Its length.
    pub value: f64,
    /// How the figure is written.
    pub label: String,
    /// What was published.
    pub published: Option<f64>,
    /// Whether it is our own file system's.
    pub is_ours: bool,
}

/// Bars from the left, each with its figure and a mark at the published one. `about` is for who cannot see it.
///
/// # Errors
/// The drawing library's.
pub fn bars(about: &str, bars: &[Bar]) -> Result<String, Box<dyn Error>> {
    let most = bars.iter().flat_map(|bar| [Some(bar.value), bar.published]).flatten().fold(0.0, f64::max);
    draw(about, bars.len(), most, |chart| {
        for (n, bar) in bars.iter().enumerate() {
            let ink = if bar.is_ours { Ink::Ours } else { Ink::Rival };
            chart.name(n, &bar.name)?;
            chart.bar(n, 0.0, bar.value, ink)?;
            if let Some(published) = bar.published {
                chart.mark(n, published)?;
            }
            chart.label(n, bar.value.max(bar.published.unwrap_or(0.0)), &bar.label)?;
        }
        Ok(())
    })
}

/// A bar of parts, each of them with its cause.
#[derive(Debug, Clone, PartialEq)]
pub struct Stack {
    /// Whose.
    pub name: String,
    /// Lengths of the parts, in the order of the causes.
    pub parts: Vec<f64>,
    /// How the sum is written.
    pub label: String,
}

/// Colours that there are for causes.
pub const CAUSES_MAX: usize = 8;

/// Bars of several parts from the left.
///
/// # Errors
/// The drawing library's.
pub fn stacks(about: &str, stacks: &[Stack]) -> Result<String, Box<dyn Error>> {
    let most = stacks.iter().map(|stack| stack.parts.iter().sum()).fold(0.0, f64::max);
    draw(about, stacks.len(), most, |chart| {
        for (n, stack) in stacks.iter().enumerate() {
            chart.name(n, &stack.name)?;
            let mut from = 0.0;
            for (cause, length) in stack.parts.iter().enumerate() {
                chart.bar(n, from, from + length, Ink::Cause((cause % CAUSES_MAX) as u8))?;
                from += length;
            }
            chart.label(n, from, &stack.label)?;
        }
        Ok(())
    })
}

type Area<'a> = plotters::drawing::DrawingArea<
    SVGBackend<'a>,
    plotters::coord::cartesian::Cartesian2d<
        plotters::coord::types::RangedCoordf64,
        plotters::coord::types::RangedCoordf64,
    >,
>;

/// A chart of horizontal bars under way.
struct Bars<'a> {
    area: Area<'a>,
    count: usize,
}

impl Bars<'_> {
    /// The middle of a bar; the first one is on top.
    fn middle(&self, n: usize) -> f64 {
        (self.count - n) as f64 - 0.5
    }

    fn name(&self, n: usize, name: &str) -> Result<(), Box<dyn Error>> {
        self.text(n, 0.0, -GAP, HPos::Right, name)
    }

    fn bar(&self, n: usize, from: f64, to: f64, ink: Ink) -> Result<(), Box<dyn Error>> {
        let middle = self.middle(n);
        self.area.draw(&Rectangle::new([(from, middle - 0.32), (to, middle + 0.32)], ink.rgb().filled()))?;
        Ok(())
    }

    fn mark(&self, n: usize, at: f64) -> Result<(), Box<dyn Error>> {
        let middle = self.middle(n);
        let style = ShapeStyle::from(Ink::Published.rgb()).stroke_width(3);
        self.area.draw(&PathElement::new(vec![(at, middle - 0.42), (at, middle + 0.42)], style))?;
        Ok(())
    }

    fn label(&self, n: usize, at: f64, label: &str) -> Result<(), Box<dyn Error>> {
        self.text(n, at, GAP, HPos::Left, label)
    }

    /// Text in the middle of a bar's height, some pixels beside a place.
    fn text(&self, n: usize, at: f64, gap: i32, side: HPos, words: &str) -> Result<(), Box<dyn Error>> {
        let (x, y) = self.area.map_coordinate(&(at, self.middle(n)));
        let pixels = self.area.strip_coord_spec();
        let (left, top) = pixels.get_base_pixel();
        pixels.draw(&Text::new(words.to_owned(), (x - left + gap, y - top), text(side)))?;
        Ok(())
    }
}

fn text(side: HPos) -> TextStyle<'static> {
    let font = ("sans-serif", 13).into_font().style(FontStyle::Normal);
    TextStyle { font, color: Ink::Text.rgb().to_backend_color(), pos: Pos::new(side, VPos::Center) }
}

/// Frame, scale and colours of a chart with `count` bars up to `most`.
fn draw(
    about: &str,
    count: usize,
    most: f64,
    fill: impl FnOnce(&Bars<'_>) -> Result<(), Box<dyn Error>>,
) -> Result<String, Box<dyn Error>> {
    let mut svg = String::new();
    {
        let height = BAR_HEIGHT * count.max(1) as u32 + 34;
        let root = SVGBackend::with_string(&mut svg, (WIDTH, height)).into_drawing_area();
        let most = if most > 0.0 { most } else { 1.0 };
        let mut chart = ChartBuilder::on(&root)
            .margin_right(8)
            .margin_top(4)
            .x_label_area_size(24)
            .y_label_area_size(NAME_WIDTH)
            .build_cartesian_2d(0.0..most * 1.3, 0.0..count.max(1) as f64)?;
        chart
            .configure_mesh()
            .disable_y_mesh()
            .disable_y_axis()
            .y_labels(0)
            .x_labels(5)
            .axis_style(Ink::Grid.rgb())
            .bold_line_style(Ink::Grid.rgb())
            .light_line_style(plotters::style::TRANSPARENT)
            .x_label_style(text(HPos::Center))
            .x_label_formatter(&|value| super::shown(*value))
            .draw()?;
        fill(&Bars { area: chart.plotting_area().clone(), count: count.max(1) })?;
        root.present()?;
    }
    for ink in Ink::ALL {
        let RGBColor(r, g, b) = ink.rgb();
        svg = svg.replace(&format!("#{r:02X}{g:02X}{b:02X}"), &ink.variable());
    }
    let title = format!("<svg role=\"img\" aria-label=\"{}\" ", escaped(about));
    Ok(svg.replacen("<svg ", &title, 1))
}

/// Text as it may stand in an attribute.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_its_bars_in_the_colours_of_the_page() {
        let bar = |name: &str, value, is_ours| Bar {
            name: name.into(),
            value,
            label: format!("{value}"),
            published: Some(7.0),
            is_ours,
        };
        let svg = bars("speed <of> all", &[bar("flashkit", 10.0, true), bar("ext4", 5.0, false)]).unwrap();
        for wanted in
            ["flashkit", "ext4", "var(--ours)", "var(--rival)", "var(--published)", "speed &lt;of> all"]
        {
            assert!(svg.contains(wanted), "{wanted:?} is not in\n{svg}");
        }
        assert!(!svg.contains("ABCD"), "a colour was not replaced:\n{svg}");
    }

    #[test]
    fn stacks_and_empty_charts_can_be_drawn() {
        let stack = Stack { name: "ext4".into(), parts: vec![1.0, 2.0], label: "3 s".into() };
        let svg = stacks("time", &[stack]).unwrap();
        assert!(svg.contains("var(--cause-0)") && svg.contains("var(--cause-1)"));
        assert!(bars("nothing", &[]).unwrap().contains("<svg"));
    }
}
