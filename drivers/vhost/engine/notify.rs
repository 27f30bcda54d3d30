// SPDX-License-Identifier: GPL-2.0

//! Whether the driver wants a call (virtio 1.3, sections 2.7.7 and 2.7.10).

/// Whether an index that moves from `old` to `new` passes `event`.
///
/// That is: whether an element was placed at index `event` (section 2.7.7.2).
#[inline]
pub fn need_event(event: u16, new: u16, old: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// The used index at the last call decision. C: `signalled_used`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Signalled {
    index: Option<u16>,
}

impl Signalled {
    /// No decision made yet: the next one is to call.
    pub const fn none() -> Self {
        Self { index: None }
    }

    /// Whether the next decision is to call.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.index.is_none()
    }

    /// Notes that the used index went on by `count`, to `new`.
    ///
    /// If it overtakes the last decision, what happened since spans more than
    /// all indices: the next decision is to call.
    #[inline]
    pub fn moved(&mut self, new: u16, count: u16) {
        if self.index.is_some_and(|old| new.wrapping_sub(old) < count) {
            self.index = None;
        }
    }

    /// Makes the used index `new` the last decision's. Answers the one before.
    #[inline]
    pub fn decide(&mut self, new: u16) -> Option<u16> {
        self.index.replace(new)
    }
}
