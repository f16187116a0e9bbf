//! `bulkhead ledger`: its commands and exit statuses. Where the ledger is, in a folder or behind a router's admin port,
//! is `folder`'s and `router`'s; how it looks on a terminal is `table`'s.

mod folder;
mod router;
mod table;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use bulkhead_ledger::view::{Filter, ListView, ResolutionView, ResolveView, StandingView};
use bulkhead_protocol::TransactionId;
use clap::{Args, Subcommand, ValueEnum};

/// There is no such transaction.
const NOTHING: u8 = 1;
/// It could not be found out, or not be done.
const ERROR: u8 = 2;
/// It was done, and the ledger is damaged.
const DAMAGED: u8 = 3;

const STATUSES: &str = "\
Exit status: 0 when something was found or done, 1 when nothing was found, 2 on an error, 3 when the ledger is damaged \
(each place is a line on standard error that says what it may mean; docs/ledger.md says more).";

const RESOLVING: &str = "\
Ask the destination, not the cell: its records of ID/N are what counts. `answered` means that it took effect there: \
whoever asks for the transaction again gets 409, for the ledger's window. `not-sent` means that it did not: the \
transaction may be attempted again, and the effect happens then. Either is written down for good, with the note.

With --dir the router must be stopped; while it runs, ask it, from its own machine or through `kubectl port-forward`.";

/// Effects outside the cells.
#[derive(Args)]
pub(crate) struct LedgerArgs {
    #[command(subcommand)]
    command: LedgerCommand,
}

#[derive(Subcommand)]
enum LedgerCommand {
    /// Transactions with their effects, those that changed last first.
    #[command(after_help = STATUSES)]
    List {
        /// Only transactions of this state. `open` is under way, or was left by a process that is gone: the router's next
        /// start makes it `unknown`.
        #[arg(long)]
        state: Option<StateArg>,
        /// At most so many.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
        limit: u32,
        #[command(flatten)]
        place: Place,
        /// One JSON object instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// One transaction. A router holds in memory only what can be asked for again or is not settled; its folder has all
    /// that no compaction has taken.
    #[command(after_help = STATUSES)]
    Show {
        /// The transaction, as in `bulkhead-transaction`.
        id: TransactionId,
        #[command(flatten)]
        place: Place,
        /// One JSON object instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Says what became of an effect that is unknown.
    #[command(after_help = RESOLVING, after_long_help = format!("{RESOLVING}\n\n{STATUSES}"))]
    Resolve {
        /// The transaction, as in `bulkhead-transaction`.
        id: TransactionId,
        /// The number of the effect in it.
        n: u32,
        /// What became of it.
        #[arg(long)]
        r#as: ResolutionArg,
        /// How you know: who was asked, a ticket. Up to 256 bytes; it is kept and shown.
        #[arg(long)]
        note: String,
        #[command(flatten)]
        place: Place,
    },
}

/// Where the ledger is.
#[derive(Args)]
struct Place {
    /// The ledger's folder. Reading needs no lock: the router may run.
    #[arg(long, conflicts_with = "admin")]
    dir: Option<PathBuf>,
    /// The admin port of the router that holds it.
    #[arg(long, default_value = "http://127.0.0.1:9090")]
    admin: String,
}

#[derive(Clone, Copy, ValueEnum)]
enum StateArg {
    Open,
    Unknown,
    Decided,
}

#[derive(Clone, Copy, ValueEnum)]
enum ResolutionArg {
    Answered,
    NotSent,
}

impl From<StateArg> for StandingView {
    fn from(state: StateArg) -> Self {
        match state {
            StateArg::Open => Self::Open,
            StateArg::Unknown => Self::Unknown,
            StateArg::Decided => Self::Decided,
        }
    }
}

impl From<ResolutionArg> for ResolutionView {
    fn from(resolution: ResolutionArg) -> Self {
        match resolution {
            ResolutionArg::Answered => Self::Answered,
            ResolutionArg::NotSent => Self::NotSent,
        }
    }
}

/// Does it, says what came of it, and gives the status to exit with.
pub(crate) async fn run(arguments: LedgerArgs) -> ExitCode {
    match answer(arguments.command).await {
        Ok(status) => status.into(),
        Err(error) => {
            eprintln!("error: {error:#}");
            ERROR.into()
        }
    }
}

async fn answer(command: LedgerCommand) -> Result<u8> {
    match command {
        LedgerCommand::List { state, limit, place, json } => {
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let filter = Filter { standing: state.map(StandingView::from), limit };
            let found = match &place.dir {
                Some(dir) => folder::list(dir, &filter)?,
                None => router::list(&place.admin, &filter).await?,
            };
            print(&found, json)
        }
        LedgerCommand::Show { id, place, json } => {
            let found = match &place.dir {
                Some(dir) => folder::show(dir, id)?,
                None => router::show(&place.admin, id).await?,
            };
            print(&found, json)
        }
        LedgerCommand::Resolve { id, n, r#as, note, place } => {
            let asked = ResolveView { r#as: r#as.into(), note };
            let damages = match &place.dir {
                Some(dir) => folder::resolve(dir, id, n, &asked).await?,
                None => router::resolve(&place.admin, id, n, &asked).await.map(|()| Vec::new())?,
            };
            println!("effect {n} of {id} is resolved");
            damages.iter().for_each(|damage| eprintln!("damage: {damage}"));
            Ok(if damages.is_empty() { 0 } else { DAMAGED })
        }
    }
}

fn print(found: &ListView, json: bool) -> Result<u8> {
    if json {
        println!("{}", serde_json::to_string_pretty(found)?);
    } else {
        print!("{}", table::render(found));
        found.damages.iter().for_each(|damage| eprintln!("damage: {damage}"));
        found.notes.iter().for_each(|note| eprintln!("note: {note}"));
    }
    Ok(status(found))
}

fn status(found: &ListView) -> u8 {
    if !found.damages.is_empty() {
        DAMAGED
    } else if found.transactions.is_empty() {
        NOTHING
    } else {
        0
    }
}
