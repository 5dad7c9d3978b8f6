//! Charts as SVG. Colours are variables of the page, so that one drawing works in light and dark mode.

use std::{error::Error, ops::Range};

use plotters::{
    backend::SVGBackend,
    chart::ChartBuilder,
    coord::combinators::IntoLogRange,
    drawing::IntoDrawingArea,
    element::{Cross, PathElement, Rectangle, Text},
    style::{
        Color, FontStyle, IntoFont, RGBColor, ShapeStyle, TextStyle,
        text_anchor::{HPos, Pos, VPos},
    },
};

use super::ink::Ink;

/// Width of every chart; the page scales it.
const WIDTH: u32 = 480;
const BAR_HEIGHT: u32 = 24;
const NAME_WIDTH: u32 = 112;

/// Pixels between a bar and its label.
const GAP: i32 = 6;

/// Draws the grid and the labels of a chart with curves.
macro_rules! mesh {
    ($chart:expr, $x:expr, $y:expr) => {
        $chart
            .configure_mesh()
            .axis_style(Ink::Grid.rgb())
            .bold_line_style(Ink::Grid.rgb())
            .light_line_style(plotters::style::TRANSPARENT)
            .x_labels(7)
            .y_labels(6)
            .x_label_style(text(HPos::Center))
            .y_label_style(text(HPos::Right))
            .x_label_formatter(&$x)
            .y_label_formatter(&$y)
            .draw()?
    };
}

/// One bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Bar {
    /// Name of the file system.
    pub name: String,
    /// Length of the bar.
    pub value: f64,
    /// Text of the figure.
    pub label: String,
    /// Published figure.
    pub published: Option<f64>,
    /// True for our own file system.
    pub is_ours: bool,
}

/// Draws horizontal bars, each with its figure and a mark at the published one. `about` is the text for
/// screen readers.
///
/// # Errors
/// Errors of the drawing library.
pub fn bars(about: &str, bars: &[Bar]) -> Result<String, Box<dyn Error>> {
    let axis = axis(bars);
    let values = bars.iter().flat_map(|bar| [Some(bar.value), bar.published]).flatten();
    let most = values.map(|value| axis.place(value)).fold(0.0, f64::max);
    draw(about, bars.len(), most, axis, |chart| {
        for (n, bar) in bars.iter().enumerate() {
            let ink = if bar.is_ours { Ink::Ours } else { Ink::Rival };
            chart.name(n, &bar.name)?;
            chart.bar(n, 0.0, axis.place(bar.value), ink)?;
            if let Some(published) = bar.published {
                chart.mark(n, axis.place(published))?;
            }
            chart.label(n, axis.place(bar.value), &bar.label)?;
        }
        Ok(())
    })
}

/// Ratio of the largest to the smallest figure above which bars have a logarithmic axis.
const LINEAR_MAX: f64 = 50.0;

/// Axis of the lengths of bars.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Axis {
    /// Lengths are the figures.
    Linear,
    /// Lengths are the powers of ten above this figure.
    Logarithmic {
        /// The figure at the start of the bars.
        from: f64,
    },
}

impl Axis {
    fn place(self, value: f64) -> f64 {
        match self {
            Axis::Linear => value,
            Axis::Logarithmic { from } => (value / from).log10().max(0.0),
        }
    }

    fn value(self, place: f64) -> f64 {
        match self {
            Axis::Linear => place,
            Axis::Logarithmic { from } => from * 10f64.powf(place),
        }
    }
}

/// Returns the axis on which all of these bars can be read.
pub fn axis(bars: &[Bar]) -> Axis {
    let figures = || bars.iter().flat_map(|bar| [Some(bar.value), bar.published]).flatten();
    let positive = || figures().filter(|value| *value > 0.0);
    let (least, most) = (positive().fold(f64::MAX, f64::min), positive().fold(0.0, f64::max));
    match most > least * LINEAR_MAX {
        true => Axis::Logarithmic { from: 10f64.powf((least / 1.5).log10().floor()) },
        false => Axis::Linear,
    }
}

/// A stacked bar, with one part per cause.
#[derive(Debug, Clone, PartialEq)]
pub struct Stack {
    /// Name of the file system.
    pub name: String,
    /// Lengths of the parts, in the order of the causes.
    pub parts: Vec<f64>,
    /// Text of the sum.
    pub label: String,
}

/// Number of colours for causes.
pub const CAUSES_MAX: usize = 8;

/// Draws horizontal stacked bars.
///
/// # Errors
/// Errors of the drawing library.
pub fn stacks(about: &str, stacks: &[Stack]) -> Result<String, Box<dyn Error>> {
    let most = stacks.iter().map(|stack| stack.parts.iter().sum()).fold(0.0, f64::max);
    draw(about, stacks.len(), most, Axis::Linear, |chart| {
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

/// Owner of a drawn row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Our own file system.
    Ours,
    /// Another one.
    Rival {
        /// Number of its row in the sheet.
        row: usize,
    },
}

/// A curve.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Owner of its row, which determines its colour.
    pub owner: Owner,
    /// Points in ascending x order.
    pub points: Vec<(f64, f64)>,
}

/// A published point.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mark {
    /// Position.
    pub at: (f64, f64),
}

/// Returns the page's colour variable for a row's curve.
pub fn colour(owner: Owner) -> String {
    curve_ink(owner).variable()
}

fn curve_ink(owner: Owner) -> Ink {
    match owner {
        Owner::Ours => Ink::Ours,
        Owner::Rival { row } => Ink::Line((row % 7) as u8),
    }
}

/// Draws curves with logarithmic axes. `about` is the text for screen readers.
///
/// # Errors
/// Errors of the drawing library.
pub fn log_curves(about: &str, curves: &[Curve], marks: &[Mark]) -> Result<String, Box<dyn Error>> {
    let points =
        || curves.iter().flat_map(|it| it.points.iter().copied()).chain(marks.iter().map(|it| it.at));
    let (x, y) = (decades(points().map(|it| it.0)), decades(points().map(|it| it.1)));
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, CURVES_HEIGHT)).into_drawing_area();
        let mut chart = frame(&root).build_cartesian_2d((x.0..x.1).log_scale(), (y.0..y.1).log_scale())?;
        let label = |value: &f64| short(*value);
        mesh!(chart, label, label);
        for curve in curves {
            let style = ShapeStyle::from(curve_ink(curve.owner).rgb()).stroke_width(2);
            chart.draw_series([PathElement::new(curve.points.clone(), style)])?;
        }
        for mark in marks {
            let style = ShapeStyle::from(Ink::Published.rgb()).stroke_width(2);
            chart.draw_series([Cross::new(mark.at, 5, style)])?;
        }
        root.present()?;
    }
    Ok(finished(svg, about))
}

/// Draws curves with linear axes from zero on.
///
/// # Errors
/// Errors of the drawing library.
pub fn curves(about: &str, curves: &[Curve]) -> Result<String, Box<dyn Error>> {
    curves_between(about, curves, 0.0..above(curves, |point| point.0))
}

/// Returns a value above all of the curves' points.
fn above(curves: &[Curve], value: fn(&(f64, f64)) -> f64) -> f64 {
    let most = curves.iter().flat_map(|it| it.points.iter().map(value)).fold(0.0, f64::max);
    if most > 0.0 { most * 1.05 } else { 1.0 }
}

/// Draws curves with linear axes: the horizontal one over a range, the vertical one from zero on.
///
/// # Errors
/// Errors of the drawing library.
pub fn curves_between(about: &str, curves: &[Curve], x: Range<f64>) -> Result<String, Box<dyn Error>> {
    let y = above(curves, |point| point.1);
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (WIDTH, CURVES_HEIGHT)).into_drawing_area();
        let mut chart = frame(&root).build_cartesian_2d(x, 0.0..y)?;
        let label = |value: &f64| super::shown(*value);
        mesh!(chart, label, label);
        for curve in curves {
            let style = ShapeStyle::from(curve_ink(curve.owner).rgb()).stroke_width(2);
            chart.draw_series([PathElement::new(curve.points.clone(), style)])?;
        }
        root.present()?;
    }
    Ok(finished(svg, about))
}

/// Number of shades in a map.
const SHADES: u64 = 8;
/// Pieces per line of a map.
const MAP_WIDTH: usize = 64;

/// Draws a map of a flash, piece by piece from left to right and line by line. The more erases, up to `most`,
/// the stronger the colour. `about` is the text for screen readers.
pub fn map(about: &str, erases: &[u64], most: u64, owner: Owner) -> String {
    let mut shades = vec![String::new(); SHADES as usize];
    for (n, erases) in erases.iter().enumerate().filter(|(_, erases)| **erases > 0) {
        let shade = (erases.saturating_mul(SHADES)).div_ceil(most.max(1)).clamp(1, SHADES);
        let (x, y) = (n % MAP_WIDTH, n / MAP_WIDTH);
        shades[shade as usize - 1] += &format!("M{x} {y}h1v1h-1z");
    }
    let ink = match owner {
        Owner::Ours => Ink::Ours,
        Owner::Rival { .. } => Ink::Rival,
    };
    let ink = ink.variable();
    let (width, height) = (MAP_WIDTH, erases.len().div_ceil(MAP_WIDTH).max(1));
    let (whole, rest) = (erases.len() / MAP_WIDTH, erases.len() % MAP_WIDTH);
    let mut svg = format!(
        "<svg role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {width} {height}\" shape-rendering=\"crispEdges\" \
         xmlns=\"http://www.w3.org/2000/svg\">\n\
         <path fill=\"{}\" fill-opacity=\"0.35\" d=\"M0 0h{width}v{whole}h-{width}zM0 {whole}h{rest}v1h-{rest}z\"/>\n",
        escaped(about),
        Ink::Grid.variable(),
    );
    for (shade, path) in (1..).zip(shades).filter(|(_, path)| !path.is_empty()) {
        let opacity = f64::from(shade) / SHADES as f64;
        svg += &format!("<path fill=\"{ink}\" fill-opacity=\"{opacity}\" d=\"{path}\"/>\n");
    }
    svg + "</svg>\n"
}

const CURVES_HEIGHT: u32 = 280;

fn frame<'a, 'b>(
    root: &'b plotters::drawing::DrawingArea<SVGBackend<'a>, plotters::coord::Shift>,
) -> ChartBuilder<'b, 'b, SVGBackend<'a>> {
    let mut builder = ChartBuilder::on(root);
    builder.margin_right(20).margin_top(10).x_label_area_size(24).y_label_area_size(60);
    builder
}

/// Returns the powers of ten that enclose all positive values.
fn decades(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let positive = values.filter(|value| *value > 0.0);
    let (least, most) = positive.fold((f64::MAX, 0.0), |(least, most), it| (it.min(least), it.max(most)));
    if most == 0.0 {
        return (0.1, 10.0);
    }
    let (from, to) = (least.log10().floor(), most.log10().ceil());
    (10f64.powf(from), 10f64.powf(to.max(from + 1.0)))
}

/// Formats a power of ten without an exponent.
fn short(value: f64) -> String {
    match value {
        v if v >= 1.0 => format!("{v:.0}"),
        v => format!("{v:.*}", (-v.log10()).round().max(0.0) as usize),
    }
}

type Area<'a> = plotters::drawing::DrawingArea<
    SVGBackend<'a>,
    plotters::coord::cartesian::Cartesian2d<
        plotters::coord::types::RangedCoordf64,
        plotters::coord::types::RangedCoordf64,
    >,
>;

/// A chart of horizontal bars that is being drawn.
struct Bars<'a> {
    area: Area<'a>,
    count: usize,
}

impl Bars<'_> {
    /// Vertical centre of a bar; the first one is on top.
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

    /// Marks a figure above and below the bar, so that the mark does not cross the label.
    fn mark(&self, n: usize, at: f64) -> Result<(), Box<dyn Error>> {
        let middle = self.middle(n);
        let style = ShapeStyle::from(Ink::Published.rgb()).stroke_width(3);
        for side in [-1.0, 1.0] {
            let ends = [0.28, 0.46].map(|away| (at, middle + side * away));
            self.area.draw(&PathElement::new(ends.to_vec(), style))?;
        }
        Ok(())
    }

    fn label(&self, n: usize, at: f64, label: &str) -> Result<(), Box<dyn Error>> {
        self.text(n, at, GAP, HPos::Left, label)
    }

    /// Draws text at the vertical centre of a bar, `gap` pixels beside a position.
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

/// Draws the frame of a chart with `count` bars of length up to `most`, and fills it.
fn draw(
    about: &str,
    count: usize,
    most: f64,
    axis: Axis,
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
            .x_labels(if axis == Axis::Linear { 5 } else { 4 })
            .axis_style(Ink::Grid.rgb())
            .bold_line_style(Ink::Grid.rgb())
            .light_line_style(plotters::style::TRANSPARENT)
            .x_label_style(text(HPos::Center))
            .x_label_formatter(&|place| super::shown(axis.value(*place)))
            .draw()?;
        fill(&Bars { area: chart.plotting_area().clone(), count: count.max(1) })?;
        root.present()?;
    }
    Ok(finished(svg, about))
}

/// Replaces the placeholder colours, and adds the text for screen readers.
fn finished(mut svg: String, about: &str) -> String {
    for ink in Ink::ALL {
        let RGBColor(r, g, b) = ink.rgb();
        svg = svg.replace(&format!("#{r:02X}{g:02X}{b:02X}"), &ink.variable());
    }
    let title = format!("<svg role=\"img\" aria-label=\"{}\" ", escaped(about));
    svg.replacen("<svg ", &title, 1)
}

/// Escapes text for an attribute.
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
    fn curves_have_colours_and_decades() {
        let curve = |owner| Curve { owner, points: vec![(0.5, 1.0), (200.0, 0.001)] };
        let both = [curve(Owner::Ours), curve(Owner::Rival { row: 1 })];
        let svg = log_curves("times", &both, &[Mark { at: (1000.0, 0.001) }]).unwrap();
        for wanted in ["var(--ours)", "var(--line-1)", "var(--published)", "\n1000\n", "\n0.01\n"] {
            assert!(svg.contains(wanted), "{wanted:?} is not in\n{svg}");
        }
        assert!(curves("rates", &both).unwrap().contains("<svg role"));
        assert!(log_curves("nothing", &[], &[]).is_ok() && curves("nothing", &[]).is_ok());
        assert_eq!(decades([0.5, 200.0, 0.0].into_iter()), (0.1, 1000.0));
    }

    #[test]
    fn figures_far_apart_have_a_logarithmic_axis() {
        let bar = |value| Bar {
            name: "ext4".into(),
            value,
            label: format!("{value}"),
            published: None,
            is_ours: false,
        };
        assert_eq!(axis(&[bar(3.8), bar(150.0)]), Axis::Linear);
        let log = axis(&[bar(3.8), bar(1486.0)]);
        assert_eq!((log.place(1.0), log.place(1000.0).round(), log.value(2.0)), (0.0, 3.0, 100.0));
        assert!(bars("mounts", &[bar(3.8), bar(1486.0)]).unwrap().contains("<svg"));
    }

    #[test]
    fn a_map_has_a_shade_for_each_erased_piece() {
        let mut erases = vec![0; 70];
        (erases[0], erases[1], erases[65]) = (80, 1, 80);
        let svg = map("erases", &erases, 80, Owner::Ours);
        for wanted in [
            "viewBox=\"0 0 64 2\"",
            "M0 0h64v1h-64zM0 1h6v1h-6z",
            "fill=\"var(--ours)\" fill-opacity=\"1\" d=\"M0 0h1v1h-1zM1 1h1v1h-1z\"",
            "fill-opacity=\"0.125\" d=\"M1 0h1v1h-1z\"",
        ] {
            assert!(svg.contains(wanted), "{wanted:?} is not in\n{svg}");
        }
        assert!(map("nothing", &[], 0, Owner::Rival { row: 0 }).contains("<svg"));
    }

    #[test]
    fn stacks_and_empty_charts_can_be_drawn() {
        let stack = Stack { name: "ext4".into(), parts: vec![1.0, 2.0], label: "3 s".into() };
        let svg = stacks("time", &[stack]).unwrap();
        assert!(svg.contains("var(--cause-0)") && svg.contains("var(--cause-1)"));
        assert!(bars("nothing", &[]).unwrap().contains("<svg"));
    }
}
