//! JSON output: each key has one type, whatever names a volume contains.

mod support;

use std::{ffi::OsStr, fs, os::unix::ffi::OsStrExt, process::Command};

use serde_json::Value;
use support::ok;

fn json(dir: &std::path::Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&ok(dir, arguments)).unwrap()
}

#[test]
fn names_may_be_any_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let odd = OsStr::from_bytes(b"a\xff\n\\b");
    fs::create_dir(dir.join("tree")).unwrap();
    fs::write(dir.join("tree").join(odd), "odd").unwrap();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M", "--from", "tree"]);
    assert_eq!(ok(dir, &["ls", "v.img"]), "a\\xff\\n\\\\b\n");
    let listed: serde_json::Value = serde_json::from_str(&ok(dir, &["ls", "--json", "v.img"])).unwrap();
    assert_eq!(listed[0]["name"], r"a\xff\n\\b", "always a string");
    assert_eq!(listed[0]["name_bytes"], serde_json::json!(odd.as_bytes()));
    let inside = [OsStr::new("v.img:/"), odd].join(OsStr::new(""));
    let call = |arguments: &[&OsStr]| {
        let output = Command::new(env!("CARGO_BIN_EXE_flashkit")).current_dir(dir).args(arguments).output();
        let output = output.expect("it starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    assert_eq!(call(&["cat".as_ref(), &inside]), b"odd");
    call(&[
        "setfattr".as_ref(),
        &inside,
        "-n".as_ref(),
        "user.a".as_ref(),
        "-v".as_ref(),
        OsStr::from_bytes(b"\xfe"),
    ]);
    let attributes = call(&["getfattr".as_ref(), "--json".as_ref(), &inside]);
    let attributes: serde_json::Value = serde_json::from_slice(&attributes).unwrap();
    assert_eq!(attributes[0]["value"], r"\xfe");
    assert_eq!(attributes[0]["value_bytes"], serde_json::json!([0xfe]));
    assert!(attributes[0].get("name_bytes").is_none(), "{attributes}");
    call(&["cp".as_ref(), &inside, ".".as_ref()]);
    assert_eq!(fs::read(dir.join(odd)).unwrap(), b"odd");
    call(&["mv".as_ref(), &inside, "v.img:/plain\nname".as_ref()]);
    let listed: serde_json::Value = serde_json::from_str(&ok(dir, &["ls", "--json", "v.img"])).unwrap();
    assert_eq!(listed[0]["name"], "plain\nname", "JSON has escapes of its own");
}

/// All verbs print modes as octal digits, and names under the same keys.
#[test]
fn modes_in_json_are_octal_digits() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    ok(dir, &["mkfs", "-q", "v.img", "--size", "64M"]);
    ok(dir, &["mkdir", "-m", "1750", "v.img:/d"]);
    ok(dir, &["ln", "-s", "target", "v.img:/d/link"]);
    assert_eq!(json(dir, &["stat", "v.img:/d", "--json"])["mode"], "1750");
    assert_eq!(json(dir, &["ls", "v.img", "--json"])[0]["mode"], "1750");
    assert_eq!(json(dir, &["dump", "inode", "v.img:/d", "--json"])["mode"], "0041750");
    assert_eq!(json(dir, &["dump", "inode", "v.img:/d", "--json"])["name"], "d");
    let link = json(dir, &["stat", "v.img:/d/link", "--json"]);
    assert_eq!((&link["target"], link.get("target_bytes")), (&Value::from("target"), None));
    assert!(json(dir, &["stat", "v.img:/d", "--json"]).get("target").is_none());
}
