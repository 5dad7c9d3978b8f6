//! The page of a study in a real headless browser: it renders in light and dark mode, wide and narrow,
//! without network requests or console output. Without such a browser the test is skipped with a message.

use std::{
    collections::HashMap,
    fs::{self, File},
    io::BufReader,
    path::Path,
    process::{Command, Output},
};

use flashkit_lab::{
    experiment::Experiment,
    plan::Plan,
    preset::Preset,
    report,
    rivals::FileSystem,
    scale::Scale,
    stop::Stop,
    study::run_cell,
    systems::{OURS, THROUGH_FUSE},
    wear::Wear,
};

/// Names of the browser; Debian's is the first.
const BROWSERS: [&str; 4] = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
/// Colours of the background and of our own bars, in light and dark mode.
const LIGHT: ([u8; 3], [u8; 3]) = ([0xff, 0xff, 0xff], [0xb4, 0x45, 0x0f]);
const DARK: ([u8; 3], [u8; 3]) = ([0x14, 0x17, 0x1b], [0xf0, 0x8a, 0x4b]);

fn browser() -> Option<&'static str> {
    let there =
        |name: &&&str| Command::new(name).arg("--version").output().is_ok_and(|it| it.status.success());
    BROWSERS.iter().find(there).copied()
}

/// Opens the page. The browser's profile is in `dir`, so that two instances do not interfere.
fn open(browser: &str, dir: &Path, arguments: &[String]) -> Output {
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--disable-background-networking",
        ])
        .arg(format!("--user-data-dir={}", dir.join("home").display()))
        .arg(format!("--log-net-log={}", dir.join("net.json").display()))
        .args(["--enable-logging=stderr", "--v=0"])
        .args(arguments)
        .arg(format!("file://{}", dir.join("page.html").display()))
        .output()
        .expect("it was started before");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(!said.contains("CONSOLE"), "{said}");
    output
}

/// Returns the number of pixels of each colour in a picture.
fn colours(path: &Path) -> HashMap<[u8; 3], usize> {
    let mut reader = png::Decoder::new(BufReader::new(File::open(path).unwrap())).read_info().unwrap();
    let mut bytes = vec![0; reader.output_buffer_size().expect("it fits into memory")];
    let info = reader.next_frame(&mut bytes).unwrap();
    let mut counts = HashMap::new();
    for pixel in bytes[..info.buffer_size()].chunks_exact(info.color_type.samples()) {
        *counts.entry([pixel[0], pixel[1], pixel[2]]).or_insert(0) += 1;
    }
    counts
}

/// Checks that no table needs a scroll bar on a wide and on a narrow screen. A script in a copy of the page
/// counts those that do.
fn nothing_is_hidden(browser: &str, dir: &Path) {
    const COUNT: &str = "<script>document.title = [...document.querySelectorAll('.scroll')]\
        .filter(it => it.scrollWidth > it.clientWidth).map(it => it.innerText).join('|') + ';' + innerWidth</script>";
    let copy = dir.join("copy");
    fs::create_dir(&copy).unwrap();
    fs::write(copy.join("page.html"), fs::read_to_string(dir.join("page.html")).unwrap() + COUNT).unwrap();
    for width in [1300, 420] {
        let dom = open(browser, &copy, &[format!("--window-size={width},3000"), "--dump-dom".into()]);
        let dom = String::from_utf8_lossy(&dom.stdout).into_owned();
        assert!(dom.contains(&format!("<title>;{width}</title>")), "{width}: {}", &dom[..600]);
    }
}

#[test]
fn the_page_is_drawn_in_light_and_dark_wide_and_narrow() {
    let Some(browser) = browser() else {
        eprintln!("skipped: no browser without a window; scripts/setup installs one on Debian");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let ours = [FileSystem::new(OURS), FileSystem::parse("flashkit:mode=adaptive")];
    let experiments = [Experiment::WriteFsync, Experiment::Copy];
    let cells = Plan::cells_without_guest(&experiments, &ours, &[Preset::Desktop], &[]);
    let plan = Plan { card_bytes: Some(1 << 30), ..Plan::of(cells, Scale::of_file(2 << 20), dir.to_owned()) };
    let mut records: Vec<_> =
        plan.cells.iter().map(|cell| run_cell(&plan, cell, &Stop::default()).unwrap().unwrap()).collect();
    // A mount and a rival with the same figures, so that the page has comparisons.
    for kind in [THROUGH_FUSE, "ext4"] {
        let mut others: Vec<_> =
            records.iter().filter(|it| it.cell.file_system.is_plain()).cloned().collect();
        others.retain(|record| record.cell.file_system.kind == OURS);
        others.iter_mut().for_each(|record| record.cell.file_system.kind = kind.into());
        records.extend(others);
    }
    // The card has more spare blocks than these few writes use up, so no block was erased yet.
    assert!(records.iter().all(|record| record.wear.as_ref().is_some_and(|wear| wear.total() == 0)));
    let worn: Vec<u32> = (0..4000).map(|n| n % 50).collect();
    records[0].wear = Some(Wear::of_blocks(&worn));
    fs::write(dir.join("page.html"), report::html(&records, "").unwrap()).unwrap();

    let dom = open(browser, dir, &["--dump-dom".into()]);
    let dom = String::from_utf8_lossy(&dom.stdout).into_owned();
    // A chart for each of the 2 + 4 parts, one of causes for each experiment, and the map of the record with
    // wear.
    assert_eq!(dom.matches("<svg ").count(), 6 + 2 + 1, "{dom}");
    assert!(dom.contains("98000 erases, 49 of one block") && !dom.contains(" 0 erases"), "{dom}");
    assert_eq!(
        dom.matches("beside the best rival, ours with").count(),
        3,
        "the mount, its verdict, the engine: {dom}"
    );
    let net = fs::read_to_string(dir.join("net.json")).unwrap();
    assert!(net.contains("\"constants\"") && !net.contains("\"url\":\"http"), "something was fetched");

    nothing_is_hidden(browser, dir);
    for (scheme, (paper, bars)) in [(1, LIGHT), (0, DARK)] {
        for (width, least) in [(1300, 2000), (400, 500)] {
            let picture = dir.join(format!("{scheme}-{width}.png"));
            let arguments = [
                format!("--blink-settings=preferredColorScheme={scheme}"),
                format!("--window-size={width},3000"),
                format!("--screenshot={}", picture.display()),
            ];
            open(browser, dir, &arguments);
            let counts = colours(&picture);
            let most = counts.iter().max_by_key(|(_, count)| **count).map(|(colour, _)| *colour);
            assert_eq!(most, Some(paper), "{scheme} {width}");
            let of_bars = counts.get(&bars).copied().unwrap_or(0);
            assert!(of_bars > least, "{scheme} {width}: {of_bars} pixels of bars");
        }
    }
}

/// Filters and compares a page of a thousand cells by a script in a copy of it.
#[test]
fn a_thousand_cells_are_filtered_and_compared_without_messages() {
    const PROBE: &str = "<script>const told = [];
        const choose = (id, value) => { byId(id).value = value; draw(); told.push(byId('count').textContent); };
        choose('card', 'card 7'); choose('system', 'flashkit (mode=lfs)'); choose('card', '');
        choose('first', 'flashkit'); choose('second', 'flashkit (mode=lfs)');
        told.push(byId('rows').rows[0].cells[5].textContent);
        choose('first', ''); choose('second', ''); choose('system', '');
        told.push(byId('rows').rows[8].cells[0].textContent);
        state.sort = 'value'; state.up = false; state.all = true; draw();
        const values = [...byId('rows').rows].map(row => row.cells[4].textContent);
        told.push(values.at(-1), values.slice(0, -1).every((value, n) => n === 0 || +values[n - 1] >= +value));
        state.all = false; draw();
        document.title = told.join('|') + '|' + byId('multiples').children.length;</script>";
    let Some(browser) = browser() else {
        eprintln!("skipped: no browser without a window; scripts/setup installs one on Debian");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let cells =
        Plan::cells_without_guest(&[Experiment::Mount], &[FileSystem::new(OURS)], &[Preset::Desktop], &[]);
    let plan = Plan::of(cells, Scale::of_file(1 << 20), dir.to_owned());
    let record = run_cell(&plan, &plan.cells[0], &Stop::default()).unwrap().unwrap();
    let mut records = Vec::new();
    for card in 0..500 {
        for (mount, factor) in [("", 1.0), ("mode=lfs", 0.5)] {
            let mut one = record.clone();
            one.cell.card = Some(format!("card {card}"));
            one.cell.file_system = FileSystem::new(OURS).mounted(mount);
            one.phases.iter_mut().for_each(|phase| phase.value *= factor);
            records.push(one);
        }
    }
    // One figure is missing.
    records[0].phases.truncate(1);
    let page = report::board(&records, &|name| name.to_owned());
    fs::write(dir.join("page.html"), page + PROBE).unwrap();
    let dom = open(browser, dir, &["--dump-dom".into()]);
    let dom = String::from_utf8_lossy(&dom.stdout).into_owned();
    let title = "4 of 2000 figures; 2 cells|2 of 2000 figures; 1 cells|1000 of 2000 figures; 500 cells|\
                 1000 of 2000 figures; 500 cells|1000 of 2000 figures; 500 cells|2|\
                 1000 of 2000 figures; 500 cells|1000 of 2000 figures; 500 cells|\
                 2000 of 2000 figures; 1000 cells|card 2|-|true|24";
    assert!(dom.contains(&format!("<title>{title}</title>")), "{}", &dom[..400]);
    let net = fs::read_to_string(dir.join("net.json")).unwrap();
    assert!(!net.contains("\"url\":\"http"), "something was fetched");
}
