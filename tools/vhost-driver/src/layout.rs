// SPDX-License-Identifier: GPL-2.0

//! Where the three parts of a split virtqueue are (virtio 1.3, section 2.7).

use crate::error::{Error, Result};
use crate::memory::Gpa;

/// Places of descriptor table, avail ring and used ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingLayout {
    /// Descriptors: a power of two, 32768 at most.
    pub num: u16,
    /// Descriptor table, aligned to 16.
    pub desc: Gpa,
    /// Avail ring, aligned to 2.
    pub avail: Gpa,
    /// Used ring, aligned to 4.
    pub used: Gpa,
}

/// Bytes of a descriptor.
pub(crate) const DESC_SIZE: u64 = 16;
const USED_ELEM_SIZE: u64 = 8;
/// Bytes in front of the entries of either ring: flags and index.
const HEADER_SIZE: u64 = 4;

impl RingLayout {
    /// Puts the parts one behind the other from `base`, which is aligned to 16. They take [`RingLayout::size`] bytes.
    ///
    /// # Errors
    ///
    /// [`Error::BadLayout`].
    pub fn new(num: u32, base: Gpa) -> Result<Self> {
        let small = u16::try_from(num).ok().filter(|num| num.is_power_of_two());
        let aligned = base.0 % DESC_SIZE == 0;
        let num = small.filter(|_| aligned).ok_or(Error::BadLayout(num))?;
        let avail = base + DESC_SIZE * u64::from(num);
        let avail_size = HEADER_SIZE + 2 * u64::from(num) + 2;
        let used = avail + avail_size.next_multiple_of(4);
        Ok(Self {
            num,
            desc: base,
            avail,
            used,
        })
    }

    /// Bytes of a ring of `num` descriptors.
    pub fn size(num: u16) -> u64 {
        let num = u64::from(num);
        let avail_size = HEADER_SIZE + 2 * num + 2;
        DESC_SIZE * num + avail_size.next_multiple_of(4) + Self::used_size(num)
    }

    fn used_size(num: u64) -> u64 {
        HEADER_SIZE + USED_ELEM_SIZE * num + 2
    }

    /// `avail->flags`.
    pub fn avail_flags(&self) -> Gpa {
        self.avail
    }

    /// `avail->idx`.
    pub fn avail_idx(&self) -> Gpa {
        self.avail + 2
    }

    /// The entry of the avail ring for `index`.
    pub fn avail_entry(&self, index: u16) -> Gpa {
        let slot = index & (self.num - 1);
        self.avail + HEADER_SIZE + 2 * u64::from(slot)
    }

    /// `used_event`, behind the avail ring.
    pub fn used_event(&self) -> Gpa {
        self.avail + HEADER_SIZE + 2 * u64::from(self.num)
    }

    /// `used->flags`.
    pub fn used_flags(&self) -> Gpa {
        self.used
    }

    /// `used->idx`.
    pub fn used_idx(&self) -> Gpa {
        self.used + 2
    }

    /// The entry of the used ring for `index`.
    pub fn used_entry(&self, index: u16) -> Gpa {
        let slot = index & (self.num - 1);
        self.used + HEADER_SIZE + USED_ELEM_SIZE * u64::from(slot)
    }

    /// `avail_event`, behind the used ring.
    pub fn avail_event(&self) -> Gpa {
        self.used + HEADER_SIZE + USED_ELEM_SIZE * u64::from(self.num)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_ring_of_four() {
        let ring = RingLayout::new(4, Gpa(0x1000)).unwrap();
        assert_eq!((ring.avail, ring.used_event()), (Gpa(0x1040), Gpa(0x104c)));
        assert_eq!((ring.used, ring.avail_event()), (Gpa(0x1050), Gpa(0x1074)));
        assert_eq!(ring.avail_entry(5), Gpa(0x1046));
        assert_eq!(ring.used_entry(u16::MAX), Gpa(0x106c));
        assert_eq!(RingLayout::size(4), 0x76);
    }

    #[test]
    fn sizes_that_are_no_power_of_two_are_refused() {
        for num in [0, 3, 65535, 65536] {
            assert!(RingLayout::new(num, Gpa(0)).is_err(), "{num}");
        }
        assert!(RingLayout::new(1, Gpa(8)).is_err());
        assert!(RingLayout::new(32768, Gpa(16)).is_ok());
    }
}
