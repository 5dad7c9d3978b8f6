//! `completions`: what a shell sources to complete our command line.

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
    // The generator panics where it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "flashkit", &mut script);
    render::text(|out| out.write_all(&script))
}
