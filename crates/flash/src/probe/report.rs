//! The findings as text and as a page with plots.

use std::fmt::Write as _;

use super::{Advice, Bound, Estimate, Findings, Series, advice::size, measure::STREAMS_MAX};

impl Findings {
    /// Formats the findings as lines of text.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for (name, value) in self.rows() {
            writeln!(text, "{name:<26}{value}").expect("writing to a string cannot fail");
        }
        let advice = self.advice();
        text.push('\n');
        for reason in &advice.reasons {
            writeln!(text, "{reason}").expect("writing to a string cannot fail");
        }
        let Advice { mkfs_f2fs_reason, mkfs_f2fs, .. } = &advice;
        write!(text, "\n{}\n\n{mkfs_f2fs_reason}\n\n{mkfs_f2fs}\n", own_lines(&advice))
            .expect("writing to a string cannot fail");
        text
    }

    /// Makes one self-contained HTML page.
    pub fn to_html(&self, device: &str) -> String {
        let mut body = String::new();
        let title = format!("Probe of {}", escape(device));
        write!(body, "<h1>{title}</h1>\n<table>\n").expect("writing to a string cannot fail");
        for (name, value) in self.rows() {
            writeln!(body, "<tr><td>{name}</td><td>{}</td></tr>", escape(&value))
                .expect("writing to a string cannot fail");
        }
        body.push_str("</table>\n");
        let advice = self.advice();
        for reason in &advice.reasons {
            writeln!(body, "<p>{}</p>", escape(reason)).expect("writing to a string cannot fail");
        }
        let Advice { mkfs_f2fs_reason, mkfs_f2fs, .. } = &advice;
        let (own, kernels) = (own_lines(&advice), escape(mkfs_f2fs_reason));
        write!(body, "<pre>{own}</pre>\n<p>{kernels}</p>\n<pre>{mkfs_f2fs}</pre>\n")
            .expect("writing to a string cannot fail");
        self.series.iter().for_each(|series| body.push_str(&plot(series)));
        format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n<style>body\
             {{font-family:sans-serif;max-width:60em;margin:auto}}td{{padding:0 1em 0 0}}</style></head>\n\
             <body>\n{body}</body></html>\n"
        )
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let mut rows = vec![("size", size(self.size_bytes))];
        let mut row = |name, value: Option<String>| rows.push((name, value.unwrap_or("not measured".into())));
        let ms = |ns: f64| format!("{:.3} ms", ns / 1e6);
        let cost = |ns: f64| if ns > 0.0 { format!("{} more", ms(ns)) } else { "none found".into() };
        let rate = |rate: f64| format!("{:.1} MB/s", rate / 1e6);
        row("read command", self.read_command_ns.map(ms));
        row("read rate", self.read_bytes_per_s.map(rate));
        row("random reads of 4 KiB", self.random_read_iops.map(|iops| format!("{iops:.0} a second")));
        let boundary = |_| self.read_boundary_bytes.map_or("none".into(), size);
        row("boundary seen by reads", self.read_command_ns.map(boundary));
        row("writes of 1 MiB", self.large_write_bytes_per_s.map(rate));
        row("write command", self.write_command_ns.map(ms));
        row("write rate", self.write_bytes_per_s.map(rate));
        if self.short_write_bytes > 0 {
            let more = format!("{} more below {}", ms(self.short_write_ns), size(self.short_write_bytes));
            row("short writes", Some(more));
        }
        row("flush", self.flush_ns.map(ms));
        row("write cache", self.write_cache.map(|cache| if cache { "yes" } else { "no" }.to_string()));
        row("page", self.page_bytes.map(|found| told(found, size)));
        row("pages at once", self.stripe_bytes.map(size));
        let no_limit = || format!("no limit found up to {STREAMS_MAX}");
        let units = |limit: Option<u64>| limit.map_or_else(no_limit, |limit| limit.to_string());
        row("open units", self.open_units.map(|found| told(found, units)));
        row("merge", self.merge_ns.map(ms));
        row("unit switch", self.unit_switch_ns.map(cost));
        let remembered = |ns| match self.streams {
            Some(streams) => format!("{} more beyond {streams} streams", ms(ns)),
            None => "none found".into(),
        };
        row("start of a new stream", self.stream_miss_ns.map(remembered));
        let order = |any: bool| if any { "any" } else { "from start to end" }.to_string();
        row("order within a unit", self.random_in_unit.map(|found| told(found, order)));
        let some_size = |bytes: Option<u64>| bytes.map_or("none found".into(), size);
        row("allocation unit", self.unit_bytes.map(|found| told(found, some_size)));
        row("area at the front", self.fat_area_bytes.map(|found| told(found, some_size)));
        row("random writes of 4 KiB", self.random_write_iops.map(|iops| format!("{iops:.0} a second")));
        row("written by the probe", Some(size(self.written_bytes)));
        row("time of the probe", Some(format!("{:.1} s", self.elapsed_ns as f64 / 1e9)));
        if self.out_of_budget {
            row("ended early", Some("the budget was used up".into()));
        }
        rows
    }
}

/// Returns the lines for flashkit.
fn own_lines(advice: &Advice) -> String {
    format!("{}\nflashkit mount -o {} DEVICE DIR", advice.flashkit_mkfs, advice.mount_options)
}

fn told<T: Copy>(found: Estimate<T>, tell: impl Fn(T) -> String) -> String {
    let value = match found.bound {
        Bound::Exact => tell(found.value),
        Bound::AtMost => format!("{} or less", tell(found.value)),
        Bound::AtLeast => {
            return format!("{} or more (uncertain: larger values were not measured)", tell(found.value));
        }
    };
    let mark = if found.is_certain() { "" } else { ", uncertain" };
    format!("{value} (confidence {:.0} %{mark})", found.confidence * 100.0)
}

/// Plots times over settings, with logarithmic axes if the values allow that.
fn plot(series: &Series) -> String {
    const WIDTH: f64 = 640.0;
    const HEIGHT: f64 = 240.0;
    const LEFT: f64 = 70.0;
    let points: Vec<(f64, f64)> = series.medians_ns.iter().map(|(at, ns)| (*at as f64, ns / 1e6)).collect();
    if points.is_empty() {
        return String::new();
    }
    let log_x = series.setting == "bytes";
    let log_y = points.iter().all(|(_, y)| *y > 0.0);
    let scale = |value: f64, log: bool| if log { value.max(1e-9).log2() } else { value };
    let range = |values: Vec<f64>| {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if high > low { (low, high) } else { (low - 0.5, low + 0.5) }
    };
    let (x0, x1) = range(points.iter().map(|(x, _)| scale(*x, log_x && *x > 0.0)).collect());
    let (y0, y1) = range(points.iter().map(|(_, y)| scale(*y, log_y)).collect());
    let place = |x: f64, y: f64| {
        let across = (scale(x, log_x && x > 0.0) - x0) / (x1 - x0);
        let up = (scale(y, log_y) - y0) / (y1 - y0);
        (LEFT + across * (WIDTH - LEFT - 20.0), HEIGHT - 40.0 - up * (HEIGHT - 60.0))
    };
    let mut svg = format!(
        "<h2>{}</h2>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\">\n",
        escape(&series.name)
    );
    let line: Vec<String> =
        points.iter().map(|(x, y)| place(*x, *y)).map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    writeln!(svg, "<polyline fill=\"none\" stroke=\"#336\" points=\"{}\"/>", line.join(" "))
        .expect("writing to a string cannot fail");
    for (n, (x, y)) in points.iter().enumerate() {
        let (left, top) = place(*x, *y);
        let setting = if log_x { size(*x as u64) } else { format!("{x}") };
        writeln!(svg, "<circle cx=\"{left:.1}\" cy=\"{top:.1}\" r=\"3\" fill=\"#336\"><title>{setting}: {y:.3} ms</title></circle>")
            .expect("writing to a string cannot fail");
        if n % points.len().div_ceil(8) == 0 {
            writeln!(
                svg,
                "<text x=\"{left:.1}\" y=\"{}\" font-size=\"10\" text-anchor=\"middle\">{setting}</text>",
                HEIGHT - 20.0
            )
            .expect("writing to a string cannot fail");
        }
    }
    let mut extremes: Vec<f64> = points.iter().map(|(_, y)| *y).collect();
    extremes.sort_by(f64::total_cmp);
    for y in [extremes[0], extremes[extremes.len() - 1]] {
        let (_, top) = place(points[0].0, y);
        writeln!(
            svg,
            "<text x=\"{}\" y=\"{top:.1}\" font-size=\"10\" text-anchor=\"end\">{y:.3} ms</text>",
            LEFT - 8.0
        )
        .expect("writing to a string cannot fail");
    }
    svg + "</svg>\n"
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_stands_alone_and_shows_every_series() {
        let series = |name: &str, setting: &str, medians_ns| Series {
            name: name.into(),
            setting: setting.into(),
            medians_ns,
        };
        let findings = Findings {
            size_bytes: 1 << 30,
            unit_bytes: Some(Estimate::new(Some(4 << 20), 0.8)),
            series: vec![
                series("a < b", "bytes", vec![(0, 5.0), (4096, 1e6), (8192, 2e6)]),
                series("flat", "streams", vec![(1, 7.0)]),
                series("with a negative", "bytes", vec![(512, -7.0), (1024, 3.0)]),
            ],
            ..Findings::default()
        };
        let page = findings.to_html("a <card>");
        assert_eq!((page.matches("<svg").count(), page.matches("<h2>").count()), (3, 3));
        assert!(page.contains("a &lt;card&gt;") && page.contains("a &lt; b") && !page.contains("NaN"));
        assert!(!page.contains("http"), "nothing is loaded from elsewhere");
        let text = findings.to_text();
        assert!(text.contains("allocation unit           4 MiB (confidence 80 %, uncertain)"), "{text}");
        assert!(text.contains("flashkit mkfs -s 1 -z 1"), "a unit that is not certain shapes nothing");
        let certain = Findings {
            unit_bytes: Some(Estimate::new(Some(4 << 20), 1.0)),
            open_units: Some(Estimate::new(None, 1.0)),
            ..findings
        };
        let text = certain.to_text();
        let own =
            "flashkit mkfs -s 1 -z 2 DEVICE\nflashkit mount -o ipu_policy=disable,active_logs=6 DEVICE DIR\n";
        assert!(text.contains(own) && text.ends_with("\nmkfs.f2fs DEVICE\n"), "{text}");
    }
}
