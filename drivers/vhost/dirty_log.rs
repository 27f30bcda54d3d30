// SPDX-License-Identifier: GPL-2.0

//! What a vring knows of the owner's dirty log.

use crate::{
    engine::{
        dirty_log::{Logged, What},
        features,
        iotlb::AddressMap,
        layout,
        ring_map::Mapped,
        split::SplitQueue,
    },
    kapi::{dirty_log::OwnerBitmap, eventfd::EventFd, owner::OwnerMemory, user_memory::access_ok},
    table::MemTable,
};
use kernel::sync::Arc;

/// The owner's memory, with a log of what is written.
pub(crate) type LoggedMemory<'a> = Logged<'a, MappedMemory<'a>, OwnerBitmap<'a>>;
/// The owner's memory, with ring addresses that go through the device IOTLB if
/// there is one.
pub(crate) type MappedMemory<'a> = Mapped<'a, OwnerMemory>;

/// Guest memory that one byte of the map stands for.
const BYTES_PER_BYTE: u64 = 4096 * 8;

/// The log of a vring.
pub(crate) struct Log {
    /// The map, in the owner's memory.
    pub(crate) base: u64,
    /// The guest-physical address at which the used ring is logged, if it is.
    pub(crate) used: Option<u64>,
    /// Signaled after what is logged.
    pub(crate) fd: Option<Arc<EventFd>>,
}

impl Log {
    pub(crate) const fn new() -> Self {
        Self {
            base: 0,
            used: None,
            fd: None,
        }
    }

    /// What is to be logged of `queue`.
    pub(crate) fn what(&self, queue: &SplitQueue) -> What {
        What {
            used: self.used,
            buffers: queue.has(features::LOG_ALL),
        }
    }

    /// `mem` with this log of what `queue` writes to it.
    pub(crate) fn memory<'a>(
        &'a self,
        mem: &'a MappedMemory<'a>,
        queue: &SplitQueue,
        table: Option<&'a Arc<MemTable>>,
    ) -> LoggedMemory<'a> {
        let bitmap = OwnerBitmap::new(*mem.inner(), self.base, self.fd.as_deref());
        let [_, _, used] = queue.addresses();
        let map = match table {
            Some(table) => table.map(),
            None => AddressMap::new(&[], false),
        };
        Logged::new(mem, bitmap, self.what(queue), used, map).behind(mem.iotlb())
    }

    /// Whether a map at `base` may have the used ring of `queue`, logged at
    /// `used`. C: `vq_log_used_access_ok()`.
    pub(crate) fn used_ok(base: u64, used: Option<u64>, queue: &SplitQueue) -> bool {
        let bytes = layout::used_bytes(queue.num(), queue.event_idx());
        used.is_none_or(|gpa| range_ok(base, gpa, bytes))
    }

    /// Whether a map at `base` may have all regions of `table`.
    pub(crate) fn table_ok(base: u64, table: &MemTable) -> bool {
        table
            .map()
            .ranges()
            .iter()
            .all(|range| range_ok(base, range.start(), range.size()))
    }
}

/// Whether the bits of `size` bytes at `gpa`, in a map at `base`, lie where user
/// memory may lie. C: `log_access_ok()`.
fn range_ok(base: u64, gpa: u64, size: u64) -> bool {
    let bytes = size.saturating_add(BYTES_PER_BYTE - 1) / BYTES_PER_BYTE;
    base.checked_add(gpa / BYTES_PER_BYTE)
        .is_some_and(|start| access_ok(start, bytes))
}
