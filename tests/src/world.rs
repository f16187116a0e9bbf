//! The cluster that the tests run on, with Bulkhead and the examples installed as a user would install them.

use std::env;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;

use crate::eventually::eventually;

/// Where Bulkhead is installed.
pub const SYSTEM: &str = "bulkhead-system";
/// Who the operator is to the API server, for `kubectl --as`.
pub const OPERATOR: &str = "system:serviceaccount:bulkhead-system:bulkhead-operator";

/// The tools and the cluster, as `cargo xtask test` passes them on in the environment.
pub struct World {
    pub cluster: String,
    kubectl: PathBuf,
    helm: PathBuf,
    xtask: PathBuf,
    root: PathBuf,
    /// What the API server writes of every request.
    pub audit_log: PathBuf,
    /// From `kubectl apply -f examples/` to three ready and serving cells.
    pub time_to_ready: Duration,
}

/// One test at a time: they share the cells.
static TURN: Mutex<()> = Mutex::new(());
static WORLD: OnceLock<Result<World, String>> = OnceLock::new();

impl World {
    /// The world, installed by the first caller, and the turn that keeps other tests out.
    ///
    /// # Panics
    /// When it cannot be installed; every test then fails with the reason.
    #[expect(clippy::panic, reason = "called by tests only, which have no other way to fail")]
    pub fn enter() -> (&'static Self, MutexGuard<'static, ()>) {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        match WORLD.get_or_init(|| Self::install().map_err(|error| format!("{error:#}"))) {
            Ok(world) => {
                if let Err(error) = world.calm() {
                    panic!("the cells did not come to rest before this test: {error:#}");
                }
                (world, turn)
            }
            Err(error) => panic!("no world to test in: {error}"),
        }
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the time to three ready cells is one of the figures promised"
    )]
    fn install() -> Result<Self> {
        let path = |name: &str| {
            env::var_os(name)
                .map(PathBuf::from)
                .with_context(|| format!("{name} is not set; run `cargo xtask test`"))
        };
        let mut world = Self {
            cluster: env::var("BULKHEAD_CLUSTER")
                .context("BULKHEAD_CLUSTER is not set; run `cargo xtask test`")?,
            kubectl: path("BULKHEAD_KUBECTL")?,
            helm: path("BULKHEAD_HELM")?,
            xtask: path("BULKHEAD_XTASK")?,
            audit_log: path("BULKHEAD_AUDIT_LOG")?,
            root: Path::new(env!("CARGO_MANIFEST_DIR"))
                .parent()
                .context("the crate lies in the workspace")?
                .to_owned(),
            time_to_ready: Duration::ZERO,
        };
        world.install_crds("charts/bulkhead-crds")?;
        world.install_bulkhead()?;
        let start = Instant::now();
        world.apply_examples()?;
        world.time_to_ready = start.elapsed();
        Ok(world)
    }

    /// Applies the examples, and waits until every cell is ready and serving.
    ///
    /// # Errors
    /// With kubectl's own words.
    pub fn apply_examples(&self) -> Result<()> {
        self.kubectl(&["apply", "-f", "examples/"])?;
        self.kubectl(&["wait", "--for=condition=Ready", "cell", "--all", "--timeout=120s"])?;
        eventually(Duration::from_secs(60), || self.all_serving(&["payments-a", "payments-b", "payments-c"]))
    }

    /// `helm upgrade --install` of a chart of the CRDs.
    ///
    /// # Errors
    /// With helm's own words.
    pub fn install_crds(&self, chart: &str) -> Result<String> {
        let release = ["upgrade", "--install", "bulkhead-crds", chart, "-n", SYSTEM, "--create-namespace"];
        self.helm(&[&release[..], &["--wait", "--timeout", "60s"]].concat())
    }

    /// `helm upgrade --install` of the main chart with the images of this tree.
    ///
    /// # Errors
    /// With helm's own words.
    pub fn install_bulkhead(&self) -> Result<String> {
        self.install_bulkhead_with(&[])
    }

    /// The same with more values, as `--set` takes them.
    ///
    /// # Errors
    /// With helm's own words.
    pub fn install_bulkhead_with(&self, values: &[&str]) -> Result<String> {
        let mut args = vec!["upgrade", "--install", "bulkhead", "charts/bulkhead", "-n", SYSTEM];
        args.extend(["--create-namespace", "--wait", "--timeout", "120s"]);
        let images = ["image.registry=localhost/bulkhead", "image.tag=dev"];
        args.extend(images.iter().chain(values).flat_map(|value| ["--set", value]));
        self.helm(&args)
    }

    /// Puts the examples as they are in the tree and waits until every cell has their revision and is ready with its
    /// whole weight, so that a test starts from rest whatever an earlier one left.
    fn calm(&self) -> Result<()> {
        self.kubectl(&["apply", "-f", "examples/"])?;
        eventually(Duration::from_secs(180), || {
            let template = self.json(&["get", "celltemplate", "payments"])?;
            seen(&template)?;
            let newest = template.pointer("/status/latestRevision");
            for cell in ["payments-a", "payments-b", "payments-c"] {
                let object = self.json(&["get", "cell", cell])?;
                seen(&object)?;
                ensure!(condition(&object, "Ready") == "True", "{cell} is not Ready");
                ensure!(
                    object.pointer("/status/currentRevision") == newest,
                    "{cell} has not the newest revision of its template"
                );
                ensure!(
                    object.pointer("/status/effectiveWeight") == Some(&Value::from(100)),
                    "{cell} is not at full weight"
                );
            }
            let shifts = self.json(&["get", "trafficshifts"])?;
            ensure!(
                shifts.pointer("/items").and_then(Value::as_array).is_some_and(Vec::is_empty),
                "a TrafficShift is left"
            );
            Ok(())
        })
    }

    /// Whether every one of these cells is `Serving`.
    ///
    /// # Errors
    /// Names the first that is not.
    pub fn all_serving(&self, cells: &[&str]) -> Result<()> {
        for cell in cells {
            self.expect_condition(cell, "Serving", "True")?;
        }
        Ok(())
    }

    /// # Errors
    /// When the cell's condition has another status, with its reason and message.
    pub fn expect_condition(&self, cell: &str, r#type: &str, status: &str) -> Result<()> {
        let object = self.json(&["get", "cell", cell])?;
        let found = condition(&object, r#type);
        ensure!(
            found == status,
            "{cell}: {type} is {found:?}, not {status}: {}",
            object.pointer("/status/conditions").unwrap_or(&Value::Null)
        );
        Ok(())
    }

    /// Runs kubectl in the root of the tree and returns what it printed.
    ///
    /// # Errors
    /// With kubectl's own words.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        said(self.command(&self.kubectl, args).output(), "kubectl", args)
    }

    /// Applies a document from memory.
    ///
    /// # Errors
    /// With kubectl's own words.
    pub fn apply(&self, document: &str) -> Result<String> {
        self.feed(&["apply", "-f", "-"], document)
    }

    /// Runs kubectl with a document on its standard input.
    ///
    /// # Errors
    /// With kubectl's own words.
    pub fn feed(&self, args: &[&str], document: &str) -> Result<String> {
        let mut child = self
            .command(&self.kubectl, args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("kubectl does not start")?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(document.as_bytes()).context("kubectl does not read its input")?;
        }
        said(child.wait_with_output(), "kubectl", args)
    }

    /// `kubectl ARGS -o json`.
    ///
    /// # Errors
    /// With kubectl's own words.
    pub fn json(&self, args: &[&str]) -> Result<Value> {
        let text = self.kubectl(&[args, &["-o", "json"]].concat())?;
        serde_json::from_str(&text).context("kubectl did not print JSON")
    }

    /// Starts `kubectl get ARGS --watch` and gives each line that it prints to `line`, until the watch is dropped.
    ///
    /// # Errors
    /// When kubectl does not start.
    pub fn watch(&self, args: &[&str], line: impl Fn(&str) + Send + 'static) -> Result<Watch> {
        let args = [&["get"], args, &["--watch", "--output-watch-events"]].concat();
        let mut child = self
            .command(&self.kubectl, &args)
            .stdout(Stdio::piped())
            .spawn()
            .context("kubectl does not start")?;
        let lines = BufReader::new(child.stdout.take().context("its output is piped")?).lines();
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(|text| line(&text)));
        Ok(Watch(child))
    }

    /// A merge patch of an object.
    ///
    /// # Errors
    /// With kubectl's own words.
    pub fn patch(&self, kind: &str, name: &str, patch: &str) -> Result<String> {
        self.kubectl(&["patch", kind, name, "--type", "merge", "-p", patch])
    }

    /// # Errors
    /// With helm's own words.
    pub fn helm(&self, args: &[&str]) -> Result<String> {
        said(self.command(&self.helm, args).output(), "helm", args)
    }

    /// `xtask cluster VERB --name THIS ARGS`.
    ///
    /// # Errors
    /// With its own words.
    pub fn cluster(&self, verb: &str, args: &[&str]) -> Result<String> {
        self.xtask(&[&["cluster", verb, "--name", &self.cluster], args].concat())
    }

    /// # Errors
    /// With xtask's own words.
    pub fn xtask(&self, args: &[&str]) -> Result<String> {
        said(self.command(&self.xtask, args).output(), "xtask", args)
    }

    /// Starts xtask and leaves it running.
    ///
    /// # Errors
    /// When it does not start.
    pub fn begin_xtask(&self, args: &[&str]) -> Result<Child> {
        let mut command = self.command(&self.xtask, args);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("xtask does not start")
    }

    fn command(&self, program: &Path, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(&self.root);
        command
    }
}

/// A `kubectl get --watch`, ended when it is dropped.
pub struct Watch(Child);

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn said(output: std::io::Result<Output>, program: &str, args: &[&str]) -> Result<String> {
    let output = output.with_context(|| format!("{program} does not start"))?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        bail!("{program} {} failed: {}{stdout}", args.join(" "), String::from_utf8_lossy(&output.stderr));
    }
    Ok(stdout)
}

/// Whether the operator has seen the newest spec of the object.
fn seen(object: &Value) -> Result<()> {
    let (newest, seen) =
        (object.pointer("/metadata/generation"), object.pointer("/status/observedGeneration"));
    ensure!(
        newest == seen,
        "the operator has not seen generation {newest:?}, but {seen:?}: {}",
        object["metadata"]["name"]
    );
    Ok(())
}

/// Status of an object's condition; empty when it was never stated.
pub fn condition<'a>(object: &'a Value, r#type: &str) -> &'a str {
    field(object, r#type, "status")
}

/// Reason of an object's condition; empty when it was never stated.
pub fn reason<'a>(object: &'a Value, r#type: &str) -> &'a str {
    field(object, r#type, "reason")
}

fn field<'a>(object: &'a Value, r#type: &str, field: &str) -> &'a str {
    object
        .pointer("/status/conditions")
        .and_then(Value::as_array)
        .and_then(|conditions| {
            conditions.iter().find(|condition| condition.get("type").and_then(Value::as_str) == Some(r#type))
        })
        .and_then(|condition| condition.get(field))
        .and_then(Value::as_str)
        .unwrap_or_default()
}
