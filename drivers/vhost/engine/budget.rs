// SPDX-License-Identifier: GPL-2.0

//! How much one run of a vring may do before others get their turn.

/// Packets that one run handles (C: `VHOST_NET_PKT_WEIGHT`).
pub const PACKETS: u64 = 256;
/// Bytes that one run handles (C: `VHOST_NET_WEIGHT`).
pub const BYTES: u64 = 0x80000;

/// Bytes that walking a descriptor counts as, beyond a chain's only one.
pub const DESC_COST: u64 = 64;

/// What a run has used. C: `vhost_exceeds_weight()`.
///
/// Every turn of the loop counts, whatever came of it: a guest that makes the
/// device drop packets, or look in vain, gets no more time than others.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    turns: u64,
    /// One less than what is left: it is spent when they run below 0.
    bytes: u64,
}

impl Budget {
    /// A full budget.
    pub const fn new() -> Self {
        Self {
            turns: PACKETS,
            bytes: BYTES - 1,
        }
    }

    /// Whether another turn comes after the one that moves `bytes`.
    #[inline]
    pub fn allows_more(&self, bytes: u64) -> bool {
        let mut after = *self;
        !after.spend(bytes)
    }

    /// Counts `descs` descriptors walked in the turn at hand.
    #[inline]
    pub fn charge(&mut self, descs: usize) {
        const ALL: usize = 0x2000;
        const _: () = assert!(BYTES / DESC_COST == 0x2000);

        let descs = u64::try_from(descs.min(ALL)).unwrap_or(u64::MAX);
        let bytes = descs.wrapping_mul(DESC_COST);
        match self.bytes.checked_sub(bytes) {
            Some(left) => self.bytes = left,
            None => self.end(),
        }
    }

    /// Counts one turn that moved `bytes`. `true` when the run must end.
    #[inline]
    #[must_use]
    pub fn spend(&mut self, bytes: u64) -> bool {
        self.turns = self.turns.wrapping_sub(1);
        let (left, is_more) = self.bytes.overflowing_sub(bytes);
        self.bytes = left;
        if is_more || self.turns == 0 {
            self.end();
            return true;
        }
        false
    }

    /// The turn at hand, or the next one, is the last.
    fn end(&mut self) {
        (self.turns, self.bytes) = (1, 0);
    }
}

impl Default for Budget {
    fn default() -> Self {
        Self::new()
    }
}
