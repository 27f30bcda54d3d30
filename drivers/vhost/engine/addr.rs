// SPDX-License-Identifier: GPL-2.0

//! Addresses, one type per address space, so that they never mix.

/// An address as the driver writes it into a descriptor: guest-physical, or an
/// I/O virtual address with `VIRTIO_F_ACCESS_PLATFORM`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Iova(pub u64);

/// An address in the owner's address space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(transparent)]
pub struct Uva(pub u64);

/// An address of a ring part, as `VHOST_SET_VRING_ADDR` gave it.
///
/// It is an address in the owner's address space, or an I/O virtual address
/// with `VIRTIO_F_ACCESS_PLATFORM`: the [`GuestMemory`] that is asked knows.
///
/// [`GuestMemory`]: super::memory::GuestMemory
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct RingAddr(pub u64);

impl RingAddr {
    /// The address `bytes` further on. Wraps; the memory checks the result.
    #[inline]
    pub const fn add(self, bytes: u64) -> Self {
        Self(self.0.wrapping_add(bytes))
    }
}

/// A contiguous piece of the owner's memory: a C `struct iovec` on 64 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Segment {
    /// First byte.
    pub addr: Uva,
    /// In bytes.
    pub len: u64,
}
