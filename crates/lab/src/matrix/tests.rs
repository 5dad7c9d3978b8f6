use super::*;

const TEXT: &str = r#"
experiments = ["write_fsync", "3"]
cards = ["survey-class10", "own.toml"]
sizes = ["1M", "2M"]
ages = ["new", "2:80"]
seeds = [1, 2, 3]
card_size = "512M"

[[file_systems]]
kind = "flashkit"
mount = ["mode=lfs", "mode=adaptive"]
mkfs = ["", "-s 2"]

[[file_systems]]
kind = "ext2"
name = "mine"
make = "mke2fs -q -t ext2 {image}"
check = "e2fsck -fn {image}"

[[workloads]]
name = "log"
steps = "log.steps"
"#;

fn dir() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let card = Profile::named("survey-a1").unwrap();
    fs::write(dir.path().join("own.toml"), Profile { name: "own".into(), ..card }.to_toml()).unwrap();
    fs::write(dir.path().join("log.steps"), "{\"write\": {\"path\": \"a\", \"at\": 0, \"length\": 5}}\n")
        .unwrap();
    dir
}

fn guest() -> Programs {
    let path = PathBuf::from;
    Programs { machine: Machine::Virtual, kernel: path("linux"), agent: path("agent"), flashkit: None }
}

#[test]
fn a_matrix_expands_to_all_combinations_with_names_of_their_own() {
    let dir = dir();
    let matrix = Matrix::parse(TEXT, &dir.path().join("m.toml"), Reach::Anywhere).unwrap();
    let plan = matrix.plan(Some(guest()), dir.path().to_owned(), 1);
    // 2 cards, 4 + 1 file systems, 2 experiments and a workload, 2 sizes, 2 ages, 3 seeds.
    assert_eq!(plan.cells.len(), 2 * 5 * 3 * 2 * 2 * 3);
    let ids: BTreeSet<String> = plan.cells.iter().map(Cell::id).collect();
    assert_eq!(ids.len(), plan.cells.len());
    for wanted in [
        "write_fsync.flashkit__-s_2_mode=lfs.card+survey-class10.size-1M.aged-2-80.seed-3",
        "own-log.mine.card+own.size-2M.seed-1",
    ] {
        assert!(ids.contains(wanted), "{wanted} is not in {ids:#?}");
    }
    let cell = plan.cells.iter().find(|cell| cell.id().contains("size-2M.aged-2-80.seed-3")).unwrap();
    assert_eq!((plan.scale_of(cell).buffered_bytes, plan.seed_of(cell)), (2 << 20, 3));
    assert_eq!((plan.age_of(cell), plan.costs), ("2:80".parse().ok(), Costs::LeftOut));

    let alone = matrix.plan(None, dir.path().to_owned(), 1);
    assert!(alone.cells.iter().all(|cell| cell.file_system.kind == OURS));
    assert_eq!(matrix.left_out(None), plan.cells.len() - alone.cells.len());
    assert_eq!(matrix.inputs.len(), 3, "the matrix, a card and a workload: {:?}", matrix.inputs);
}

#[test]
fn an_error_names_the_file_the_line_and_the_key() {
    let dir = dir();
    let file = dir.path().join("m.toml");
    let told = |old: &str, new: &str| {
        assert!(TEXT.contains(old), "{old}");
        let error = Matrix::parse(&TEXT.replacen(old, new, 1), &file, Reach::Anywhere).unwrap_err();
        error.to_string().strip_prefix(&format!("{}:", file.display())).unwrap().to_owned()
    };
    for (old, new, wanted) in [
        ("\"3\"", "\"6\"", "2: experiments: there is no \"6\"; choose from buffered_write"),
        ("own.toml", "nothing.toml", "3: cards: "),
        ("\"2M\"", "\"2X\"", "4: sizes: \"2X\""),
        ("\"2:80\"", "\"2:99\"", "5: ages: new, or TIMES"),
        ("[1, 2, 3]", "[1, 2, 2]", "6: seeds: 2 is there twice"),
        ("[1, 2, 3]", "[1, 2, \"x\"]", "6: invalid type"),
        ("card_size", "card_sise", "7: unknown field `card_sise`"),
        ("{image}\"", "\"", "17: make: the command does not contain {image}"),
        ("log.steps", "none.steps", "22: steps: "),
        ("steps = \"log.steps\"", "", "21: workloads: log: name one file"),
        ("kind = \"ext2\"", "kind = \"e/2\"", "15: kind: "),
        ("sizes = [", "sizes = ", "4: "),
    ] {
        let said = told(old, new);
        assert!(said.starts_with(wanted), "{said:?} and not {wanted:?}");
    }
    fs::write(dir.path().join("log.steps"), "\"done\"\nnonsense\n").unwrap();
    let error = Matrix::parse(TEXT, &file, Reach::Anywhere).unwrap_err();
    assert!(error.line == 22 && error.what.contains("line 2"), "{error}");
}

#[test]
fn a_kernel_is_a_column_of_its_own() {
    let dir = dir();
    for (name, release) in [("old", "6.1.0"), ("new", "6.12.0")] {
        let kernel = dir.path().join(name);
        fs::create_dir(&kernel).unwrap();
        for program in ["linux", "guest-agent"] {
            fs::write(kernel.join(program), "").unwrap();
        }
        let note = format!(
            "{{\"release\": \"{release}\", \"source\": \"a tree\", \"config_sha256\": \"0123456789abcdef\"}}"
        );
        fs::write(kernel.join("linux.json"), note).unwrap();
    }
    let text = "experiments = [\"mount\"]\nsizes = [\"1M\"]\n[[file_systems]]\nkind = \"ext4\"\n[[file_systems]]\n\
                kind = \"flashkit\"\n[[kernels]]\npath = \"old\"\n[[kernels]]\npath = \"new\"\nname = \"6.12\"\n";
    let matrix = Matrix::parse(text, &dir.path().join("m.toml"), Reach::Anywhere).unwrap();
    let plan = matrix.plan(None, dir.path().to_owned(), 1);
    let ids: Vec<String> = plan.cells.iter().map(Cell::id).collect();
    let wanted = [
        "mount.ext4.desktop.size-1M.kernel-6.1.0-01234567.seed-2012",
        "mount.ext4.desktop.size-1M.kernel-6.12.seed-2012",
        "mount.flashkit.desktop.size-1M.seed-2012",
    ];
    assert_eq!(ids, wanted);
    assert_eq!(plan.programs_of(&plan.cells[1]).unwrap().kernel, dir.path().join("new/linux"));
    assert_eq!(plan.cells[1].subject(), "ext4, Linux 6.12");
    let error =
        Matrix::parse(&text.replace("\"old\"", "\"none\""), &dir.path().join("m.toml"), Reach::Anywhere)
            .unwrap_err();
    assert!(error.line == 8 && error.key == "kernels", "{error}");
}

#[test]
fn options_of_mkfs_need_trust_as_commands_do() {
    let dir = dir();
    let runs = |file_system: &str| {
        let text = format!("sizes = [\"1M\"]\n[[file_systems]]\n{file_system}");
        Matrix::parse(&text, &dir.path().join("m.toml"), Reach::Below).unwrap().runs_commands()
    };
    assert!(!runs("kind = \"f2fs\"\nmount = [\"mode=lfs\"]"));
    assert!(!runs("kind = \"flashkit\"\nmkfs = [\"-s 2\"]"), "no program is run");
    // mkfs.f2fs would format the file.
    assert!(runs("kind = \"f2fs\"\nmkfs = [\"-c /home/user/photos\"]"));
}

#[test]
fn a_matrix_of_somebody_else_names_only_files_beside_it() {
    let dir = dir();
    let file = dir.path().join("bundle/m.toml");
    let parse = |line: &str, reach| {
        Matrix::parse(&format!("{line}\n[[file_systems]]\nkind = \"flashkit\"\n"), &file, reach)
    };
    fs::create_dir(dir.path().join("bundle")).unwrap();
    for line in ["cards = [\"../own.toml\"]", "[[workloads]]\nname = \"w\"\nsteps = \"../log.steps\""] {
        parse(line, Reach::Anywhere).unwrap();
        let error = parse(line, Reach::Below).unwrap_err();
        assert!(error.what.contains("outside of the directory of the matrix"), "{error}");
    }
    // It would be read without an end.
    let endless = parse("[[workloads]]\nname = \"w\"\ntrace = \"/dev/zero\"", Reach::Below).unwrap_err();
    assert_eq!((endless.line, endless.key.as_str()), (3, "trace"));
}

#[test]
fn the_number_of_cells_is_limited() {
    let dir = dir();
    let list =
        |count: u32, value: &dyn Fn(u32) -> String| (1..=count).map(value).collect::<Vec<_>>().join(", ");
    let parse = |seeds: u32| {
        let text = format!(
            "experiments = [\"mount\"]\nseeds = [{}]\nsizes = [{}]\n[[file_systems]]\nkind = \"flashkit\"\n",
            list(seeds, &|n| n.to_string()),
            list(1024, &|n| format!("\"{n}K\"")),
        );
        Matrix::parse(&text, &dir.path().join("m.toml"), Reach::Anywhere)
    };
    parse(1024).unwrap();
    let error = parse(1025).unwrap_err().to_string();
    assert!(error.contains("it has 1049600 cells, at most 1048576 are possible"), "{error}");
}

#[test]
fn each_paper_has_a_matrix_and_a_page() {
    let papers = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../papers");
    let folders = fs::read_dir(&papers).unwrap().map(|entry| entry.unwrap().path());
    let folders: Vec<PathBuf> = folders.filter(|path| path.is_dir()).collect();
    assert!(folders.len() >= 2, "{folders:?}");
    let list = fs::read_to_string(papers.join("README.md")).unwrap();
    for folder in folders {
        let matrix = Matrix::read(&folder.join("matrix.toml"), Reach::Anywhere).unwrap();
        let plan = matrix.plan(Some(guest()), papers.clone(), 1);
        assert!(plan.cells.iter().any(|cell| cell.file_system.kind == OURS), "{}", folder.display());
        assert!(plan.cells.iter().any(|cell| cell.file_system.kind != OURS), "{}", folder.display());
        let name = folder.file_name().unwrap().to_string_lossy();
        assert!(folder.join("README.md").is_file() && list.contains(&*name), "{name}");
    }
}
