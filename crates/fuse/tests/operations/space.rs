//! Full volumes, the largest file, and trimming.

use super::*;

#[test]
fn free_blocks_are_trimmed() {
    needs_fuse!();
    let mut bench = Bench::mounted(128);
    fs::write(bench.path("file"), noise(20 << 20, 3)).unwrap();
    File::open(bench.path("file")).unwrap().sync_all().unwrap();
    fs::remove_file(bench.path("file")).unwrap();
    let stored = || fs::metadata(bench.image()).unwrap().blocks() * 512;
    let before = stored();
    let said = bench.shell("fstrim -v .");
    assert!(said.contains("trimmed"), "{said}");
    assert!(stored() + (16 << 20) < before, "{before} bytes became {}", stored());
    if rustix::process::geteuid().is_root() {
        bench.shell("! setpriv --reuid 65534 --clear-groups fstrim . 2> /dev/null");
    }
    bench.unmount_clean();
}

#[test]
fn filling_the_volume_fails_without_a_sync() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    fs::write(bench.path("old"), "looked at, so that the kernel knows all of it").unwrap();
    fs::metadata(bench.path("old")).unwrap();
    for name in ["new", "old"] {
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).open(bench.path(name)).unwrap();
        let chunk = noise(256 << 10, 7);
        let mut written = 0;
        let error = loop {
            if let Err(error) = file.write_all_at(&chunk, written) {
                break error;
            }
            written += chunk.len() as u64;
            assert!(written < 64 << 20, "64 MiB hold less than 64 MiB");
        };
        assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
        let stored = written - chunk.len() as u64;
        assert!(file.sync_all().is_err(), "the last write is lost");
        assert!(file.sync_all().is_ok(), "and the loss was reported");
        assert!(file.metadata().is_ok());
        drop(file);
        bench.unmount_clean();
        bench.mount("");
        let kept = fs::read(bench.path(name)).unwrap();
        assert!(kept.len() as u64 >= stored, "only the last write is lost");
        assert!(kept.chunks(chunk.len()).take((stored >> 18) as usize).all(|part| part == chunk));
        fs::remove_file(bench.path(name)).unwrap();
        File::open(bench.path("")).unwrap().sync_all().unwrap();
    }
    bench.unmount();
}

#[test]
fn each_of_two_writers_that_take_turns_learns_of_a_full_volume() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let files = ["one", "two"].map(|name| File::create(bench.path(name)).unwrap());
    let chunk = noise(256 << 10, 9);
    let (mut told, mut written) = ([false; 2], [0; 2]);
    while told != [true; 2] {
        for ((file, told), written) in files.iter().zip(&mut told).zip(&mut written) {
            match file.write_all_at(&chunk, *written) {
                Ok(()) => *written += chunk.len() as u64,
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
                    *told = true;
                }
            }
        }
        assert!(written.iter().sum::<u64>() < 128 << 20, "128 MiB on 64 MiB: {told:?}");
    }
    drop(files);
    bench.unmount_clean();
}

/// The call that fills a volume.
#[derive(Debug, Clone, Copy)]
enum FilledBy {
    Writing,
    Allocation,
    Copying,
}

#[test]
fn data_accepted_while_there_was_space_is_kept() {
    needs_fuse!();
    // Space is short from the beginning (64 MiB), or becomes short (256 MiB).
    for mebibytes in [64, 256] {
        for filled_by in [FilledBy::Writing, FilledBy::Allocation, FilledBy::Copying] {
            let mut bench = Bench::mounted(mebibytes);
            let early: Vec<File> =
                (0..3).map(|n| File::create(bench.path(&format!("early{n}"))).unwrap()).collect();
            let text = noise(300_000, 5);
            for file in &early {
                file.write_all_at(&text, 0).unwrap();
            }
            let filler = File::create(bench.path("filler")).unwrap();
            let chunk = noise(256 << 10, 7);
            fs::write(bench.path("source"), &chunk).unwrap();
            let source = File::open(bench.path("source")).unwrap();
            let fills = |mut offset| match filled_by {
                FilledBy::Writing => filler.write_all_at(&chunk, offset).is_ok(),
                FilledBy::Allocation => {
                    let bytes = chunk.len() as u64;
                    rustix::fs::fallocate(&filler, rustix::fs::FallocateFlags::empty(), offset, bytes).is_ok()
                }
                FilledBy::Copying => {
                    let (mut from, to) = (0, Some(&mut offset));
                    rustix::fs::copy_file_range(&source, Some(&mut from), &filler, to, chunk.len())
                        .is_ok_and(|count| count == chunk.len())
                }
            };
            let mut offset = 0;
            while fills(offset) {
                offset += chunk.len() as u64;
                assert!(offset < mebibytes << 20, "{mebibytes} {filled_by:?}: it holds less than its size");
            }
            for file in early {
                file.sync_all().unwrap();
            }
            drop((filler, source));
            bench.unmount_clean();
            bench.mount("");
            for n in 0..3 {
                assert!(fs::read(bench.path(&format!("early{n}"))).unwrap() == text);
            }
            bench.unmount();
        }
    }
}

#[test]
fn writing_past_the_largest_file_fails() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let file = File::create(bench.path("file")).unwrap();
    let far = 5 << 40;
    // The kernel accepts the write into its page cache; fsync(2) returns the error.
    file.write_all_at(b"x", far).unwrap();
    let error = file.sync_all().unwrap_err();
    assert_eq!(error.raw_os_error(), Some(Errno::FBIG.raw_os_error()));
    assert!(file.set_len(far).is_err());
    drop(file);
    bench.unmount_clean();
}

#[test]
fn a_write_past_the_largest_file_costs_nothing_before_that() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let (path, half) = (bench.path("file"), 300_000);
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    // The largest size lies below 4 TiB.
    let (mut most, mut beyond) = (0_u64, 1 << 42);
    while beyond - most > 1 {
        let size = most.midpoint(beyond);
        *(if file.set_len(size).is_ok() { &mut most } else { &mut beyond }) = size;
    }
    file.set_len(0).unwrap();
    file.write_all_at(&[1; 10_000], 0).unwrap();
    file.write_all_at(&[2; 600_000], most - half).unwrap();
    let fbig = Some(Errno::FBIG.raw_os_error());
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), fbig);
    // It is told once, and no page of it waits any longer.
    file.sync_all().unwrap();
    drop(file);
    bench.unmount_clean();
    bench.mount("");
    let file = File::options().read(true).write(true).open(&path).unwrap();
    assert_eq!(file.metadata().unwrap().len(), most);
    let (mut first, mut last) = ([0; 10_000], vec![0; half as usize]);
    file.read_exact_at(&mut first, 0).unwrap();
    file.read_exact_at(&mut last, most - half).unwrap();
    assert!(first == [1; 10_000] && last.iter().all(|byte| *byte == 2));
    file.write_all_at(b"x", most).unwrap();
    assert_eq!(file.sync_all().unwrap_err().raw_os_error(), fbig);
    // The kernel keeps the size until the file is truncated.
    assert_eq!(file.metadata().unwrap().len(), most + 1);
    file.set_len(10_000).unwrap();
    let mut end = File::options().append(true).open(&path).unwrap();
    end.write_all(b"end").unwrap();
    end.sync_all().unwrap();
    drop((file, end));
    bench.unmount_clean();
}

#[test]
fn a_full_volume_reports_no_space_and_stays_intact() {
    needs_fuse!();
    let mut bench = Bench::mounted(64);
    let chunk = noise(1 << 20, 11);
    let mut kept = 0;
    let error = loop {
        let file = File::create(bench.path(&format!("f{kept}"))).unwrap();
        if let Err(error) = file.write_all_at(&chunk, 0).and_then(|()| file.sync_all()) {
            break error;
        }
        kept += 1;
        assert!(kept < 64, "64 MiB hold less than 64 MiB");
    };
    assert_eq!(error.raw_os_error(), Some(Errno::NOSPC.raw_os_error()));
    for number in 0..kept {
        assert!(fs::read(bench.path(&format!("f{number}"))).unwrap() == chunk);
    }
    fs::remove_file(bench.path("f0")).unwrap();
    fs::remove_file(bench.path("f1")).unwrap();
    File::open(bench.path("")).unwrap().sync_all().unwrap();
    let last = OpenOptions::new().write(true).create_new(true).mode(0o600).open(bench.path("last")).unwrap();
    last.write_all_at(&chunk, 0).unwrap();
    last.sync_all().unwrap();
    drop(last);
    bench.unmount_clean();
    bench.mount("");
    assert!(fs::read(bench.path("last")).unwrap() == chunk);
    bench.unmount();
}
