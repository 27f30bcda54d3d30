// SPDX-License-Identifier: GPL-2.0

//! Keeps a sender from running ahead of what the receiver has room for: without it, taps and sockets drop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Counts what is under way between one sender and one receiver.
#[derive(Debug)]
pub struct Gate {
    window: u64,
    sent: AtomicU64,
    seen: AtomicU64,
    closed: AtomicBool,
    sender: OnceLock<Thread>,
    turn: Mutex<()>,
}

/// How long a sender sleeps at most before it looks again.
const NAP: Duration = Duration::from_millis(10);

impl Gate {
    /// Lets `window` packets be under way.
    pub fn new(window: u64) -> Self {
        Self {
            window,
            sent: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            sender: OnceLock::new(),
            turn: Mutex::new(()),
        }
    }

    /// Packets sent.
    pub fn total(&self) -> u64 {
        self.sent.load(Ordering::Acquire)
    }

    /// Packets seen by the receiver.
    pub fn seen(&self) -> u64 {
        self.seen.load(Ordering::Acquire)
    }

    /// Whether one more may be sent.
    pub fn has_room(&self) -> bool {
        self.total().saturating_sub(self.seen()) < self.window
    }

    /// The sender is about to send this many more.
    pub fn sent(&self, count: u64) {
        self.sent.fetch_add(count, Ordering::AcqRel);
    }

    /// The receiver has this many more. Wakes the sender when half of the window is free.
    pub fn saw(&self, count: u64) {
        let seen = self.seen.fetch_add(count, Ordering::AcqRel) + count;
        if self.total().saturating_sub(seen) <= self.window / 2 {
            if let Some(sender) = self.sender.get() {
                sender.unpark();
            }
        }
    }

    /// Says whether one more may be sent; if not, sleeps a little first. To be called by one thread only.
    pub fn wait_room(&self) -> bool {
        if self.has_room() {
            return true;
        }
        self.sender.get_or_init(std::thread::current);
        if !self.has_room() {
            std::thread::park_timeout(NAP);
        }
        self.has_room()
    }

    /// To be held by the sender from the look at the room until the packet is sent.
    pub fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the sender from sending, and waits until all that was sent was seen, `patience` at most. Says whether it was;
    /// the sender may go on when what is returned is dropped.
    pub fn pause(&self, patience: Duration) -> Option<MutexGuard<'_, ()>> {
        let turn = self.turn();
        let start = Instant::now();
        while self.seen() < self.total() {
            if start.elapsed() > patience {
                return None;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Some(turn)
    }

    /// The sender has sent its last.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    /// Whether the sender has sent its last.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether all that will ever be sent was seen.
    pub fn is_finished(&self) -> bool {
        self.is_closed() && self.seen() >= self.total()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_is_kept_and_opens_again() {
        let gate = Gate::new(2);
        gate.sent(2);
        assert!(!gate.wait_room());
        gate.saw(1);
        assert!(gate.wait_room());
        gate.close();
        assert!(!gate.is_finished());
        gate.saw(1);
        assert!(gate.is_finished());
    }

    #[test]
    fn pause_waits_until_nothing_is_under_way() {
        let gate = Gate::new(8);
        gate.sent(1);
        assert!(gate.pause(Duration::ZERO).is_none());
        gate.saw(1);
        let paused = gate.pause(Duration::ZERO);
        assert!(paused.is_some() && gate.turn.try_lock().is_err());
        drop(paused);
        assert!(gate.turn.try_lock().is_ok());
    }
}
