//! The page of a running study, through its HTTP server.

use std::{
    fs,
    io::{BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    path::Path,
    thread,
};

use flashkit_lab::{
    experiment::Experiment,
    live::Server,
    plan::Plan,
    preset::Preset,
    progress,
    record::{Record, Records},
    rivals::FileSystem,
    scale::Scale,
    stop::Stop,
    study::{self, run_cell},
    systems::OURS,
};

/// Runs `client` beside a server of the study in `dir`.
fn served(dir: &Path, client: impl FnOnce(SocketAddr)) {
    let server = Server::bind((Ipv4Addr::LOCALHOST, 0).into(), dir).unwrap();
    let address = server.address().unwrap();
    let stop = Stop::default();
    thread::scope(|scope| {
        let running = scope.spawn(|| server.run(&stop));
        // A failed assertion ends the server, too.
        struct End<'a>(&'a Stop);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.wish();
            }
        }
        let end = End(&stop);
        client(address);
        drop(end);
        running.join().unwrap().unwrap();
    });
}

/// Sends bytes and returns the whole answer.
fn answer(address: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    let mut bytes = Vec::new();
    // The server may reset a connection whose request it has not read to the end.
    let _ = stream.write_all(request);
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

fn get(address: SocketAddr, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    answer(address, request.as_bytes())
}

/// The events of a stream.
struct Events(BufReader<TcpStream>);

impl Events {
    fn of(address: SocketAddr) -> Events {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(stream, "GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        Events(BufReader::new(stream))
    }

    /// Waits for an event that contains `wanted`.
    fn wait_for(&mut self, wanted: &str) -> String {
        loop {
            let mut line = String::new();
            assert_ne!(self.0.read_line(&mut line).unwrap(), 0, "the stream ended before {wanted}");
            if line.starts_with("data: ") && line.contains(wanted) {
                return line;
            }
        }
    }
}

fn plan(dir: &Path) -> Plan {
    let experiments = [Experiment::Mount, Experiment::WriteFsync];
    let cells = Plan::cells_without_guest(&experiments, &[FileSystem::new(OURS)], &[Preset::Desktop], &[]);
    Plan { card_bytes: Some(256 << 20), ..Plan::of(cells, Scale::of_file(1 << 20), dir.to_owned()) }
}

fn measured(dir: &Path) -> Record {
    let plan = plan(dir);
    run_cell(&plan, &plan.cells[0], &Stop::default()).unwrap().unwrap()
}

#[test]
fn a_record_appears_in_the_stream_of_an_open_page() {
    let dir = tempfile::tempdir().unwrap();
    let study = dir.path().join("study");
    let records = Records::open(&study).unwrap();
    let mut record = measured(dir.path());
    served(&study, |address| {
        let mut events = Events::of(address);
        assert!(events.wait_for("\"cells\":[]").contains("\"ended\":0"));
        records.put(&record).unwrap();
        let event = events.wait_for("mount.flashkit.desktop");
        assert!(event.contains("after_reboot") && event.contains("\"failed\":0"), "{event}");
        // The same cell again, now failed.
        record.failure = Some("the card is full".into());
        records.put(&record).unwrap();
        assert!(events.wait_for("the card is full").contains("\"failed\":1"));
        // A page that is opened later gets all cells at once.
        assert!(Events::of(address).wait_for("\"cells\":[{").contains("the card is full"));
    });
}

#[test]
fn a_running_study_shows_its_progress_and_then_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let study = dir.path().join("study");
    let records = Records::open(&study).unwrap();
    served(&study, |address| {
        let mut events = Events::of(address);
        events.wait_for("\"cells\":[]");
        let outcome = study::run(&plan(dir.path()), &records, &Stop::default(), &mut |_| {}).unwrap();
        assert_eq!(outcome.done, 2);
        let event = events.wait_for("\"is_over\":true");
        assert!(event.contains("\"ended\":2"), "{event}");
        let progress = progress::Progress::read(&study).unwrap();
        assert_eq!((progress.cells, progress.ended, progress.kept), (2, 2, 0));
    });
}

#[test]
fn the_page_loads_nothing_from_elsewhere_and_its_files_are_served() {
    let dir = tempfile::tempdir().unwrap();
    let study = dir.path().join("study");
    Records::open(&study).unwrap().put(&measured(dir.path())).unwrap();
    served(&study, |address| {
        let page = get(address, "/");
        assert!(page.starts_with("HTTP/1.1 200") && page.contains("default-src 'none'"), "{page}");
        assert!(page.contains("/page.js") && !page.contains("http://") && !page.contains("https://"));
        let script = get(address, "/page.js");
        assert!(script.contains("new EventSource(\"/events\")") && !script.contains("innerHTML"), "{script}");
        let record = get(address, "/file/cells/mount.flashkit.desktop.json");
        assert!(record.contains("application/json") && record.contains("\"after_reboot\""), "{record}");
        assert!(get(address, "/file/runs/mount.flashkit.desktop.json").contains("\"took_s\""));
    });
}

#[test]
fn hostile_requests_get_nothing_and_the_server_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let study = dir.path().join("study");
    Records::open(&study).unwrap();
    fs::write(dir.path().join("secret.json"), "SECRET").unwrap();
    fs::write(study.join("secret.json"), "SECRET").unwrap();
    served(&study, |address| {
        let long = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "a".repeat(100_000));
        let many = format!("GET / HTTP/1.1\r\nHost: localhost\r\n{}\r\n", "X: 1\r\n".repeat(2000));
        for (request, status) in [
            ("GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n", "421"),
            ("GET /events HTTP/1.1\r\nHost: evil.example:8470\r\n\r\n", "421"),
            ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n", "421"),
            ("GET / HTTP/1.1\r\n\r\n", "421"),
            ("GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n", "421"),
            ("POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n", "405"),
            ("DELETE /file/cells/a.json HTTP/1.1\r\nHost: localhost\r\n\r\n", "405"),
            ("HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n", "405"),
            ("GET /secret.json HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"),
            ("GET /file/cells/../../secret.json HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"),
            ("GET /file/cells/..%2f..%2fsecret.json HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"),
            ("GET /file/cells/..%2fsecret.json HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"),
            ("nonsense\r\n\r\n", "400"),
            ("\0\0\0\0\r\n\r\n", "400"),
            (&long, "431"),
            (&many, "431"),
        ] {
            let request = request.replacen("\r\n\r\n", "\r\nConnection: close\r\n\r\n", 1);
            let answer = answer(address, request.as_bytes());
            let about = &request[..request.len().min(80)];
            assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{about:?}: {answer}");
            assert!(!answer.contains("SECRET"), "{about:?}");
        }
        // Connections that say nothing, and one that breaks off, do not stop the others.
        let silent: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
        TcpStream::connect(address).unwrap().write_all(b"GET / HT").unwrap();
        assert!(get(address, "/").starts_with("HTTP/1.1 200"));
        drop(silent);
    });
}
