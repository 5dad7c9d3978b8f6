//! Progress of long work, on a terminal only.

use std::{io::IsTerminal, time::Duration};

use indicatif::{ProgressBar, ProgressStyle};

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
