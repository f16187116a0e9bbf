//! `cargo xtask fuzz`: builds the targets in `fuzz/` and feeds each of them inputs for some time, two targets at a time. What
//! they check is theirs.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use crate::cluster::state::cache;
use crate::command::{command, output};
use crate::test::{cargo_command, status};
use crate::{cargo_tool, clock, images, progress};

const CARGO_FUZZ: &str = "0.13.1";
/// Each keeps one core busy.
const AT_ONCE: usize = 2;
/// Inputs that earlier runs found worth keeping are begun with. More would take a short run longer to read than to run.
const MOST_KEPT: usize = 3000;

/// Runs those targets, or all, each for so long.
///
/// # Errors
/// When they do not build, or names the input that broke something.
pub fn run(seconds: u64, only: &[String]) -> Result<()> {
    let folder = images::repository()?.join("fuzz");
    let targets = chosen(&all(&folder)?, only)?;
    let kept = cache()?.join("fuzz");
    build(&folder, &kept.join("target"))?;
    let runs: Vec<_> =
        targets.into_iter().map(|target| Run { target, folder: &folder, kept: &kept, seconds }).collect();
    let (waiting, failed) = (Mutex::new(VecDeque::from(runs)), AtomicBool::new(false));
    let worker = || -> Result<()> {
        while !failed.load(Ordering::Relaxed) {
            let next = waiting.lock().ok().and_then(|mut waiting| waiting.pop_front());
            let Some(next) = next else { break };
            next.run(&failed).inspect_err(|_| failed.store(true, Ordering::Relaxed))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|_| bail!("a run panicked")))
    })
}

/// Every target has a folder of seeds.
fn all(folder: &Path) -> Result<Vec<String>> {
    let seeds = folder.join("seeds");
    let entries = fs::read_dir(&seeds).with_context(|| format!("cannot read {}", seeds.display()))?;
    let mut targets = Vec::new();
    for entry in entries {
        targets.push(entry?.file_name().to_string_lossy().into_owned());
    }
    targets.sort();
    Ok(targets)
}

fn chosen(all: &[String], only: &[String]) -> Result<Vec<String>> {
    if let Some(unknown) = only.iter().find(|name| !all.contains(name)) {
        bail!("there is no fuzz target {unknown}; there are {}", all.join(", "));
    }
    Ok(if only.is_empty() { all.to_vec() } else { only.to_vec() })
}

fn build(folder: &Path, target: &Path) -> Result<()> {
    let program = cargo_tool::ensure("cargo-fuzz", CARGO_FUZZ)?;
    // cargo-fuzz would bring the lock file up to date without a word.
    let mut locked = cargo_command(&["metadata", "--locked", "--format-version", "1", "--manifest-path"]);
    let manifest = folder.join("Cargo.toml");
    output(locked.arg(&manifest)).with_context(|| {
        format!("if a crate has changed what it needs, `cargo update --workspace --manifest-path {}` says so in fuzz/Cargo.lock", manifest.display())
    })?;
    let mut build = command(program, ["build", "--fuzz-dir"]);
    // Sanitizers are flags that the compiler keeps from releases.
    build.arg(folder).env("RUSTC_BOOTSTRAP", "1").env("CARGO_TARGET_DIR", target).current_dir(folder);
    progress::step("building fuzz targets", || status(&mut build))
}

struct Run<'a> {
    target: String,
    folder: &'a Path,
    /// What outlives the checkout: programs, inputs, logs.
    kept: &'a Path,
    seconds: u64,
}

impl Run<'_> {
    fn run(&self, failed: &AtomicBool) -> Result<()> {
        let Self { target, seconds, .. } = self;
        let log = self.kept.join(format!("{target}.log"));
        progress::step(&format!("fuzzing {target} for {seconds} s"), || {
            let mut child = self.start(&log)?;
            let ended = wait(&mut child, failed)?;
            let said = fs::read_to_string(&log).unwrap_or_default();
            match ended {
                // Another one has failed, which is what is told.
                None => Ok(()),
                Some(status) if status.success() => {
                    progress::note(&format!("{target}: {}", summary(&said)));
                    Ok(())
                }
                Some(status) => bail!("{}", self.complaint(status, &said, &log)),
            }
        })
    }

    fn program(&self) -> PathBuf {
        let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        self.kept.join("target").join(triple).join("release").join(&self.target)
    }

    fn start(&self, log: &Path) -> Result<Child> {
        let corpus = self.kept.join("corpus").join(&self.target);
        if fs::read_dir(&corpus).is_ok_and(|entries| entries.count() > MOST_KEPT) {
            fs::remove_dir_all(&corpus).with_context(|| format!("cannot remove {}", corpus.display()))?;
        }
        let found = self.kept.join("found");
        for folder in [&corpus, &found] {
            fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
        }
        let said = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        let mut run = command(self.program(), ["-max_len=4096", "-timeout=10", "-rss_limit_mb=2048"]);
        run.arg(format!("-max_total_time={}", self.seconds))
            .arg(format!("-artifact_prefix={}/{}-", found.display(), self.target))
            .args([&corpus, &self.folder.join("seeds").join(&self.target)])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said);
        run.spawn().with_context(|| format!("cannot start {}", self.program().display()))
    }

    /// Which input it was, what was wrong with it, and how to see it again.
    fn complaint(&self, status: ExitStatus, said: &str, log: &Path) -> String {
        let Some(input) = said.lines().find_map(|line| line.split("Test unit written to ").nth(1)) else {
            return format!(
                "{} ended without an input that breaks it ({status}): see {}",
                self.target,
                log.display()
            );
        };
        let what = said.lines().find(|line| line.contains("panicked at") || line.contains("ERROR: "));
        let why = said.lines().skip_while(|line| !line.contains("panicked at")).nth(1).unwrap_or_default();
        format!(
            "{} breaks on {input}\n{}\n{why}\nsee {}, and repeat it with `{} {input}`",
            self.target,
            what.unwrap_or_default(),
            log.display(),
            self.program().display(),
        )
    }
}

/// How it ended; none where it was stopped because another has failed.
fn wait(child: &mut Child, failed: &AtomicBool) -> Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if failed.load(Ordering::Relaxed) {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        clock::rest(Duration::from_millis(100));
    }
}

/// The last word that it says of what it did.
fn summary(said: &str) -> &str {
    said.lines().rev().find(|line| line.starts_with("Done ")).unwrap_or("nothing is said of its runs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_those_that_have_seeds_and_no_others_can_be_chosen() {
        let all = ["bodies".to_owned(), "heads".to_owned()];
        assert_eq!(chosen(&all, &[]).unwrap(), all);
        assert_eq!(chosen(&all, &all[1..]).unwrap(), all[1..]);
        let failure = chosen(&all, &["heds".to_owned()]).unwrap_err().to_string();
        assert!(failure.contains("heds") && failure.contains("bodies, heads"), "{failure}");
    }

    #[test]
    fn every_target_has_seeds_and_every_seed_a_target() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let bins = manifest.split("[[bin]]\nname = \"").skip(1).filter_map(|bin| bin.split('"').next());
        let mut bins: Vec<_> = bins.map(str::to_owned).collect();
        bins.sort();
        assert_eq!(all(&folder).unwrap(), bins);
    }

    #[test]
    fn a_failure_names_its_input() {
        let (folder, kept) = (Path::new("/f"), Path::new("/k"));
        let run = Run { target: "heads".to_owned(), folder, kept, seconds: 1 };
        let said = "thread '<unnamed>' panicked at a.rs:1:2:\nnot the same\nTest unit written to /k/found/heads-crash-1\n";
        let complaint = run.complaint(ExitStatus::default(), said, Path::new("/k/heads.log"));
        for part in ["breaks on /k/found/heads-crash-1", "a.rs:1:2", "not the same", "/k/heads.log"] {
            assert!(complaint.contains(part), "{complaint}");
        }
    }
}
