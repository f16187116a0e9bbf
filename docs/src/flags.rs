//! `reference/flags.md`: the flags of the three programs that run in a cluster.

use std::fmt::Write;

use bulkhead_process::LogArgs;
use clap::{Arg, Args, Command, CommandFactory};

const OPENING: &str = "\
<!-- Made from the programs' own flags; `BLESS=1 cargo test -p bulkhead-docs` refreshes it. -->

# Flags

Where an environment variable is named, it may be used in the place of the flag. The chart sets what a cluster needs (`charts/bulkhead/values.yaml`).
";

#[test]
fn the_reference_names_every_flag() {
    let router = bulkhead_router::Config::augment_args(Command::new("bulkhead-router"));
    let mut page = OPENING.to_owned();
    for command in [
        bulkhead_operator::Args::command(),
        LogArgs::augment_args(router).about("Routes transactions to cells."),
        bulkhead_cell_runtime::Args::command(),
    ] {
        program(&mut page, &command).expect("a String takes all text");
    }
    crate::check("flags.md", &page);
}

fn program(page: &mut String, command: &Command) -> std::fmt::Result {
    let about = command.get_about().map(|about| sentence(about.to_string())).unwrap_or_default();
    writeln!(page, "\n## {}\n\n{about}\n", command.get_name())?;
    writeln!(page, "| flag | environment | default | meaning |\n|---|---|---|---|")?;
    for flag in command.get_arguments().filter(|flag| !flag.is_hide_set()) {
        let Some(name) = flag.get_long() else { continue };
        let environment =
            flag.get_env().map(|name| format!("`{}`", name.to_string_lossy())).unwrap_or_default();
        writeln!(page, "| `--{name}` | {environment} | {} | {} |", default(flag), meaning(flag))?;
    }
    for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
        let about = sub.get_about().map(|about| sentence(about.to_string())).unwrap_or_default();
        writeln!(page, "\n`{} {}`: {about}", command.get_name(), sub.get_name())?;
    }
    Ok(())
}

/// Help texts lose their full stop on the way into `clap`.
fn sentence(mut text: String) -> String {
    if !text.is_empty() && !text.ends_with('.') {
        text.push('.');
    }
    text
}

fn default(flag: &Arg) -> String {
    if flag.is_required_set() {
        return "required".to_owned();
    }
    if !flag.get_action().takes_values() {
        return String::new();
    }
    let values: Vec<_> = flag.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    if values.is_empty() { String::new() } else { format!("`{}`", values.join(",")) }
}

fn meaning(flag: &Arg) -> String {
    let mut text =
        flag.get_long_help().or(flag.get_help()).map(|help| sentence(help.to_string())).unwrap_or_default();
    let words = if flag.get_action().takes_values() { flag.get_possible_values() } else { Vec::new() };
    let words: Vec<_> = words.iter().map(|word| format!("`{}`", word.get_name())).collect();
    if !words.is_empty() {
        let _ = write!(text, " One of {}.", words.join(", "));
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}
