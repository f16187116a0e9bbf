//! A template change reaches cells one at a time, and nobody notices.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bulkhead_tests::stall::StallWatch;
use bulkhead_tests::traffic::Load;
use bulkhead_tests::{World, eventually, holds_for};
use serde_json::Value;

const CELLS: [&str; 3] = ["payments-a", "payments-b", "payments-c"];

fn revisions(world: &World) -> anyhow::Result<Vec<String>> {
    CELLS
        .iter()
        .map(|cell| {
            let cell = world.json(&["get", "cell", cell])?;
            Ok(cell.pointer("/status/currentRevision").and_then(Value::as_str).unwrap_or_default().to_owned())
        })
        .collect()
}

/// Cells that a TrafficShift holds out, by the events of a watch, so that none is missed.
#[derive(Default)]
struct Outs {
    now: BTreeSet<String>,
    ever: BTreeSet<String>,
    most: usize,
}

impl Outs {
    /// `ADDED payments-a`, `MODIFIED payments-a`, `DELETED payments-a`.
    fn note(&mut self, line: &str) {
        let Some((event, cell)) = line.split_once(' ') else { return };
        if event == "DELETED" {
            self.now.remove(cell);
        } else {
            self.now.insert(cell.to_owned());
            self.ever.insert(cell.to_owned());
        }
        self.most = self.most.max(self.now.len());
    }
}

#[test]
fn a_template_change_under_load_never_has_two_cells_out_and_fails_nothing() {
    let (world, _turn) = World::enter();
    let before = revisions(world).expect("revisions");
    let stalls = StallWatch::start();
    let load = Load::start(world, 200);
    load.wait_for(Duration::from_secs(10), "payments-a").expect("traffic flows");
    let outs = Arc::<Mutex<Outs>>::default();
    let seen = Arc::clone(&outs);
    let columns = r#"jsonpath={.type}{" "}{.object.spec.cell}{"\n"}"#;
    let watch = world.watch(&["trafficshifts", "-o", columns], move |line| {
        seen.lock().expect("no line panics").note(line);
    });
    let watch = watch.expect("a watch of the shifts");
    let template = world.json(&["get", "celltemplate", "payments"]).expect("read");
    let old = template["spec"]["objects"].clone();
    let new = set_rollout_marker(&old);
    world
        .patch("celltemplate", "payments", &serde_json::json!({"spec": {"objects": new}}).to_string())
        .expect("changed");

    eventually(Duration::from_secs(240), || {
        let now = revisions(world)?;
        anyhow::ensure!(now.iter().zip(&before).all(|(now, before)| now != before), "revisions: {now:?}");
        anyhow::ensure!(now.windows(2).all(|pair| pair[0] == pair[1]), "not all the same: {now:?}");
        let out = outs.lock().expect("no line panics").now.clone();
        anyhow::ensure!(out.is_empty(), "still out: {out:?}");
        Ok(())
    })
    .expect("every cell gets the new revision");
    drop(watch);
    let outcome = load.stop();
    let outs = outs.lock().expect("no line panics");
    assert_eq!(outs.most, 1, "one cell at a time");
    assert_eq!(outs.ever.len(), 3, "every cell was taken out before it changed: {:?}", outs.ever);
    // The second group serves where the whole first one is out or on its way back. Orchestrators that did not run for
    // half a second all start their way back anew, one of them first.
    let (to_c, stalled) = (outcome.sent_between("payments-c", 0, u64::MAX), stalls.longest_ms());
    if to_c > 0 && stalled >= 400 {
        eprintln!("{to_c} requests went to payments-c, on a machine that stood still for {stalled} ms");
    } else {
        assert_eq!(to_c, 0, "payments-a and payments-b were both out; the longest stall was {stalled} ms");
    }
    assert!(outcome.failed.is_empty(), "{} failed: {:?}", outcome.failed.len(), outcome.failed.first());
}

#[test]
fn a_cell_that_does_not_become_ready_stops_the_rollout_and_keeps_its_shift() {
    let (world, _turn) = World::enter();
    let before = revisions(world).expect("revisions");
    let load = Load::start(world, 100);
    load.wait_for(Duration::from_secs(10), "payments-a").expect("traffic flows");
    let template = world.json(&["get", "celltemplate", "payments"]).expect("read");
    let mut objects = template["spec"]["objects"].clone();
    for object in objects.as_array_mut().into_iter().flatten() {
        if let Some(args) = object.pointer_mut("/spec/template/spec/containers/0/args") {
            args.as_array_mut().expect("a list").push("--no-such-argument".into());
        }
    }
    let broken = serde_json::json!({"spec": {"objects": objects}}).to_string();
    world.patch("celltemplate", "payments", &broken).expect("changed");
    let out = || -> anyhow::Result<Vec<String>> {
        let shifts = world.json(&["get", "trafficshifts"])?;
        let cells = shifts["items"].as_array().into_iter().flatten();
        Ok(cells.filter_map(|shift| shift["spec"]["cell"].as_str().map(str::to_owned)).collect())
    };
    let stuck = eventually(Duration::from_secs(90), || {
        let [cell] = &out()?[..] else { anyhow::bail!("out: {:?}", out()?) };
        world.expect_condition(cell, "WorkloadReady", "False")?;
        Ok(cell.clone())
    })
    .expect("the first cell is out and does not become ready");
    holds_for(Duration::from_secs(10), || {
        anyhow::ensure!(out()? == [stuck.clone()], "out: {:?}", out()?);
        for (cell, (now, before)) in CELLS.iter().zip(revisions(world)?.iter().zip(&before)) {
            anyhow::ensure!(*cell == stuck || now == before, "{cell} was updated too");
        }
        Ok(())
    })
    .expect("it stops there");

    // The way back is the template as it was.
    world.kubectl(&["apply", "-f", "examples/"]).expect("applied");
    eventually(Duration::from_secs(120), || {
        anyhow::ensure!(out()?.is_empty(), "out: {:?}", out()?);
        world.expect_condition(&stuck, "Ready", "True")
    })
    .expect("the cell is back");
    let seen = load.stop();
    assert!(seen.failed.is_empty(), "{} failed: {:?}", seen.failed.len(), seen.failed.first());
}

/// An environment variable in every container: the smallest change that makes new pods.
fn set_rollout_marker(objects: &Value) -> Value {
    let mut objects = objects.clone();
    for object in objects.as_array_mut().into_iter().flatten() {
        if let Some(Value::Array(containers)) = object.pointer_mut("/spec/template/spec/containers") {
            for container in containers {
                container["env"].as_array_mut().map_or_else(
                    || (),
                    |env| {
                        env.retain(|entry| entry["name"] != "ROLLOUT_MARKER");
                        env.push(serde_json::json!({"name": "ROLLOUT_MARKER", "value": "second"}));
                    },
                );
                if container.get("env").is_none_or(Value::is_null) {
                    container["env"] = serde_json::json!([{"name": "ROLLOUT_MARKER", "value": "second"}]);
                }
            }
        }
    }
    objects
}
