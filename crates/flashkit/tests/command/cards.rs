//! Verbs about cards: shaping for one, probing, serving, measuring, recording.

use super::*;

#[test]
fn volumes_are_shaped_for_cards() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let shape = |image: &str| {
        let info: serde_json::Value = serde_json::from_str(&ok(dir, &["info", "--json", image])).unwrap();
        (info["segments_per_section"].as_u64().unwrap(), info["sections_per_zone"].as_u64().unwrap())
    };
    let said = ok(dir, &["mkfs", "a.img", "--size", "256M", "--card", "bergmann-stick"]);
    assert!(said.contains("best of") && said.contains("multiple of 4.00 MiB"), "{said}");
    ok(dir, &["mkfs", "-q", "b.img", "--size", "256M", "--card", "bergmann-stick", "-s", "1", "-z", "4"]);
    assert_eq!(shape("b.img"), (1, 4));
    // Both the card and the profile are files. The shape depends on the use.
    ok(dir, &["card", "new", "sd.card", "--profile", "survey-class4", "--size", "256M", "--preconditioned"]);
    let said = ok(dir, &["mkfs", "c.img", "--size", "256M", "--card", "sd.card", "--for", "small-files"]);
    assert!(said.contains("shapes for small files use on a new volume"), "{said}");
    let (section, zone) = shape("c.img");
    assert_eq!(section * zone, 2, "a unit of 4 MiB");
    let profile = ok(dir, &["card", "show", "survey-class4"]).replace("4194304", "8388608");
    fs::write(dir.join("own.toml"), profile).unwrap();
    ok(dir, &["mkfs", "-q", "d.img", "--size", "256M", "--card", "own.toml", "--for", "small-files"]);
    let told = fails(dir, &["mkfs", "e.img", "--size", "64M", "--for", "small-files"]);
    assert!(told.contains("--for needs --card or --probe") && !dir.join("e.img").exists(), "{told}");
    let (section, zone) = shape("d.img");
    assert!([1, 2, 4].contains(&(section * zone)), "parts or the whole of a unit of 8 MiB");
    assert!(fails(dir, &["mkfs", "e.img", "--size", "256M", "--card", "nothing"]).contains("card list"));
    assert!(fails(dir, &["mkfs", "e.img", "--size", "256M", "--probe"]).contains("no such file"));
    assert!(!dir.join("e.img").exists());
}

#[test]
fn a_volume_is_made_on_a_card_that_is_probed_first() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["card", "new", "sd.card", "--profile", "bergmann-stick", "--preconditioned"]);
    ok(dir, &["probe", "bergmann-stick", "--write", "-y", "--profile", "found.toml", "--html", "found.html"]);
    let shown = ok(dir, &["card", "show", "found.toml"]);
    assert!(shown.contains("open_units = 2") && shown.contains("au_bytes = 4194304"), "{shown}");
    assert!(fs::read_to_string(dir.join("found.html")).unwrap().contains("<svg"));
    let said = ok(dir, &["mkfs", "sd.card", "--probe"]);
    assert!(
        said.contains("multiple of 4.00 MiB") && said.contains("Measured on a model of this card"),
        "{said}"
    );
    // The probe wrote to the card, which has counted that.
    let stats: serde_json::Value =
        serde_json::from_str(&ok(dir, &["card", "stats", "--json", "sd.card"])).unwrap();
    assert!(stats["counters"]["host"]["written_bytes"].as_u64().unwrap() > 16 << 20, "{stats}");
}

#[test]
fn a_probe_writes_only_with_permission() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let before = vec![0xA5; 4 << 20];
    fs::write(dir.join("disk"), &before).unwrap();
    assert!(fails(dir, &["probe", "disk", "--write"]).contains("confirm with -y"));
    assert!(fails(dir, &["probe", "disk", "--profile", "found.toml", "--write"]).contains("confirm with -y"));
    let found = ok(dir, &["probe", "disk"]);
    assert!(found.contains("not measured"), "{found}");
    assert!(fs::read(dir.join("disk")).unwrap() == before);
    let json: serde_json::Value = serde_json::from_str(&ok(dir, &["probe", "disk", "--json"])).unwrap();
    assert_eq!(json["written_bytes"], 0);
}

/// A file may be called like a profile: the file takes precedence, and the probe asks before it writes.
#[test]
fn a_probe_prefers_an_existing_file_to_a_profile_of_that_name() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let before = vec![0xA5; 4 << 20];
    fs::write(dir.join("bergmann-stick"), &before).unwrap();
    assert!(fails(dir, &["probe", "bergmann-stick", "--write"]).contains("confirm with -y"));
    assert!(ok(dir, &["probe", "bergmann-stick"]).contains("4 MiB"));
    assert!(fs::read(dir.join("bergmann-stick")).unwrap() == before);
    // A card in a file holds user data. An unreadable card is not a plain file either.
    ok(dir, &["card", "new", "sd.card", "--profile", "survey-class4", "--size", "64M"]);
    assert!(fails(dir, &["probe", "sd.card", "--write"]).contains("confirm with -y"));
    fs::write(dir.join("sd.card.card"), "{").unwrap();
    for arguments in [&["probe", "sd.card", "--write", "-y"][..], &["card", "show", "sd.card"]] {
        let error = fails(dir, arguments);
        assert!(error.contains("sd.card.card: not the state of a card"), "{error}");
    }
    // A profile's file stands for a card of this profile.
    let profile = ok(dir, &["card", "show", "survey-class4"]);
    fs::write(dir.join("own.toml"), &profile).unwrap();
    assert!(ok(dir, &["probe", "own.toml", "--write", "--budget", "64M"]).contains("7600 MiB"));
    assert_eq!(fs::read_to_string(dir.join("own.toml")).unwrap(), profile);
    assert!(fails(dir, &["card", "show", "bergmann"]).contains("card list"));
    assert!(fails(dir, &["probe", "/dev/nothing"]).contains("no such file or device"));
}

#[test]
fn a_served_card_is_probed_over_nbd_if_its_requests_take_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("sd.card");
    let dir = dir.path();
    ok(dir, &["card", "new", "sd.card", "--profile", "survey-ssd", "--size", "256M"]);
    let address = format!("unix:{}", dir.join("socket").display());
    let serve = |real_time| {
        let how = flash::verbs::Serve { real_time, ..flash::verbs::Serve::default() };
        flash::verbs::serve(&path, &address.parse().unwrap(), how).unwrap()
    };
    let serving = serve(false);
    let told = fails(dir, &["probe", &address]);
    assert!(told.contains("virtual clock") && told.contains("--realtime"), "{told}");
    serving.stop().unwrap();
    let serving = serve(true);
    let client = block::nbd::Client::connect(&address.parse().unwrap()).unwrap();
    assert_eq!(block::Export::description(&client).as_deref(), Some("modelled card survey-ssd, real time"));
    drop(client);
    for address in [address.clone(), serving.uri()] {
        let found = ok(dir, &["probe", &address]);
        assert!(found.contains("256 MiB") && found.contains("random reads of 4 KiB"), "{found}");
    }
    assert_eq!(serving.card().with_model(|model| model.counters().host.writes), 0);
    serving.stop().unwrap();
}

#[test]
fn a_study_runs_on_any_card_by_name_or_profile() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let profile = ok(dir, &["card", "show", "survey-class10"]);
    fs::write(dir.join("own.toml"), profile.replace("name = \"survey-class10\"", "name = \"own\"")).unwrap();
    let study = ["study", "-o", "s", "--fs", "flashkit", "--size", "2M", "-e", "mount", "-j", "1"];
    let text = ok(dir, &[&study[..], &["--card", "survey-class10", "--card", "own.toml"]].concat());
    assert!(text.contains("(survey-class10, survey-class10") && text.contains("(own, own"), "{text}");
    let figures = fs::read_to_string(dir.join("s/figures.csv")).unwrap();
    let value = |card: &str| {
        let line = figures.lines().find(|line| line.contains(&format!(",{card},"))).unwrap();
        line.split(',').nth(7).unwrap().to_owned()
    };
    assert_eq!(value("survey-class10"), value("own"), "the same card under another name");

    fs::write(dir.join("other.toml"), profile.replace("channels = 1", "channels = 2")).unwrap();
    for (cards, reason) in [
        (
            &["--card", "survey-class10", "--card", "other.toml"][..],
            "another card has the name survey-class10",
        ),
        (&["--card", "nor-2003"], "--preset nor"),
        (&["--card", "no-such-card"], "no-such-card"),
    ] {
        let told = fails(dir, &[&study[..], cards].concat());
        assert!(told.contains(reason), "{cards:?}: {told}");
    }
}

#[test]
fn a_study_of_our_own_file_system_is_kept_and_compared() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let study = |output: &str| {
        ok(
            dir,
            &["study", "-o", output, "--fs", "flashkit", "--size", "2M", "-e", "1", "-e", "copy", "-j", "1"],
        )
    };
    let text = study("a");
    assert!(text.contains("Buffered write") && text.contains("remove tree"), "{text}");
    let page = fs::read_to_string(dir.join("a/report.html")).unwrap();
    assert!(page.contains("<svg") && page.ends_with("</html>\n"), "{page}");
    assert_eq!(fs::read_to_string(dir.join("a/figures.csv")).unwrap().lines().count(), 1 + 2 + 4);
    study("b");
    assert_eq!(ok(dir, &["report", "a", "--compare", "b"]), "no change\n");
    assert_eq!(ok(dir, &["report", "a"]), text);
    assert!(ok(dir, &["report", "a", "--json"]).contains("\"clock\": \"device\""));
    let listed = ok(dir, &["study", "--list", "--fs", "flashkit"]);
    assert_eq!(listed.lines().count(), 5, "{listed}");
}

#[test]
fn only_a_study_with_rivals_reports_a_missing_guest() {
    let dir = tempfile::tempdir().unwrap();
    let told = |more: &[&'static str]| {
        let small = ["study", "-o", "a", "--size", "2M", "-e", "mount", "-j", "1"];
        let run = flashkit(dir.path(), &[&small[..], more].concat());
        assert!(run.status.success(), "{more:?}");
        String::from_utf8(run.stderr).unwrap().contains("no kernel for the lab's guest")
    };
    assert!(told(&[]) && !told(&["--fs", "flashkit"]));
}

#[test]
fn a_directory_is_measured_repeatedly() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::create_dir(dir.join("place")).unwrap();
    let small = ["--size", "1M", "--runs", "2"];
    let call = |more: &[&'static str]| [&["bench", "place"], &small[..], more].concat();
    let text = ok(dir, &call(&["-o", "before", "-e", "write_fsync"]));
    assert!(text.contains("Write and fsync, 4 KiB records (here, "), "{text}");
    assert!(text.contains("sequential") && text.contains("outliers"), "{text}");
    let json = ok(dir, &call(&["-o", "after", "-e", "2", "--json"]));
    let records: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(records[0]["phases"][1]["runs"]["runs"].as_array().unwrap().len(), 2, "{json}");
    assert!(records[0]["clock"].as_str().unwrap().starts_with("wall"), "{json}");
    assert!(ok(dir, &["report", "before"]).contains("here"));
    ok(dir, &["report", "before", "--compare", "after"]);
    assert_eq!(fs::read_dir(dir.join("place")).unwrap().count(), 0, "it is left as it was");

    assert!(fails(dir, &["bench", "nothing"]).contains("nothing"));
    assert!(fails(dir, &["bench", "place", "-e", "mount"]).contains("its own device"));
    assert!(fails(dir, &["bench", "place", "-e", "2", "--fsync-size", "4EiB"]).contains("bytes are free"));
}

#[test]
fn a_study_without_a_guest_or_a_place_for_results_reports_it() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("file"), "").unwrap();
    let error = fails(dir, &["study", "-o", "file", "--fs", "flashkit"]);
    assert!(error.contains("file: cannot store results"), "{error}");
    let error = fails(dir, &["study", "-o", "a", "--fs", "ext4"]);
    assert!(error.contains("ext4: the kernel for the lab's guest is not in"), "{error}");
    let error = fails(dir, &["report", "nowhere"]);
    assert!(error.contains("nowhere: contains no readable study"), "{error}");
}

/// A worker that the host refused ended the connection by a panic.
#[test]
fn a_server_that_gets_few_threads_answers_its_clients() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!(
            "skipped: the limit holds for other users than root, and this needs root to become one"
        );
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // Cargo's directory may be root's alone.
    let script = format!(
        "chmod 755 .; cp {} flashkit; chmod 755 flashkit
         ./flashkit card new sd.card --profile survey-emmc51 --size 64M > /dev/null; chown 64733 . sd.card
         exec setpriv --reuid 64733 --regid 64733 --clear-groups prlimit --nproc=6 \\
             ./flashkit card serve sd.card --nbd unix:socket",
        env!("CARGO_BIN_EXE_flashkit")
    );
    let mut server = Command::new("bash").args(["-euc", &script]).current_dir(dir).spawn().unwrap();
    let address = format!("unix:{}", dir.join("socket").display()).parse().unwrap();
    let started = std::time::Instant::now();
    let client = loop {
        match block::nbd::Client::connect(&address) {
            Ok(client) => break client,
            Err(error) => assert!(started.elapsed().as_secs() < 60, "{error}"),
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    };
    let wrote = block::Device::write(&client, 0, &[7; 4096]).and_then(|()| block::Device::flush(&client));
    let mut read = [0; 4096];
    let read = block::Device::read(&client, 0, &mut read).map(|()| read[0]);
    drop(client);
    rustix::process::kill_process(rustix::process::Pid::from_child(&server), rustix::process::Signal::INT)
        .unwrap();
    assert!(server.wait().unwrap().success());
    assert!(wrote.is_ok() && read.as_ref().is_ok_and(|first| *first == 7), "{wrote:?} {read:?}");
}

#[test]
fn requests_to_a_card_are_recorded_and_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["card", "new", "sd.card", "--profile", "survey-emmc51", "--size", "256M"]);
    fs::write(dir.join("plan.toml"), "seed = 7\nunreadable_bytes = [{ start = 4096, end = 8192 }]\n")
        .unwrap();
    let socket = dir.join("socket");
    let address = format!("unix:{}", socket.display());
    let mut server = Command::new(env!("CARGO_BIN_EXE_flashkit"))
        .current_dir(dir)
        .args([
            "card",
            "serve",
            "sd.card",
            "--nbd",
            &address,
            "--faults",
            "plan.toml",
            "--trace",
            "asked.fio",
        ])
        .spawn()
        .unwrap();
    let patience = std::time::Instant::now();
    while !socket.exists() && patience.elapsed().as_secs() < 60 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let client = block::nbd::Client::connect(&address.parse().unwrap()).unwrap();
    let mut buf = [0; 4096];
    (0..100).for_each(|n| block::Device::write(&client, n * 8192, &[n as u8; 8192]).unwrap());
    block::Device::read(&client, 0, &mut buf).unwrap();
    assert!(block::Device::read(&client, 4096, &mut buf).is_err(), "the plan requests it");
    block::Device::flush(&client).unwrap();
    drop(client);
    rustix::process::kill_process(rustix::process::Pid::from_child(&server), rustix::process::Signal::INT)
        .unwrap();
    assert!(server.wait().unwrap().success());
    let asked = fs::read_to_string(dir.join("asked.fio")).unwrap();
    assert!(asked.starts_with("fio version 3 iolog") && asked.matches(" write ").count() == 100, "{asked}");
    let told = ok(dir, &["card", "replay", "asked.fio", "--profile", "bergmann-stick", "--json"]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["counters"]["host"]["writes"], 100);
    // All writes go to the front area, in order, and take the same time.
    assert_eq!(told["latencies_ns"]["write"][0][1], 100, "{told}");
    let text = ok(dir, &["card", "replay", "asked.fio", "--profile", "bergmann-stick", "--preconditioned"]);
    assert!(text.contains("time of writes") && text.contains("p99.9 "), "{text}");
    assert!(
        fails(dir, &["card", "replay", "plan.toml", "--profile", "bergmann-stick"])
            .contains("plan.toml: the trace has no requests")
    );
}

#[test]
fn a_profile_is_fitted_to_measured_rates_and_compared_with_them() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let logs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/reference/cards-measured.txt");
    assert!(fails(dir, &["card", "fit", logs]).contains("--only"), "several cards");
    let fit =
        ["card", "fit", logs, "--only", "result_28", "--hold-out", "50%", "--seed", "3", "-o", "a.toml"];
    let said = ok(dir, &fit);
    for part in
        ["70 rows fitted", "held out, seed 3", "limit of open units", "not determined", "times of reads"]
    {
        assert!(said.contains(part), "{part}: {said}");
    }
    let report: serde_json::Value =
        serde_json::from_str(&ok(dir, &[&fit[..], &["--json"]].concat())).unwrap();
    assert_eq!(report["trials"][0]["rows"].as_array().unwrap().len(), 35);
    let compare = ["card", "compare", "a.toml", logs, "--only", "result_28"];
    assert!(ok(dir, &compare).contains("70 rows"));
    let found: serde_json::Value =
        serde_json::from_str(&ok(dir, &[&compare[..], &["--json"]].concat())).unwrap();
    assert!(found["share_within_20_percent"].as_f64().unwrap() > 0.9, "{}", found["median_error"]);
    // The profile is a card like any other.
    ok(dir, &["card", "new", "sd.card", "--profile", "a.toml", "--size", "512M", "--preconditioned"]);
    assert!(ok(dir, &["card", "stats", "sd.card"]).contains("blocks free"));
}

#[test]
fn rows_that_do_not_determine_a_figure_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let rows =
        "op,order,size,rate\nread,seq,512K,43.9MB/s\nwrite,seq,512K,21.3MB/s\nread,random,4K,10.8MB/s\n";
    fs::write(dir.join("pi.csv"), rows).unwrap();
    let said = ok(dir, &["card", "fit", "pi.csv", "-o", "pi.toml"]);
    assert!(
        said.contains("writes at random: no row has any, and other rates do not determine them"),
        "{said}"
    );
    assert!(said.contains("no row writes several units in turn"), "{said}");
    let said = ok(dir, &["card", "fit", "pi.csv", "--size", "32GB", "-o", "pi.toml"]);
    assert!(said.contains("predicted from the random reads and the size"), "{said}");
    assert!(ok(dir, &["card", "compare", "pi.toml", "pi.csv"]).contains("100 % within 20 %"));
    fs::write(dir.join("bad.csv"), rows.replace("21.3MB/s", "fast")).unwrap();
    assert!(fails(dir, &["card", "fit", "bad.csv"]).contains("bad.csv:3: \"fast\" is no rate"));
    assert!(fails(dir, &["card", "fit", "pi.csv", "--hold-out", "2"]).contains("too few"));
}

/// A running command, which ends with the test that started it.
struct Running(std::process::Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_study_is_served_until_an_interrupt() {
    use std::io::{BufRead, BufReader, Read, Write};
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let study = "study -o s --fs flashkit --size 2M --card-size 256M -e mount -j 1";
    ok(dir, &study.split(' ').collect::<Vec<_>>());
    let server = std::process::Command::new(env!("CARGO_BIN_EXE_flashkit"))
        .current_dir(dir)
        .args(["report", "s", "--serve=127.0.0.1:0"])
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut server = Running(server.unwrap());
    let mut output = BufReader::new(server.0.stdout.take().unwrap());
    let mut address = String::new();
    output.read_line(&mut address).unwrap();
    let address = address.trim().strip_prefix("http://").expect(&address).trim_end_matches('/');
    let mut client = std::net::TcpStream::connect(address).unwrap();
    let record = "mount.flashkit.desktop.json";
    write!(client, "GET /file/cells/{record} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.contains("after_reboot"), "{answer}");
    // An open stream of events does not delay the end.
    let mut page = std::net::TcpStream::connect(address).unwrap();
    write!(page, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut status = String::new();
    let mut page = BufReader::new(page);
    page.read_line(&mut status).unwrap();
    assert!(status.starts_with("HTTP/1.1 200"), "{status}");
    rustix::process::kill_process(rustix::process::Pid::from_child(&server.0), rustix::process::Signal::INT)
        .unwrap();
    assert!(server.0.wait().unwrap().success());
    assert!(fails(dir, &["report", "s", "s", "--serve"]).contains("name only one"));
    assert!(fails(dir, &["report", "nothing", "--serve=127.0.0.1:0"]).contains("nothing"));
    let error = fails(dir, &["report", "s", "--since", "6.1"]);
    assert!(error.contains("no cell was measured with this kernel"), "{error}");
}
