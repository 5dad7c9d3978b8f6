//! Volumes on NBD exports of other projects' servers: qemu-nbd and nbdkit.

mod support;

use std::{
    fs::{self, File},
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use support::{fails, flashkit, ok};

/// A server that is ended on drop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        // It has written everything by the last flush. A failure cannot be reported here.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server and waits until it answers at a URI. Returns None with a message if the program is missing.
fn serve(dir: &Path, program: &str, arguments: &[&str], uri: &str) -> Option<Server> {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(dir).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(child) = command.spawn() else {
        eprintln!("skipped: {program} is missing");
        return None;
    };
    let server = Server(child);
    let until = Instant::now() + Duration::from_secs(60);
    let uri: block::nbd::Uri = uri.parse().unwrap();
    while block::nbd::Client::open(&uri).is_err() {
        assert!(Instant::now() < until, "{program} does not answer at {uri}");
        thread::sleep(Duration::from_millis(20));
    }
    Some(server)
}

fn run(dir: &Path, program: &str, arguments: &[&str]) {
    let output = Command::new(program).args(arguments).current_dir(dir).output().expect("it is installed");
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes a volume on an export, changes it by several verbs, and reads it back.
fn exercise(dir: &Path, uri: &str) {
    fs::write(dir.join("file"), vec![3; 3_000_000]).unwrap();
    let path = |name: &str| format!("{uri}:{name}");
    ok(dir, &["mkfs", "-q", "-f", uri, "-l", "SERVED"]);
    assert!(fails(dir, &["mkfs", "-q", uri]).contains("carries F2FS; -f overwrites it"));
    ok(dir, &["cp", "file", &path("/a")]);
    ok(dir, &["mkdir", &path("/dir")]);
    ok(dir, &["mv", &path("/a"), &path("/dir/b")]);
    assert_eq!(ok(dir, &["cat", &path("/dir/b")]).into_bytes(), vec![3; 3_000_000]);
    assert!(ok(dir, &["info", uri]).contains("SERVED"));
    assert!(ok(dir, &["fsck", "-q", uri]).contains("clean"));
    if rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists() {
        fs::create_dir_all(dir.join("mnt")).unwrap();
        ok(dir, &["mount", uri, "mnt"]);
        fs::write(dir.join("mnt/new"), vec![4; 2_000_000]).unwrap();
        run(dir, "umount", &["mnt"]);
        // The process that serves the mount may still be closing the volume.
        let until = Instant::now() + Duration::from_secs(60);
        while !flashkit(dir, &["cat", &path("/new")]).status.success() && Instant::now() < until {
            thread::sleep(Duration::from_millis(50));
        }
        assert_eq!(ok(dir, &["cat", &path("/new")]).into_bytes(), vec![4; 2_000_000]);
    }
}

#[test]
fn a_volume_on_an_export_of_qemu_nbd_is_used_in_place() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    let Ok(made) = Command::new("qemu-img")
        .args(["create", "-q", "-f", "qcow2", "disk.qcow2", "100M"])
        .current_dir(dir)
        .status()
    else {
        return eprintln!("skipped: qemu-img is missing");
    };
    assert!(made.success());
    let socket = dir.join("socket");
    let socket = socket.to_str().unwrap();
    let uri = format!("nbd+unix:///a%20disk?socket={socket}");
    let arguments = ["-t", "-f", "qcow2", "-x", "a disk", "-k", socket, "disk.qcow2"];
    let Some(server) = serve(dir, "qemu-nbd", &arguments, &uri) else { return };
    exercise(dir, &uri);
    let error = fails(dir, &["ls", &format!("nbd+unix:///other?socket={socket}")]);
    assert!(error.contains("does not serve the export \"other\""), "{error}");
    let error = fails(dir, &["ls", &uri, "--format", "qcow2"]);
    assert!(error.contains("the server of an NBD export decodes its format"), "{error}");
    drop(server);
    let error = fails(dir, &["ls", &uri]);
    assert!(error.contains(&uri), "{error}");
    run(dir, "qemu-img", &["check", "-q", "disk.qcow2"]);
    run(dir, "qemu-img", &["convert", "-O", "raw", "disk.qcow2", "raw"]);
    run(dir, "fsck.f2fs", &["--dry-run", "raw"]);
    assert_eq!(ok(dir, &["cat", "raw:/dir/b"]).into_bytes(), vec![3; 3_000_000]);
}

#[test]
fn partitions_and_read_only_exports_are_used_over_tcp() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    File::create(dir.join("disk")).and_then(|file| file.set_len(96 << 20)).unwrap();
    let table = "label: gpt\nstart=16MiB,size=64MiB,name=root\n";
    fs::write(dir.join("table"), table).unwrap();
    run(dir, "sh", &["-c", "PATH=$PATH:/sbin:/usr/sbin sfdisk -q disk < table"]);
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let uri = format!("nbd://127.0.0.1:{port}/");
    let arguments = ["-t", "-f", "raw", "-b", "127.0.0.1", "-p", &port, "disk"];
    let Some(server) = serve(dir, "qemu-nbd", &arguments, &uri) else { return };
    exercise(dir, &format!("{uri}#root"));
    assert!(ok(dir, &["partitions", &uri]).contains("F2FS"));
    drop(server);
    let Some(_server) = serve(dir, "qemu-nbd", &[&["-r"], &arguments[..]].concat(), &uri) else { return };
    let file = format!("{uri}#root:/dir/b");
    assert_eq!(ok(dir, &["cat", &file]).into_bytes(), vec![3; 3_000_000]);
    let error = fails(dir, &["rm", &file]);
    assert!(error.contains("the NBD server offers it read-only"), "{error}");
}

#[test]
fn a_volume_on_an_export_of_nbdkit_is_used_in_place() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path();
    File::create(dir.join("disk")).and_then(|file| file.set_len(100 << 20)).unwrap();
    let socket = dir.join("socket");
    let socket = socket.to_str().unwrap();
    let uri = format!("nbd+unix:///?socket={socket}");
    let Some(server) = serve(dir, "nbdkit", &["-f", "-U", socket, "file", "disk"], &uri) else { return };
    exercise(dir, &uri);
    drop(server);
    run(dir, "fsck.f2fs", &["--dry-run", "disk"]);
}
