//! `completions`: scripts for a shell's completion of this command's arguments.

use anyhow::Result;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::{cli::Cli, render};

/// Arguments of `completions`.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  flashkit completions bash > /etc/bash_completion.d/flashkit")]
pub struct Args {
    /// The shell.
    shell: Shell,
}

/// Prints the completions.
pub fn run(args: &Args) -> Result<()> {
    // The generator panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "flashkit", &mut script);
    render::text(|out| out.write_all(&script))
}
