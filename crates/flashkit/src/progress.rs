//! Progress of long work, on a terminal only.

use std::{io::IsTerminal, time::Duration};

use f2fs::tree;
use indicatif::{ProgressBar, ProgressStyle};

use crate::render;

/// A bar that counts bytes, with rate and time left; hidden where stderr is no terminal or `quiet` is set.
/// Without a total (a stream) it counts up.
pub fn bytes(what: &'static str, total: Option<u64>, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match total {
        Some(total) => (
            ProgressBar::new(total),
            "{prefix} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left  {msg}",
        ),
        None => (ProgressBar::new_spinner(), "{prefix} {spinner} {bytes} {bytes_per_sec}, {elapsed}  {msg}"),
    };
    bar.set_style(ProgressStyle::with_template(template).expect("the template is a constant"));
    bar.set_prefix(what);
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}

/// A bar that counts steps of one kind of work, with the time left; hidden as that of [`bytes`] is.
pub fn steps(total: u64, quiet: bool) -> ProgressBar {
    if quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{wide_bar} {percent} %, {elapsed}, about {eta} left  {msg}");
    let bar = ProgressBar::new(total).with_style(style.expect("the template is a constant"));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Tells a bar how far an import or export is.
pub fn teller(bar: &ProgressBar) -> impl FnMut(tree::Progress<'_>) + use<'_> {
    |at| {
        bar.set_position(at.bytes);
        bar.set_message(render::count(at.entries, "entry"));
    }
}
