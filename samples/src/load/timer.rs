//! A timer of the kernel's own precision. The runtime's timers have steps of a millisecond, which would be most of what
//! a load over loopback measures.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::time::Duration;

use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

pub(super) struct Timer(AsyncFd<Descriptor>);

struct Descriptor(TimerFd);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl Timer {
    /// # Errors
    /// When there are no file descriptors left.
    #[expect(
        deprecated,
        reason = "its successor is unsafe; the descriptor is owned and never closed while registered"
    )]
    pub(super) fn new() -> io::Result<Self> {
        let timer =
            TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        Ok(Self(AsyncFd::with_interest(Descriptor(timer), Interest::READABLE)?))
    }

    /// Waits for so long; may be dropped and used again.
    ///
    /// # Errors
    /// When the kernel refuses the timer.
    pub(super) async fn sleep(&self, duration: Duration) -> io::Result<()> {
        // Zero would disarm the timer.
        let duration = duration.max(Duration::from_nanos(1));
        self.0
            .get_ref()
            .0
            .set(Expiration::OneShot(TimeSpec::from_duration(duration)), TimerSetTimeFlags::empty())?;
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(expired) = ready.try_io(|timer| Ok(timer.get_ref().0.wait()?)) {
                return expired;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bulkhead_process::Monotonic;

    use super::*;

    #[tokio::test]
    async fn waits_at_least_as_long_as_asked_also_after_a_wait_that_was_dropped() {
        let timer = Timer::new().expect("a timer");
        let dropped = tokio::time::timeout(Duration::from_millis(1), timer.sleep(Duration::from_secs(600)));
        assert!(dropped.await.is_err());
        for micros in [0, 300, 2_500] {
            let (clock, wanted) = (Monotonic::start(), Duration::from_micros(micros));
            timer.sleep(wanted).await.expect("waits");
            assert!(clock.elapsed() >= wanted);
        }
    }
}
