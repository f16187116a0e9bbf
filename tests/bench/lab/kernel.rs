//! What the kernel says of processes and of the machine: CPU time, memory, how many files may be open. Linux alone.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use bulkhead_process::Monotonic;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::unistd::Pid;

/// Microseconds of a tick: /proc counts in hundredths of a second on every machine (`USER_HZ`).
const TICK_MICROS: u64 = 10_000;

/// Microseconds of CPU in each mode. The kernel knows their sum well, and guesses the parts by what ticks come upon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cpu {
    pub(crate) user: u64,
    pub(crate) system: u64,
}

impl Cpu {
    pub(crate) fn since(self, before: Self) -> Self {
        Self {
            user: self.user.saturating_sub(before.user),
            system: self.system.saturating_sub(before.system),
        }
    }

    pub(crate) fn sum(self) -> u64 {
        self.user + self.system
    }
}

/// What a process has had.
pub(crate) fn cpu(pid: Pid) -> Result<Cpu> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("{path} cannot be read"))?;
    let [user, system] = process_ticks(&stat).with_context(|| format!("{path} is in an unknown form"))?;
    Ok(Cpu { user: TICK_MICROS * user, system: TICK_MICROS * system })
}

/// Microseconds of CPU that a process has had, in user and system mode together.
pub(crate) fn cpu_micros(pid: Pid) -> Result<u64> {
    cpu(pid).map(Cpu::sum)
}

/// Microseconds of CPU that anybody has had, and the time that a hypervisor took away. Interrupts are left out: they work
/// for the connections of whoever is measured.
pub(crate) fn machine_micros() -> Result<u64> {
    let stat = fs::read_to_string("/proc/stat").context("/proc/stat cannot be read")?;
    Ok(TICK_MICROS * machine_ticks(&stat).context("/proc/stat is in an unknown form")?)
}

/// Bytes of a process in memory.
pub(crate) fn resident(pid: Pid) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("{path} cannot be read"))?;
    memory_bytes(&status, "VmRSS:").with_context(|| format!("{path} has no VmRSS"))
}

/// The most bytes of a process that were in memory at once since [`forget_peak`].
pub(crate) fn peak(pid: Pid) -> Result<u64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("{path} cannot be read"))?;
    memory_bytes(&status, "VmHWM:").with_context(|| format!("{path} has no VmHWM"))
}

/// How many files a process has open, sockets among them.
pub(crate) fn open_files(pid: Pid) -> Result<usize> {
    let path = format!("/proc/{pid}/fd");
    Ok(fs::read_dir(&path).with_context(|| format!("{path} cannot be read"))?.count())
}

/// From now on counts anew (proc(5), `clear_refs`). Where the kernel cannot, the peak is that of the process's life.
pub(crate) fn forget_peak(pid: Pid) {
    let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
}

/// Who else keeps the machine busy while a router is measured.
pub(crate) struct Others {
    router: Pid,
    clock: Monotonic,
    before: u64,
}

impl Others {
    pub(crate) fn watch(router: Pid) -> Result<Self> {
        Ok(Self { router, clock: Monotonic::start(), before: Self::micros(router)? })
    }

    /// Cores that neither the router nor this process has kept busy since the start, on average.
    pub(crate) fn cores(&self) -> Result<f64> {
        // Ticks are counted at different moments, so that nothing may come out below nothing.
        let micros = Self::micros(self.router)?.saturating_sub(self.before);
        Ok(micros as f64 / self.clock.micros().max(1) as f64)
    }

    fn micros(router: Pid) -> Result<u64> {
        Ok(machine_micros()?.saturating_sub(cpu_micros(router)? + cpu_micros(Pid::this())?))
    }
}

/// Lets this process, and those that it starts, have that many files open.
///
/// # Errors
/// When the hard limit is lower, with what to do.
pub(crate) fn allow_files(wanted: u64) -> Result<()> {
    let (soft, hard) =
        getrlimit(Resource::RLIMIT_NOFILE).context("the limit of open files cannot be read")?;
    ensure!(
        hard >= wanted,
        "this bench has {wanted} files open in one process, and the hard limit is {hard}: raise it, by `ulimit -Hn \
         {wanted}` as root or in limits.conf, or ask for fewer transactions"
    );
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(wanted), hard)
        .context("the limit of open files cannot be raised")
}

/// `utime` and `stime` of /proc/PID/stat (proc(5)), the 14th and 15th field. The second is a name, which may have spaces
/// and parentheses in it.
fn process_ticks(stat: &str) -> Option<[u64; 2]> {
    let (_, after_name) = stat.rsplit_once(')')?;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let user: u64 = fields.next()?.parse().ok()?;
    let system: u64 = fields.next()?.parse().ok()?;
    Some([user, system])
}

/// `user`, `nice`, `system` and `steal` of the first line of /proc/stat (proc(5)).
fn machine_ticks(stat: &str) -> Option<u64> {
    let fields: Vec<u64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_ascii_whitespace()
        .map_while(|field| field.parse().ok())
        .collect();
    [0, 1, 2, 7].into_iter().map(|field| fields.get(field)).sum()
}

fn memory_bytes(status: &str, name: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kib * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_counted_in_user_and_system_mode_whatever_its_name() {
        let stat = "71 (a) b (c)) S 1 71 71 0 -1 4194560 10 0 3 0 250 50 7 9 20 0 2 0 100 1 2";
        assert_eq!(process_ticks(stat), Some([250, 50]));
        assert_eq!(process_ticks("71 (cut"), None);
    }

    #[test]
    fn the_machine_is_counted_without_idleness_and_interrupts() {
        let stat = "cpu  100 20 30 4000 50 6 7 8 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        assert_eq!(machine_ticks(stat), Some(158));
        assert_eq!(machine_ticks("cpu  100 20\n"), None);
    }

    #[test]
    fn memory_is_what_lies_in_memory() {
        assert_eq!(memory_bytes("VmHWM:\t 900 kB\nVmRSS:\t     512 kB\n", "VmRSS:"), Some(524_288));
        assert_eq!(memory_bytes("Name:\tx\n", "VmRSS:"), None);
    }

    #[test]
    fn this_process_and_machine_are_read_in_the_form_that_they_have() {
        let this = Pid::this();
        assert!(peak(this).expect("is read") >= resident(this).expect("is read"));
        assert!(cpu_micros(this).expect("is read") <= machine_micros().expect("is read"));
        assert!(open_files(this).expect("is read") >= 3, "input, output and errors");
        allow_files(1).expect("is allowed already");
        assert!(allow_files(u64::MAX - 1).is_err());
    }
}
