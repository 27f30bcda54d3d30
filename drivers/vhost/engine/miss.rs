// SPDX-License-Identifier: GPL-2.0

//! Misses of the device IOTLB: what the owner is asked, and what it answers.
//!
//! A message is read and written as a `struct vhost_msg` or `vhost_msg_v2` of
//! `include/uapi/linux/vhost_types.h`; as both have the same layout but for the
//! number in front, it is bytes here. A vring has one miss at most: it stops at
//! the first one until the owner has answered. C: `vhost_iotlb_miss()`,
//! `vhost_process_iotlb_msg()`.

use super::addr::Iova;
use super::error::Access;
use super::iotlb;

/// Bytes of a message.
pub const MSG_BYTES: usize = 72;
/// Bytes that a written message must have: those up to the padding's end.
pub const MSG_MIN: usize = 40;

/// A message of the first kind (C: `VHOST_IOTLB_MSG`).
const MSG_V1: u32 = 1;
/// A message of the second kind (C: `VHOST_IOTLB_MSG_V2`).
const MSG_V2: u32 = 2;

const TYPE_MISS: u8 = 1;
const TYPE_UPDATE: u8 = 2;
const TYPE_INVALIDATE: u8 = 3;

/// What the owner writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// Add an entry.
    Update {
        /// First address.
        iova: u64,
        /// In bytes, not 0.
        size: u64,
        /// Where it is in the owner's memory.
        uva: u64,
        /// `ACCESS_*`.
        access: u32,
    },
    /// Take entries out.
    Invalidate {
        /// First address.
        iova: u64,
        /// In bytes.
        size: u64,
    },
    /// Something that the device does not take.
    Other,
}

impl Message {
    /// The message that lies in memory as `bytes`. `None` if it is none: of an
    /// unknown kind, or an update of no bytes.
    pub fn parse(bytes: &[u8; MSG_MIN]) -> Option<Self> {
        let (kind, rest) = bytes.split_first_chunk()?;
        // A hole, or an address space that there is not.
        let (_, rest) = rest.split_first_chunk::<4>()?;
        let (iova, rest) = rest.split_first_chunk()?;
        let (size, rest) = rest.split_first_chunk()?;
        let (uva, rest) = rest.split_first_chunk()?;
        let [access, what, ..] = *rest else {
            return None;
        };
        if !matches!(u32::from_ne_bytes(*kind), MSG_V1 | MSG_V2) {
            return None;
        }

        let iova = u64::from_ne_bytes(*iova);
        let size = u64::from_ne_bytes(*size);
        match what {
            TYPE_UPDATE if size == 0 => None,
            TYPE_UPDATE => Some(Self::Update {
                iova,
                size,
                uva: u64::from_ne_bytes(*uva),
                access: access.into(),
            }),
            TYPE_INVALIDATE => Some(Self::Invalidate { iova, size }),
            _ => Some(Self::Other),
        }
    }
}

/// A question to the owner: what lies there?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// The first address without an entry.
    pub iova: Iova,
    /// What the device wants to do there.
    pub access: Access,
    /// The owner reads messages of the second kind.
    pub v2: bool,
}

impl Miss {
    /// The message, as it lies in memory.
    pub fn message(&self) -> [u8; MSG_BYTES] {
        let kind = if self.v2 { MSG_V2 } else { MSG_V1 };
        let access = match self.access {
            Access::Read => iotlb::ACCESS_READ,
            Access::Write => iotlb::ACCESS_WRITE,
        };
        let [access, ..] = access.to_le_bytes();

        let mut bytes = [0; MSG_BYTES];
        let mut put = |at: usize, field: &[u8]| {
            for (to, from) in bytes.iter_mut().skip(at).zip(field) {
                *to = *from;
            }
        };
        put(0, &kind.to_ne_bytes());
        put(8, &self.iova.0.to_ne_bytes());
        put(32, &[access, TYPE_MISS]);
        bytes
    }
}

/// The miss of a vring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Asked {
    miss: Miss,
    /// When it was asked, counted in misses.
    serial: u64,
    /// The owner has read it.
    read: bool,
}

/// The misses of a device with `N` vrings.
#[derive(Clone, Copy, Debug)]
pub struct Misses<const N: usize> {
    asked: [Option<Asked>; N],
    count: u64,
}

/// A miss that was read, in case that it gets lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    vring: usize,
    serial: u64,
}

impl<const N: usize> Misses<N> {
    /// No misses.
    pub const fn new() -> Self {
        Self {
            asked: [None; N],
            count: 0,
        }
    }

    /// Asks for `vring`, unless it has asked. Answers whether it had not.
    pub fn ask(&mut self, vring: usize, miss: Miss) -> bool {
        match self.asked.get_mut(vring) {
            Some(place @ None) => {
                *place = Some(Asked {
                    miss,
                    serial: self.count,
                    read: false,
                });
                self.count = self.count.wrapping_add(1);
                true
            }
            _ => false,
        }
    }

    /// Whether there is something to read.
    pub fn is_readable(&self) -> bool {
        self.asked.iter().flatten().any(|asked| !asked.read)
    }

    /// Reads the oldest miss that was not read.
    pub fn read(&mut self) -> Option<(Ticket, Miss)> {
        let unread = self
            .asked
            .iter_mut()
            .enumerate()
            .filter_map(|(vring, asked)| {
                let asked = asked.as_mut().filter(|asked| !asked.read)?;
                Some((vring, asked))
            });
        let (vring, asked) = unread.min_by_key(|(_, asked)| asked.serial)?;
        asked.read = true;
        let serial = asked.serial;
        Some((Ticket { vring, serial }, asked.miss))
    }

    /// Takes back that a miss was read: it is lost, and may be asked again.
    pub fn lose(&mut self, ticket: Ticket) {
        if let Some(place) = self.asked.get_mut(ticket.vring) {
            if place.is_some_and(|asked| asked.serial == ticket.serial) {
                *place = None;
            }
        }
    }

    /// Ends the misses that were read and lie from `start` to `last`. Answers
    /// of each vring whether its own did.
    ///
    /// One that was not read stays: the owner is yet to see it.
    pub fn answer(&mut self, start: u64, last: u64) -> [bool; N] {
        let mut answered = [false; N];
        for (place, answered) in self.asked.iter_mut().zip(&mut answered) {
            let inside = |asked: Asked| start <= asked.miss.iova.0 && asked.miss.iova.0 <= last;
            if place.is_some_and(|asked| asked.read && inside(asked)) {
                *place = None;
                *answered = true;
            }
        }
        answered
    }

    /// Forgets the miss of `vring`.
    pub fn forget(&mut self, vring: usize) {
        if let Some(place) = self.asked.get_mut(vring) {
            *place = None;
        }
    }

    /// Forgets all misses. Answers of each vring whether it had one. C:
    /// `vhost_clear_msg()`.
    pub fn clear(&mut self) -> [bool; N] {
        let mut had = [false; N];
        for (place, had) in self.asked.iter_mut().zip(&mut had) {
            *had = place.take().is_some();
        }
        had
    }
}

impl<const N: usize> Default for Misses<N> {
    fn default() -> Self {
        Self::new()
    }
}
