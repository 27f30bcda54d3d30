// SPDX-License-Identifier: GPL-2.0

//! Why a run ends early.

use std::time::{Duration, Instant};

use crate::vring::RX;

/// Why a run ends early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The device broke the rules of the ring.
    #[error("{} ring: {source}", ring_name(*.index))]
    Device {
        /// Which ring.
        index: u32,
        /// Which rule.
        source: vhost_driver::Error,
    },
    /// Nothing moved for too long.
    #[error("stalled: {0}")]
    Stalled(String),
    /// The device said something about its rings that is not so.
    #[error("state: {0}")]
    State(String),
    /// The kernel refused a call.
    #[error(transparent)]
    Kernel(#[from] vhost_uapi::Error),
}

/// The name of a ring, in messages.
pub fn ring_name(index: u32) -> &'static str {
    if index == RX {
        "rx"
    } else {
        "tx"
    }
}

/// Waits for progress, but not forever.
#[derive(Debug)]
pub struct Patience {
    limit: Duration,
    last: Instant,
}

impl Patience {
    /// Patience for `limit` without progress.
    pub fn new(limit: Duration) -> Self {
        let last = Instant::now();
        Self { limit, last }
    }

    /// Something moved.
    pub fn progress(&mut self) {
        self.last = Instant::now();
    }

    /// Nothing moved.
    ///
    /// # Errors
    ///
    /// [`Failure::Stalled`] with what was waited for, if that has been so for too long.
    pub fn wait(&self, what: impl FnOnce() -> String) -> Result<(), Failure> {
        if self.last.elapsed() <= self.limit {
            return Ok(());
        }
        let seconds = self.limit.as_secs();
        Err(Failure::Stalled(format!(
            "{} (nothing moved for {seconds} s)",
            what()
        )))
    }
}
