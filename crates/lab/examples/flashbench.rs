//! Runs Debian's flashbench in the guest, on a modelled card: `KERNEL AGENT PROFILE ARGUMENT...`. PROFILE is
//! a name or a file. `cargo xtask uml-kernel` prints the paths of kernel and agent.
use anyhow::{Result, bail};
use block::MemoryDevice;
use flash::{Condition, Model, Pace, verbs};
use flashkit_lab::{
    systems,
    vm::{Card, Limits, Setup, Uml, host_files, host_program},
};
use guest::{Op, op::Answer};

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, agent, profile, options @ ..] = &arguments[..] else {
        bail!("flashbench KERNEL AGENT PROFILE ARGUMENT...");
    };
    let profile = verbs::profile(profile)?;
    let setup = Setup {
        kernel: kernel.into(),
        agent: agent.into(),
        memory_mib: 512,
        queue_depth: profile.host.queue_depth,
        traits: systems::traits(&profile),
        pace: Pace::Virtual,
        seed: 1,
        limits: Limits::default(),
    };
    let data = MemoryDevice::new(profile.size_bytes);
    let kib = (profile.host.max_request_bytes / 1024).to_string();
    let mut uml =
        Uml::boot(&setup, Card::new(Model::new(profile, Condition::Preconditioned), Box::new(data)))?;
    let path = "/sys/block/vda/queue/max_sectors_kb".into();
    uml.run(&Op::Tune { path, value: kib.as_str().into() })?;
    uml.run(&host_files())?;
    let all: Vec<&str> = options.iter().map(String::as_str).chain(["/disk/card"]).collect();
    let measured = uml.run(&host_program("/usr/bin/flashbench", &all)?)?;
    if let Some(Answer::Output { code, stdout, stderr }) = measured.answer {
        print!("{}", String::from_utf8_lossy(&stdout.0));
        eprint!("{}", String::from_utf8_lossy(&stderr.0));
        println!(
            "exit {code} after {:.3} s of the guest's time",
            (measured.ended_ns - measured.started_ns) as f64 / 1e9
        );
    }
    Ok(())
}
