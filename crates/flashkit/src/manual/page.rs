//! The man page of a verb.

use anyhow::Result;
use clap::{Arg, Command};
use clap_mangen::{
    Man,
    roff::{Inline, Roff, bold, italic, roman},
};

use super::{
    facts::{self, Row},
    reference, title,
};

/// Returns the name of a verb's page: `flashkit-card-new`.
pub fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// Makes the page of a verb.
pub fn page(command: &Command, date: &str) -> Result<Vec<u8>> {
    let name = name(command);
    let mut page = Vec::new();
    let mut head = Roff::new();
    title(&mut head, name, facts::section(name), date);
    head.control("SH", ["NAME"]);
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    head.text([roman(format!(
        "{name} - {}",
        about.lines().collect::<Vec<_>>().join(" ").trim_end_matches('.')
    ))]);
    head.control("SH", ["SYNOPSIS"]);
    head.text(synopsis(command));
    head.to_writer(&mut page)?;
    let man = Man::new(command.clone());
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    let mut rest = Roff::new();
    subcommands(&mut rest, command);
    rest.control("SH", ["EXIT STATUS"]);
    rows(&mut rest, &facts::EXIT_STATUS);
    if let Some(note) = facts::exit_note(name) {
        rest.control("PP", []).text([roman(note)]);
    }
    for (heading, facts) in [("ENVIRONMENT", facts::environment(name)), ("FILES", facts::files(name))] {
        if !facts.is_empty() {
            rest.control("SH", [heading]);
            rows(&mut rest, facts);
        }
    }
    let help = command.get_after_long_help().or_else(|| command.get_after_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    for (heading, is_wanted) in [("NOTES", false), ("EXAMPLES", true)] {
        let wanted = |block: &Block<'_>| block.is_example() == is_wanted && !block.is_exit_status();
        let blocks: Vec<Block<'_>> = blocks(&help).filter(wanted).collect();
        if !blocks.is_empty() {
            rest.control("SH", [heading]);
            blocks.iter().for_each(|block| block.write(&mut rest));
        }
    }
    see_also(&mut rest, command);
    rest.to_writer(&mut page)?;
    Ok(page)
}

/// Formats a verb's usage: options with their values, arguments, and subcommands.
fn synopsis(command: &Command) -> Vec<Inline> {
    let mut line = vec![bold(command.get_bin_name().unwrap_or_else(|| command.get_name()))];
    let shown = || command.get_arguments().filter(|arg| !arg.is_hide_set());
    for arg in shown().filter(|arg| !arg.is_positional()).chain(shown().filter(|arg| arg.is_positional())) {
        let (open, close) = if arg.is_required_set() { (" ", "") } else { (" [", "]") };
        line.push(roman(open));
        let flag = match (arg.get_short(), arg.get_long()) {
            (Some(short), _) => Some(format!("-{short}")),
            (None, long) => long.map(|long| format!("--{long}")),
        };
        let values = values(arg);
        if let Some(flag) = &flag {
            line.push(bold(flag));
        }
        if let Some(values) = values {
            line.push(roman(if flag.is_some() { " " } else { "" }));
            line.push(italic(values));
        }
        line.push(roman(close));
    }
    if command.has_subcommands() {
        line.extend([roman(" "), italic("COMMAND")]);
    }
    line
}

/// Returns the names of an argument's values, or None for a flag.
fn values(arg: &Arg) -> Option<String> {
    let range = arg.get_num_args()?;
    if !range.takes_values() {
        return None;
    }
    let names = match arg.get_value_names() {
        Some(names) => names.join(" "),
        None => arg.get_id().as_str().to_uppercase(),
    };
    let many = if range.max_values() > 1 { "..." } else { "" };
    Some(if range.min_values() == 0 { format!("[{names}]") } else { format!("{names}{many}") })
}

fn subcommands(roff: &mut Roff, command: &Command) {
    let mut parts = command.get_subcommands().filter(|it| !it.is_hide_set()).peekable();
    if parts.peek().is_none() {
        return;
    }
    roff.control("SH", ["COMMANDS"]);
    for part in parts {
        roff.control("TP", []);
        roff.text(reference(name(part), facts::section(name(part))));
        roff.text([roman(part.get_about().map(ToString::to_string).unwrap_or_default())]);
    }
}

fn rows(roff: &mut Roff, rows: &[Row]) {
    for (thing, meaning) in rows {
        roff.control("TP", []).text([bold(*thing)]).text([roman(*meaning)]);
    }
}

fn see_also(roff: &mut Roff, command: &Command) {
    let own = name(command);
    let parts = command.get_subcommands().filter(|it| !it.is_hide_set());
    let parts = parts.map(|part| (name(part).to_owned(), facts::section(name(part))));
    // The parent verb of a subcommand, and the program.
    let above = own.match_indices('-').map(|(at, _)| (own[..at].to_owned(), facts::section(&own[..at])));
    let further = facts::see_also(own).iter().map(|(name, section)| ((*name).to_owned(), *section));
    let mut pages: Vec<(String, &str)> = above.chain(parts).chain(further).collect();
    pages.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    pages.dedup();
    let mut line = Vec::new();
    for (n, (name, section)) in pages.iter().enumerate() {
        line.extend((n > 0).then(|| roman(", ")));
        line.extend(reference(name, section));
    }
    roff.control("SH", ["SEE ALSO"]).text(line);
}

/// A part of the text after the options: a paragraph, or a heading with indented lines below it.
struct Block<'a> {
    lead: Vec<&'a str>,
    indented: Vec<&'a str>,
}

/// Splits a help text into blocks. A block ends at an empty line, or where the indentation ends.
fn blocks(help: &str) -> impl Iterator<Item = Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    let mut ended = true;
    for line in help.lines() {
        if line.trim().is_empty() {
            ended = true;
            continue;
        }
        let is_indented = line.starts_with(' ');
        let begins = ended || !is_indented && blocks.last().is_some_and(|block| !block.indented.is_empty());
        if begins {
            blocks.push(Block { lead: Vec::new(), indented: Vec::new() });
        }
        ended = false;
        if let Some(block) = blocks.last_mut() {
            if is_indented { block.indented.push(line) } else { block.lead.push(line) }
        }
    }
    blocks.into_iter()
}

impl Block<'_> {
    fn is_example(&self) -> bool {
        matches!(self.lead[..], ["Example:" | "Examples:"])
    }

    /// Returns true for the exit codes, which have a section of their own.
    fn is_exit_status(&self) -> bool {
        self.lead == ["Exit codes:"]
    }

    fn write(&self, roff: &mut Roff) {
        if !self.is_example() && !self.lead.is_empty() {
            roff.control("PP", []).text([roman(self.lead.join(" "))]);
        }
        let depth = |line: &str| line.len() - line.trim_start().len();
        let least = self.indented.iter().map(|line| depth(line)).min().unwrap_or(0);
        let is_list = self.indented.iter().any(|line| depth(line) >= least + 4);
        if self.indented.is_empty() {
            return;
        }
        if is_list {
            for line in &self.indented {
                match depth(line) == least {
                    true => roff.control("TP", []).text([bold(line.trim())]),
                    false => roff.text([roman(line.trim())]),
                };
            }
            return;
        }
        roff.control("PP", []).control("RS", ["4"]).control("EX", []);
        for line in &self.indented {
            roff.text([roman(&line[least..])]);
        }
        roff.control("EE", []).control("RE", []);
    }
}
