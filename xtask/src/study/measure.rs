//! Time and memory of a program, as measured by the host's kernel.

use std::{
    fs,
    process::{ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use serde::Serialize;
use tempfile::NamedTempFile;
use wait4::Wait4;

/// Program that runs another one and reports its memory.
const TIME: &str = "/usr/bin/time";

/// Writer of the standard input of a program.
type Feed<'a> = Box<dyn FnOnce(ChildStdin) -> Result<()> + Send + 'a>;

/// Costs of a run.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct Cost {
    /// Wall time in seconds.
    pub wall_s: f64,
    /// Processor time in seconds, of the program and of the kernel for it.
    pub cpu_s: f64,
    /// Maximum resident memory in bytes.
    pub memory_bytes: u64,
}

impl Cost {
    /// Runs a program to its end and drops its output.
    ///
    /// # Errors
    /// It cannot be started or does not succeed.
    pub fn of(command: &mut Command) -> Result<Cost> {
        Cost::with_input(command, None)
    }

    /// Runs a program whose standard input `feed` writes, to its end, and drops its output.
    ///
    /// # Errors
    /// It cannot be started or does not succeed, or `feed` fails.
    pub fn fed(command: &mut Command, feed: impl FnOnce(ChildStdin) -> Result<()> + Send) -> Result<Cost> {
        Cost::with_input(command, Some(Box::new(feed)))
    }

    fn with_input(command: &mut Command, feed: Option<Feed<'_>>) -> Result<Cost> {
        let shown = format!("{command:?}");
        let memory = NamedTempFile::new()?;
        // GNU time is used because the kernel also attributes the parent's memory to a program, and this
        // process holds whole trees.
        let mut timed = Command::new(TIME);
        timed.args(["-f", "%M", "-o"]).arg(memory.path());
        timed.arg("--").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => timed.env(name, value),
                None => timed.env_remove(name),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            timed.current_dir(dir);
        }
        let started = Instant::now();
        let mut child = timed
            .stdin(if feed.is_some() { Stdio::piped() } else { Stdio::null() })
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot start {TIME} for {shown}"))?;
        let stdin = child.stdin.take();
        let (fed, end) = std::thread::scope(|scope| {
            let feeding = feed.zip(stdin).map(|(feed, stdin)| scope.spawn(move || feed(stdin)));
            let end = child.wait4();
            (feeding.map_or(Ok(()), |feeding| feeding.join().expect("a feed does not panic")), end)
        });
        let end = end.with_context(|| shown.clone())?;
        let wall = started.elapsed();
        if !end.status.success() {
            bail!("{shown}: {}", end.status);
        }
        fed.with_context(|| shown.clone())?;
        let memory_kib: u64 = fs::read_to_string(memory.path())?.trim().parse().with_context(|| shown)?;
        let seconds = |time: Duration| time.as_secs_f64();
        Ok(Cost {
            wall_s: seconds(wall),
            cpu_s: seconds(end.rusage.utime) + seconds(end.rusage.stime),
            memory_bytes: memory_kib * 1024,
        })
    }

    /// Combines two consecutive runs: times add up, and memory is the larger of the two.
    pub fn then(self, next: Cost) -> Cost {
        Cost {
            wall_s: self.wall_s + next.wall_s,
            cpu_s: self.cpu_s + next.cpu_s,
            memory_bytes: self.memory_bytes.max(next.memory_bytes),
        }
    }

    /// Returns the run with the median wall time.
    ///
    /// # Panics
    /// If there are no runs.
    pub fn median(mut runs: Vec<Cost>) -> Cost {
        runs.sort_by(|a, b| a.wall_s.total_cmp(&b.wall_s));
        runs[runs.len() / 2]
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_program_is_timed_and_its_failure_is_reported() {
        let cost = Cost::of(Command::new("sleep").arg("0.05")).unwrap();
        assert!(cost.wall_s >= 0.05 && cost.memory_bytes > 100_000, "{cost:?}");
        assert!(Cost::of(&mut Command::new("false")).is_err());
    }

    #[test]
    fn the_input_of_a_program_is_written_while_it_runs() {
        let feed = |mut stdin: ChildStdin| Ok(stdin.write_all(&[b'x'; 1 << 20])?);
        Cost::fed(Command::new("sh").args(["-c", "test $(wc -c) = 1048576"]), feed).unwrap();
        Cost::fed(Command::new("cat").args([] as [&str; 0]), |_| bail!("no input")).unwrap_err();
    }

    #[test]
    fn memory_of_the_measuring_process_does_not_count() {
        let ours = vec![1_u8; 64 << 20];
        let cost = Cost::of(&mut Command::new("true")).unwrap();
        assert!(ours.iter().all(|byte| *byte == 1) && cost.memory_bytes < 32 << 20, "{cost:?}");
    }

    #[test]
    fn the_median_is_the_middle_run() {
        let run = |wall_s| Cost { wall_s, ..Cost::default() };
        assert_eq!(Cost::median(vec![run(3.0), run(1.0), run(2.0)]).wall_s, 2.0);
        let both = run(1.0).then(Cost { memory_bytes: 5, ..run(2.0) });
        assert_eq!((both.wall_s, both.memory_bytes), (3.0, 5));
    }
}
