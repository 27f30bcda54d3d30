// SPDX-License-Identifier: GPL-2.0

//! Polls without a pause while there is much to do.

/// Nanoseconds that a rate is of.
const MILLISECOND: u64 = 1_000_000;

/// What a vring with the continuous policy goes by. Times are of one clock, in
/// nanoseconds.
#[derive(Clone, Debug)]
pub struct Continuous {
    on: bool,
    /// On: when there was work last. Off: since when packets are counted.
    since: u64,
    /// Packets moved until then.
    packets: u64,
}

impl Continuous {
    /// Of a vring that has moved nothing.
    pub const fn new() -> Self {
        Self {
            on: false,
            since: 0,
            packets: 0,
        }
    }

    /// Whether to look again without a pause, there being nothing to do at
    /// `now`, after `packets` were moved in all.
    ///
    /// It begins when at least `start_rate` packets, but not 0, were moved in a
    /// millisecond, and ends when none is moved for `stop_idle` nanoseconds.
    pub fn goes_on(&mut self, now: u64, packets: u64, start_rate: u32, stop_idle: u64) -> bool {
        let elapsed = now.saturating_sub(self.since);
        let moved = packets.wrapping_sub(self.packets);

        if self.on {
            if moved != 0 {
                (self.since, self.packets) = (now, packets);
            } else if elapsed > stop_idle {
                self.stop(now, packets);
            }
            return self.on;
        }
        if start_rate == 0 {
            return false;
        }
        let needed = u64::from(start_rate).saturating_mul(elapsed.max(MILLISECOND));
        if moved.saturating_mul(MILLISECOND) >= needed {
            self.on = true;
        } else if elapsed < MILLISECOND {
            return false;
        }
        (self.since, self.packets) = (now, packets);
        self.on
    }

    /// Ends it: something else is in the way.
    pub fn stop(&mut self, now: u64, packets: u64) {
        (self.on, self.since, self.packets) = (false, now, packets);
    }
}

impl Default for Continuous {
    fn default() -> Self {
        Self::new()
    }
}
