// SPDX-License-Identifier: GPL-2.0

//! The memory table: which guest-physical address lies where in the owner's
//! memory.

use crate::{
    engine::iotlb::{self, AddressMap, Range},
    ioctl::{self, RawRegion},
    kapi::{clock, param, user_memory::access_ok},
};
use kernel::{prelude::*, rbtree::RBTree, sync::Arc};

/// A memory table. Never changes once it is built.
pub(crate) struct MemTable {
    /// Sorted by start.
    ranges: KVVec<Range>,
    /// Whether two ranges overlap.
    overlap: bool,
}

impl MemTable {
    /// A table without regions.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also if the module's parameters allow no entry.
    pub(crate) fn empty() -> Result<Arc<Self>> {
        param::max_iotlb_entries().ok_or(ENOMEM)?;
        Self::new(KVVec::new())
    }

    fn new(mut ranges: KVVec<Range>) -> Result<Arc<Self>> {
        let overlap = iotlb::index(&mut ranges);
        Ok(Arc::new(Self { ranges, overlap }, GFP_KERNEL)?)
    }

    /// Builds the table of a `struct vhost_memory`. C: `vhost_set_memory()`.
    ///
    /// Of more entries than `max_iotlb_entries` the latest are kept.
    ///
    /// # Errors
    ///
    /// `EFAULT` if it cannot be read or a region wraps, `EOPNOTSUPP` if its
    /// padding is not zero, `E2BIG` above `max_mem_regions`, `EINVAL` if no
    /// entry is allowed, `ENOMEM`.
    pub(crate) fn read(arg: usize) -> Result<Arc<Self>> {
        let [count, padding] = ioctl::read::<[u32; 2]>(arg)?;
        if padding != 0 {
            return Err(EOPNOTSUPP);
        }
        if count > param::max_mem_regions().into() {
            return Err(E2BIG);
        }
        let limit = param::max_iotlb_entries().ok_or(EINVAL)?.get();

        let header = size_of::<[u32; 2]>();
        // CAST: at most 65,535.
        let count = count as usize;
        let bytes = count.wrapping_mul(size_of::<RawRegion>());
        let mut reader = ioctl::reader(arg.wrapping_add(header), bytes);
        // A region that is the whole address space takes two ranges.
        let mut ranges = KVVec::with_capacity(count.wrapping_mul(2), GFP_KERNEL)?;
        for _ in 0..count {
            let [start, size, uva, _padding] = reader.read::<RawRegion>()?;
            let region = Range::of_region(start, size, uva)?;
            if limit < 2 && matches!(region, [_, Some(_)]) {
                return Err(EFAULT);
            }
            for range in region.into_iter().flatten() {
                ranges.push_within_capacity(range).map_err(|_| ENOMEM)?;
            }
            clock::cond_resched();
        }
        let surplus = ranges.len().saturating_sub(limit);
        Self::new(sorted(ranges.get(surplus..).unwrap_or_default())?)
    }

    /// The table, for the engine.
    #[inline]
    pub(crate) fn map(&self) -> AddressMap<'_> {
        AddressMap::new(&self.ranges, self.overlap)
    }

    /// Whether every region lies where user memory may lie.
    ///
    /// Nothing is touched: owners pass tables that are mostly unmapped. C:
    /// `vq_memory_access_ok()`.
    pub(crate) fn access_ok(&self) -> bool {
        self.ranges
            .iter()
            .all(|range| access_ok(range.uva(), range.size()))
    }
}

/// `ranges` sorted by start, equal starts in their order.
///
/// An insertion sort would let an owner whose table may be large keep the CPU.
fn sorted(ranges: &[Range]) -> Result<KVVec<Range>> {
    let mut tree = RBTree::new();
    for (order, range) in ranges.iter().enumerate() {
        tree.try_create_and_insert((range.start(), order), *range, GFP_KERNEL)?;
        clock::cond_resched();
    }

    let mut sorted = KVVec::with_capacity(ranges.len(), GFP_KERNEL)?;
    for range in tree.values() {
        sorted.push_within_capacity(*range).map_err(|_| ENOMEM)?;
    }
    Ok(sorted)
}
