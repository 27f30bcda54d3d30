// SPDX-License-Identifier: GPL-2.0

//! What the engine asks of the machine around it.

use super::counters::Counter;
use super::split::SplitQueue;

/// Why a busy-poll window ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The window closed.
    Time,
    /// There is a packet to move.
    Packet,
    /// A device of this worker has other work.
    Work,
    /// Another task wants the CPU.
    Resched,
    /// A signal waits for the worker.
    Signal,
    /// Another task could run on this CPU, and is to be left it.
    Competitor,
    /// No thread of the owner runs that could make work.
    Guest,
    /// There was no window: the vring polls continuously, and others have their
    /// turn now.
    Turn,
    /// Somebody waits for a lock of this run, or gave the window a new length.
    Waiter,
}

impl End {
    /// The counter of windows that ended so.
    pub fn counter(self) -> Option<Counter> {
        let counter = match self {
            Self::Time => Counter::PollEndTime,
            Self::Packet => Counter::PollEndPacket,
            Self::Work => Counter::PollEndWork,
            Self::Resched => Counter::PollEndResched,
            Self::Signal => Counter::PollEndSignal,
            Self::Waiter => Counter::PollEndWaiter,
            Self::Competitor => Counter::PollEndCompetitor,
            Self::Guest => Counter::PollEndGuest,
            Self::Turn => return None,
        };
        Some(counter)
    }

    /// What a run counts as that ends after such a window, if it queues again.
    pub fn requeues(self) -> Option<Counter> {
        match self {
            Self::Work => Some(Counter::LeftWork),
            Self::Turn => Some(Counter::LeftTurn),
            _ => None,
        }
    }
}

/// A busy-poll window that is over.
///
/// After [`End::Work`] and [`End::Turn`] the run looks once more, then queues
/// again instead of enabling kicks; after any other it waits for a kick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Why it ended.
    pub end: End,
    /// How long it was, in nanoseconds.
    pub ns: u64,
}

/// The surroundings of one run of one vring.
pub trait Host {
    /// Whether counting does anything.
    const COUNTS: bool = true;

    /// Adds `n` to a counter of the vring.
    fn count(&mut self, counter: Counter, n: u64);

    /// Signals the call eventfd, if there is one.
    fn call(&mut self);

    /// Busy-polls, after the run found nothing and published all it had. `None`
    /// if there is no window: nothing was looked at.
    ///
    /// `queue` is the vring of this run, kicks off. C: `vhost_net_busy_poll()`.
    fn poll(&mut self, queue: &SplitQueue) -> Option<Window>;

    /// Adds one to a counter of the vring.
    #[inline]
    fn bump(&mut self, counter: Counter) {
        self.count(counter, 1);
    }
}

/// What a busy-poll window looks at. Every method is cheap and sleeps never.
pub trait Watch {
    /// A clock that counts nanoseconds (C: `local_clock()`).
    fn now(&self) -> u64;
    /// Another task wants this CPU, or a signal waits for this one.
    fn must_yield(&self) -> bool;
    /// A signal waits for this task.
    fn signal_pending(&self) -> bool;
    /// Somebody outside the worker waits for a lock that this run holds.
    fn wanted(&self) -> bool;
    /// Why to stop at `now`, whatever the window is.
    fn hindered(&self, now: u64) -> Option<End>;
    /// Any device of this worker has work (C: `vhost_vq_has_work()`).
    fn has_work(&self) -> bool;
    /// The socket has a packet for the guest.
    fn socket_ready(&self) -> bool;
    /// The rx ring has no buffer (C: `vhost_vq_avail_empty()`).
    fn rx_empty(&self) -> bool;
    /// The tx ring has no packet.
    fn tx_empty(&self) -> bool;
    /// Lets the other hyperthread run (C: `cpu_relax()`).
    fn relax(&self);
}
