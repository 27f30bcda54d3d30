// SPDX-License-Identifier: GPL-2.0

//! Looks for work without sleeping, for a window of time.

use super::host::Watch;

/// Why a window ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The window closed.
    Window,
    /// There is a packet to move.
    Found,
    /// A device of this worker has other work.
    Work,
    /// Another task wants the CPU, or a signal waits.
    Yield,
    /// Somebody waits for a lock of this run.
    Wanted,
}

/// Looks until something shows or `window` units of 1,024 ns are over.
///
/// The order of the looks is C's (`vhost_net_busy_poll()`). An rx ring without
/// buffers does not end the window while data waits for it: nothing could be
/// done about it.
pub fn spin<W: Watch>(watch: &W, window: u64) -> End {
    let start = watch.now();

    loop {
        if watch.must_yield() {
            return End::Yield;
        }
        if watch.now().wrapping_sub(start) > window {
            return End::Window;
        }
        if watch.has_work() {
            return End::Work;
        }
        if watch.wanted() {
            return End::Wanted;
        }
        if (watch.socket_ready() && !watch.rx_empty()) || !watch.tx_empty() {
            return End::Found;
        }
        watch.relax();
    }
}
