// SPDX-License-Identifier: GPL-2.0

//! eventfds: how kicks, calls and errors travel.

use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd as NixEventFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use crate::error::{Context, Result};

/// A non-blocking eventfd.
#[derive(Debug)]
pub struct EventFd(NixEventFd);

impl EventFd {
    /// Makes one, with count 0.
    ///
    /// # Errors
    ///
    /// Those of eventfd(2).
    pub fn new() -> Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        NixEventFd::from_value_and_flags(0, flags)
            .map(Self)
            .context("eventfd")
    }

    /// Adds 1 to the count.
    ///
    /// # Errors
    ///
    /// EAGAIN if nobody has taken the count for 2^64 - 2 signals.
    pub fn signal(&self) -> Result {
        self.0.write(1).map(|_| ()).context("write to eventfd")
    }

    /// Takes the count and makes it 0, without waiting.
    ///
    /// # Errors
    ///
    /// Those of read(2), apart from EAGAIN, which is a count of 0.
    pub fn take(&self) -> Result<u64> {
        match self.0.read() {
            Err(Errno::EAGAIN) => Ok(0),
            result => result.context("read from eventfd"),
        }
    }

    /// Waits for a count and takes it; 0 if none came within `timeout`.
    ///
    /// # Errors
    ///
    /// Those of poll(2) and read(2).
    pub fn wait(&self, timeout: Duration) -> Result<u64> {
        wait_readable(&[self.as_fd()], timeout)?;
        self.take()
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of `fds` can be read, or `timeout` (in whole milliseconds, rounded up) is over. Says whether one can.
///
/// # Errors
///
/// Those of poll(2), apart from EINTR, which ends the wait.
pub fn wait_readable(fds: &[BorrowedFd<'_>], timeout: Duration) -> Result<bool> {
    let mut polled: Vec<PollFd<'_>> = fds
        .iter()
        .map(|fd| PollFd::new(*fd, PollFlags::POLLIN))
        .collect();
    let millis = i32::try_from(timeout.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
    match poll(
        &mut polled,
        PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX),
    ) {
        Err(Errno::EINTR) => Ok(false),
        result => result.map(|ready| ready > 0).context("poll"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_returns_the_sum_and_clears_it() {
        let fd = EventFd::new().unwrap();
        assert_eq!(fd.take().unwrap(), 0);
        fd.signal().unwrap();
        fd.signal().unwrap();
        assert_eq!(fd.wait(Duration::from_secs(1)).unwrap(), 2);
        assert_eq!(fd.wait(Duration::from_millis(1)).unwrap(), 0);
    }
}
