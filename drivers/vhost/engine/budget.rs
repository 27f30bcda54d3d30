// SPDX-License-Identifier: GPL-2.0

//! How much one run of a vring may do before others get their turn.

/// Packets that one run handles (C: `VHOST_NET_PKT_WEIGHT`).
pub const PACKETS: u32 = 256;
/// Bytes that one run handles (C: `VHOST_NET_WEIGHT`).
pub const BYTES: u64 = 0x80000;

/// What a run has used. C: `vhost_exceeds_weight()`.
///
/// Every turn of the loop counts, whatever came of it: a guest that makes the
/// device drop packets, or look in vain, gets no more time than others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Budget {
    turns: u32,
    bytes: u64,
}

impl Budget {
    /// A full budget.
    pub const fn new() -> Self {
        Self { turns: 0, bytes: 0 }
    }

    /// Whether another turn comes after the one that moves `bytes`.
    #[inline]
    pub fn allows_more(&self, bytes: u64) -> bool {
        let mut after = *self;
        !after.spend(bytes)
    }

    /// Counts one turn that moved `bytes`. `true` when the run must end.
    #[inline]
    #[must_use]
    pub fn spend(&mut self, bytes: u64) -> bool {
        self.turns = self.turns.saturating_add(1);
        self.bytes = self.bytes.saturating_add(bytes);
        self.turns >= PACKETS || self.bytes >= BYTES
    }
}
