//! `docs/reference/cli.md`: what the commands for people say of themselves. Tests alone.

use std::fmt::Write as _;

use clap::CommandFactory as _;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/reference/cli.md");
const OPENING: &str = "\
<!-- Made from the program's own help; `BLESS=1 cargo test -p bulkhead` refreshes it. -->

# The command line

What `bulkhead COMMAND --help` says. The flags of `bulkhead router` are those of `bulkhead-router` in [flags.md](flags.md).
";

#[test]
fn the_reference_says_what_the_program_says() {
    let mut program = super::Arguments::command().term_width(120);
    program.build();
    let mut page = OPENING.to_owned();
    let ledger = program.find_subcommand("ledger").expect("is a command");
    for command in ledger.get_subcommands().filter(|command| command.get_name() != "help") {
        let help = command.clone().render_long_help().to_string();
        let help = help.lines().map(str::trim_end).collect::<Vec<_>>().join("\n");
        writeln!(page, "\n## bulkhead ledger {}\n\n```\n{}\n```", command.get_name(), help.trim_end())
            .expect("a String takes all text");
    }
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(PAGE, &page).expect("the page can be written");
    }
    let committed = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert!(committed == page, "{PAGE} is stale: run BLESS=1 cargo test -p bulkhead");
}
