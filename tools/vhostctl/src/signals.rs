// SPDX-License-Identifier: GPL-2.0

//! SIGINT, SIGTERM and SIGHUP end what goes on, in order.

use nix::errno::Errno;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use crate::failure::{Failure, Result};

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The time is up.
    Time,
    /// A signal says to end.
    End,
    /// The file can be read, or another signal came (the terminal's size changed).
    Input,
}

/// The signals, blocked and read from a file instead.
#[derive(Debug)]
pub struct Signals(SignalFd);

impl Signals {
    /// Blocks them in this thread; call it before any other is started.
    ///
    /// # Errors
    ///
    /// Those of signalfd(2).
    pub fn block() -> Result<Self> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
            set.add(signal);
        }
        let failed = |errno| Failure::Other(format!("signalfd: {errno}"));
        set.thread_block().map_err(failed)?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        SignalFd::with_flags(&set, flags).map(Self).map_err(failed)
    }

    /// Waits; false if a signal says to end.
    ///
    /// # Errors
    ///
    /// Those of poll(2).
    pub fn wait(&self, time: Duration) -> Result<bool> {
        let end = Instant::now() + time;
        loop {
            match self.wait_for(end.saturating_duration_since(Instant::now()), None)? {
                Event::Time => return Ok(true),
                Event::End => return Ok(false),
                Event::Input => {}
            }
        }
    }

    /// Waits for the time to be up, a signal, or a file to be readable.
    ///
    /// # Errors
    ///
    /// Those of poll(2).
    pub fn wait_for(&self, time: Duration, input: Option<BorrowedFd<'_>>) -> Result<Event> {
        let mut fds = vec![PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
        fds.extend(input.map(|fd| PollFd::new(fd, PollFlags::POLLIN)));
        // Up to the next millisecond: else the last part of one would be waited in many turns.
        let millis = i32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        let timeout = PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(0) => return Ok(Event::Time),
            Ok(_) => {}
            Err(Errno::EINTR) => return Ok(Event::Input),
            Err(errno) => return Err(Failure::Other(format!("poll: {errno}"))),
        }
        let ended = fds.first().and_then(PollFd::any).unwrap_or(false);
        Ok(if ended { Event::End } else { Event::Input })
    }
}
