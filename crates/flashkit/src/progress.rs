//! Progress of long operations, shown only on a terminal.

use std::{
    io::IsTerminal,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::render;

/// True after [`hide`].
static HIDDEN: AtomicBool = AtomicBool::new(false);

/// Hides progress from now on, also that of work below a verb, such as decompressing its image.
pub fn hide() {
    HIDDEN.store(true, Ordering::Relaxed);
}

/// The wish for progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verbosity {
    /// Progress is shown on a terminal.
    Usual,
    /// Progress is hidden.
    Quiet,
}

impl Verbosity {
    /// Returns true if a bar is shown.
    fn shows(self) -> bool {
        self == Verbosity::Usual && !HIDDEN.load(Ordering::Relaxed) && std::io::stderr().is_terminal()
    }
}

impl From<bool> for Verbosity {
    /// Converts the flag that asks for quiet.
    fn from(is_quiet: bool) -> Verbosity {
        if is_quiet { Verbosity::Quiet } else { Verbosity::Usual }
    }
}

/// Makes a bar that counts bytes, with rate and remaining time. It is hidden if stderr is not a terminal or
/// quiet is wished. Without a total (a stream) it only counts up.
pub fn bytes(what: &'static str, total: Option<u64>, verbosity: impl Into<Verbosity>) -> ProgressBar {
    if !verbosity.into().shows() {
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

/// Makes a bar that counts steps, with the remaining time. It is hidden like that of [`bytes`].
pub fn steps(total: u64, verbosity: impl Into<Verbosity>) -> ProgressBar {
    if !verbosity.into().shows() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{wide_bar} {percent} %, {elapsed}, about {eta} left  {msg}");
    let bar = ProgressBar::new(total).with_style(style.expect("the template is a constant"));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Makes a spinner for the comparison of shapes, whose number is not known before. It is hidden like the bar of [`bytes`].
#[cfg(feature = "lab")]
pub fn shapes(verbosity: impl Into<Verbosity>) -> ProgressBar {
    if !verbosity.into().shows() {
        return ProgressBar::hidden();
    }
    let style =
        ProgressStyle::with_template("{spinner} compare shapes on a model of the card, {elapsed}  {msg}");
    let bar = ProgressBar::new_spinner().with_style(style.expect("the template is a constant"));
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// Makes a bar for several stages, each with bytes, rate and remaining time. It is hidden like that of
/// [`bytes`].
pub fn stages(verbosity: impl Into<Verbosity>) -> ProgressBar {
    bytes("", Some(0), verbosity)
}

/// Returns a callback that shows the progress of a check on a bar of [`stages`].
pub fn checker(bar: &ProgressBar) -> impl FnMut(f2fs_check::Progress) + use<'_> {
    let mut tell = stage_teller(bar);
    move |at| tell(at.stage.name(), at.done_bytes, at.total_bytes)
}

/// Returns a callback that shows the progress of a rescue on a bar of [`stages`].
pub fn rescuer(bar: &ProgressBar) -> impl FnMut(f2fs_rescue::Progress<'_>) + use<'_> {
    let mut tell = stage_teller(bar);
    move |at| tell(at.stage.name(), at.done_bytes, at.total_bytes)
}

/// Returns a function that shows a stage with its done and total bytes. The bar begins anew with each stage.
fn stage_teller(bar: &ProgressBar) -> impl FnMut(&'static str, u64, u64) + use<'_> {
    let mut last = "";
    move |stage, done_bytes, total_bytes| {
        if stage != last {
            last = stage;
            bar.set_prefix(stage);
            bar.reset();
        }
        bar.set_length(total_bytes);
        bar.set_position(done_bytes);
    }
}

/// Returns a callback that shows the progress of an import or export on a bar.
pub fn teller(bar: &ProgressBar) -> impl FnMut(f2fs_tree::Progress<'_>) + use<'_> {
    |at| {
        bar.set_position(at.bytes);
        bar.set_message(render::count(at.entries, "entry"));
    }
}
