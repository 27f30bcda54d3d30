// SPDX-License-Identifier: GPL-2.0

//! Messages of the device IOTLB (`include/uapi/linux/vhost_types.h`).

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use nix::errno::Errno;

use crate::device::VhostNet;
use crate::error::{Context, Error, Result};
use crate::eventfd::wait_readable;

/// The device may read.
pub const READ: u8 = 1;
/// The device may write.
pub const WRITE: u8 = 2;
/// Bytes of a message.
pub const MSG_SIZE: usize = 72;

/// The kind of a message: both have the same layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `VHOST_IOTLB_MSG`.
    V1 = 1,
    /// `VHOST_IOTLB_MSG_V2`.
    V2 = 2,
}

/// `VHOST_IOTLB_*`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// The device asks.
    Miss = 1,
    /// Add an entry.
    Update = 2,
    /// Take entries out.
    Invalidate = 3,
    /// Something that the device does not take.
    AccessFail = 4,
}

/// A message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Its layout.
    pub kind: Kind,
    /// What it says.
    pub what: What,
    /// First address.
    pub iova: u64,
    /// Bytes.
    pub size: u64,
    /// Where it is in the owner's memory.
    pub uva: u64,
    /// [`READ`], [`WRITE`].
    pub access: u8,
}

impl Message {
    /// The message in memory.
    pub fn bytes(&self) -> [u8; MSG_SIZE] {
        let mut bytes = [0; MSG_SIZE];
        bytes[0] = self.kind as u8; // CAST: 1 or 2.
        bytes[8..16].copy_from_slice(&self.iova.to_ne_bytes());
        bytes[16..24].copy_from_slice(&self.size.to_ne_bytes());
        bytes[24..32].copy_from_slice(&self.uva.to_ne_bytes());
        bytes[32] = self.access;
        bytes[33] = self.what as u8; // CAST: 1 to 4.
        bytes
    }
}

/// A question of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// The kind of the message.
    pub kind: Kind,
    /// The first address that it does not know.
    pub iova: u64,
    /// What it wants to do there.
    pub access: u8,
}

impl VhostNet {
    /// Writes bytes to the device; answers how many it says it took.
    ///
    /// # Errors
    ///
    /// Those of write(2).
    pub fn write_bytes(&self, bytes: &[u8]) -> Result<usize> {
        self.file().write(bytes).context("write to the device")
    }

    /// Reads bytes from the device, however long that takes.
    ///
    /// # Errors
    ///
    /// Those of read(2).
    pub fn read_bytes(&self, bytes: &mut [u8]) -> Result<usize> {
        self.file().read(bytes).context("read from the device")
    }

    /// Writes a message.
    ///
    /// # Errors
    ///
    /// EFAULT if it cannot be served.
    pub fn send_message(&self, message: &Message) -> Result {
        self.write_bytes(&message.bytes()).map(|_| ())
    }

    /// Waits for a miss, `timeout` at most.
    ///
    /// # Errors
    ///
    /// Those of poll(2) and read(2); EPROTO for what is no miss.
    pub fn next_miss(&self, timeout: Duration) -> Result<Option<Miss>> {
        if !wait_readable(&[self.as_fd()], timeout)? {
            return Ok(None);
        }
        let mut bytes = [0; MSG_SIZE];
        let size = self.read_bytes(&mut bytes)?;
        let kind = match bytes[0] {
            1 => Kind::V1,
            2 => Kind::V2,
            _ => return Err(Error::new("a message of the device", Errno::EPROTO)),
        };
        let mut iova = [0; 8];
        iova.copy_from_slice(&bytes[8..16]);
        let iova = u64::from_ne_bytes(iova);
        let access = bytes[32];
        let (what, uva, size_field) = (What::Miss, 0, 0);
        let plain = Message {
            kind,
            what,
            iova,
            size: size_field,
            uva,
            access,
        };
        // Nothing but the miss: no byte of the kernel's memory.
        if size != MSG_SIZE || bytes != plain.bytes() {
            return Err(Error::new("a message of the device", Errno::EPROTO));
        }
        Ok(Some(Miss { kind, iova, access }))
    }
}
