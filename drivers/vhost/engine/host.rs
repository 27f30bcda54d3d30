// SPDX-License-Identifier: GPL-2.0

//! What the engine asks of the machine around it.

use super::split::SplitQueue;

/// How a busy-poll window ended, as far as the run needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// There is no window: nothing was looked at.
    Off,
    /// It closed, or something showed: look once more, then wait for a kick.
    Done,
    /// Other work of this worker waits: look once more, then queue again
    /// instead of enabling kicks.
    Interrupted,
}

/// The surroundings of one run of one vring.
pub trait Host {
    /// Signals the call eventfd, if there is one.
    fn call(&mut self);

    /// Busy-polls, after the run found nothing and published all it had.
    ///
    /// `queue` is the vring of this run, kicks off. C: `vhost_net_busy_poll()`.
    fn poll(&mut self, queue: &SplitQueue) -> Polled;
}

/// What a busy-poll window looks at. Every method is cheap and sleeps never.
pub trait Watch {
    /// A clock that counts in units of 1,024 ns (C: `busy_clock()`).
    fn now(&self) -> u64;
    /// Another task wants this CPU, or a signal waits for this one.
    fn must_yield(&self) -> bool;
    /// Somebody outside the worker waits for a lock that this run holds.
    fn wanted(&self) -> bool;
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
