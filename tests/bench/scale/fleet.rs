//! Several routers that hear many cells: what that costs each, and how they come back when all cells restart at once.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::cells::Cells;
use super::objects::{self, FIRST, LISTENER, Size};
use crate::lab::kernel::{cpu_micros, resident};
use crate::lab::ready;
use crate::lab::wire::Request;
use crate::member::Member;
use crate::proxy::PROXY_CORE;
use crate::router;

const RULES: usize = 100;
/// How long cells are away: pods that restart take longer, and for routers it is long enough to be patient by then.
const DOWN: Duration = Duration::from_secs(2);
/// Of a herd.
const SPAN_MICROS: u64 = 100_000;

/// What came of so many routers with so many cells.
pub(super) struct Heard {
    pub(super) routers: usize,
    pub(super) cells: usize,
    /// Connections that are open for health, of each router.
    pub(super) connections: usize,
    /// Of heartbeats, for each router.
    pub(super) bytes_per_second: f64,
    /// That each router keeps busy, on average.
    pub(super) cores: f64,
    /// Bytes in memory, at most.
    pub(super) resident: u64,
    /// Part of all streams that came within the busiest 100 ms after all cells were away.
    pub(super) herd: f64,
    /// Milliseconds from the moment at which the cells were there again until all streams were.
    pub(super) back_ms: f64,
}

/// The name of a row.
pub(super) fn text(routers: usize, cells: usize) -> String {
    format!("{routers} routers, {cells} cells")
}

pub(super) async fn hear(
    routers: usize,
    cells: &mut Cells,
    size: usize,
    window: Duration,
    folder: &Path,
) -> Result<Heard> {
    eprintln!("{}", text(routers, size));
    let folder = folder.join(format!("fleet-{routers}-{size}"));
    objects::write(&folder, Size { rules: RULES, cells: size }, &cells.endpoints())?;
    let mut members = Vec::new();
    for number in 0..routers {
        let name = format!("router-{number}");
        let router::Router { mut member, listeners: [address], .. } =
            router::start(&name, &folder, [LISTENER], &["--threads=1"], Some(PROXY_CORE))?;
        ready(&mut member, address, &Request::get("/").with(FIRST)).await?;
        members.push(member);
    }
    let streams = Arc::clone(&cells.streams);
    streams.opened(routers * size).await?;
    let pids = members.iter().map(Member::pid).collect::<Result<Vec<_>>>()?;
    let cpu = || pids.iter().map(|pid| cpu_micros(*pid)).sum::<Result<u64>>();
    let (began, bytes, before) = (streams.now(), streams.bytes(), cpu()?);
    sleep(window).await;
    let micros = (streams.now() - began) as f64 * routers as f64;
    let (bytes, cpu) = ((streams.bytes() - bytes) as f64, (cpu()? - before) as f64);
    let resident = pids.iter().map(|pid| resident(*pid)).collect::<Result<Vec<_>>>()?;
    cells.restart(DOWN).await?;
    let there = streams.now();
    streams.opened(routers * size).await?;
    let came = streams.came().clone();
    Ok(Heard {
        routers,
        cells: size,
        connections: size,
        bytes_per_second: bytes * 1e6 / micros,
        cores: cpu / micros,
        resident: resident.into_iter().max().unwrap_or(0),
        herd: most_within(&came, SPAN_MICROS) as f64 / came.len().max(1) as f64,
        back_ms: came.iter().max().map_or(0, |last| last.saturating_sub(there)) as f64 / 1e3,
    })
}

/// How many of these moments lie within the busiest span of that length. They are in order.
fn most_within(moments: &[u64], span: u64) -> usize {
    let mut first = 0;
    let count = |(place, moment): (usize, &u64)| {
        while moments[first] + span <= *moment {
            first += 1;
        }
        place + 1 - first
    };
    moments.iter().enumerate().map(count).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_herd_is_what_comes_within_the_busiest_span() {
        let check =
            |moments: &[u64], expected| assert_eq!(most_within(moments, 100), expected, "{moments:?}");
        check(&[], 0);
        check(&[5], 1);
        check(&[0, 100, 200], 1);
        check(&[0, 99, 198, 200, 297, 500], 3);
    }
}
