// SPDX-License-Identifier: GPL-2.0

//! How much one run of a vring may do before others get their turn.

/// Packets that one run handles (C: `VHOST_NET_PKT_WEIGHT`).
pub const PACKETS: u64 = 256;
/// Bytes that one run handles (C: `VHOST_NET_WEIGHT`).
pub const BYTES: u64 = 0x80000;

/// Bytes that walking a descriptor counts as, beyond a chain's only one.
pub const DESC_COST: u64 = 64;

/// A turn, where [`Budget`] counts them: above the bytes.
const TURN: u64 = 1 << 40;
/// Bits of which one is set when a run must end.
const SPENT: u64 = (TURN * PACKETS).wrapping_neg() | (TURN - BYTES);
const _: () = assert!(PACKETS.is_power_of_two() && BYTES.is_power_of_two());

/// What a run has used. C: `vhost_exceeds_weight()`.
///
/// Every turn of the loop counts, whatever came of it: a guest that makes the
/// device drop packets, or look in vain, gets no more time than others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    /// Bytes, and turns in units of [`TURN`]: one addition and one test a
    /// packet.
    used: u64,
}

impl Budget {
    /// A full budget.
    pub const fn new() -> Self {
        Self { used: 0 }
    }

    /// Whether another turn comes after the one that moves `bytes`.
    #[inline]
    pub fn allows_more(&self, bytes: u64) -> bool {
        let mut after = *self;
        !after.spend(bytes)
    }

    /// Counts `descs` descriptors walked in the turn at hand.
    pub fn charge(&mut self, descs: usize) {
        let descs = u64::try_from(descs).unwrap_or(u64::MAX);
        let bytes = descs.saturating_mul(DESC_COST).min(BYTES);
        self.used = self.used.wrapping_add(bytes);
    }

    /// Counts one turn that moved `bytes`. `true` when the run must end.
    #[inline]
    #[must_use]
    pub fn spend(&mut self, bytes: u64) -> bool {
        // More than all makes no difference, and does not reach the turns.
        self.used = self.used.wrapping_add(TURN.wrapping_add(bytes.min(BYTES)));
        self.used & SPENT != 0
    }
}
