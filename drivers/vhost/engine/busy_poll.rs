// SPDX-License-Identifier: GPL-2.0

//! Looks for work without sleeping, for a window of time.

use super::host::End;
use super::host::Watch;
use super::host::Window;
use super::policy::UNIT;

/// Looks until something shows or `window` units of 1,024 ns are over.
///
/// The order of the looks is C's (`vhost_net_busy_poll()`). An rx ring without
/// buffers does not end the window while data waits for it: nothing could be
/// done about it.
pub fn spin<W: Watch>(watch: &W, window: u64) -> Window {
    let start = watch.now();
    // C subtracts units; each is cut off at its end.
    let unit = start & !(UNIT - 1);
    let mut now = start;

    let end = loop {
        if watch.must_yield() {
            break if watch.signal_pending() {
                End::Signal
            } else {
                End::Resched
            };
        }
        now = watch.now();
        if now.wrapping_sub(unit) / UNIT > window {
            break End::Time;
        }
        if watch.has_work() {
            break End::Work;
        }
        if watch.wanted() {
            break End::Waiter;
        }
        if let Some(end) = watch.hindered(now) {
            break end;
        }
        if (watch.socket_ready() && !watch.rx_empty()) || !watch.tx_empty() {
            break End::Packet;
        }
        watch.relax();
    };
    let ns = now.wrapping_sub(start);
    Window { end, ns }
}
