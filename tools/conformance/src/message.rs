// SPDX-License-Identifier: GPL-2.0

//! Messages of the device IOTLB (`struct vhost_msg`, `struct vhost_msg_v2`).

/// `VHOST_IOTLB_UPDATE`.
pub const UPDATE: u8 = 2;
/// `VHOST_IOTLB_INVALIDATE`.
pub const INVALIDATE: u8 = 3;
/// Bytes of a message of either version.
pub const SIZE: usize = 72;

/// A `struct vhost_iotlb_msg`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Message {
    /// The driver's address.
    pub iova: u64,
    /// Bytes.
    pub size: u64,
    /// The owner's address.
    pub uaddr: u64,
    /// 1 to read, 2 to write.
    pub perm: u8,
    /// What it says.
    pub kind: u8,
}

impl Message {
    /// As a message of this type, which need not be one of the two there are.
    pub fn of_type(&self, kind: u32) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 4]);
        for field in [self.iova, self.size, self.uaddr] {
            bytes.extend(field.to_ne_bytes());
        }
        bytes.extend([self.perm, self.kind]);
        bytes.resize(SIZE, 0);
        bytes
    }

    /// As a message of version 2.
    pub fn version_2(&self) -> Vec<u8> {
        self.of_type(2)
    }
}
