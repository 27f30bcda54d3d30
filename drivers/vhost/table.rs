// SPDX-License-Identifier: GPL-2.0

//! The memory table: which guest-physical address lies where in the owner's
//! memory.

use crate::{
    engine::iotlb::{self, AddressMap, Range},
    ioctl::{self, RawRegion},
    kapi::user_memory::access_ok,
};
use kernel::{prelude::*, sync::Arc};

/// Regions that one table may have (C: the default of `max_mem_regions`).
const MAX_REGIONS: u32 = 64;

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
    /// `ENOMEM`.
    pub(crate) fn empty() -> Result<Arc<Self>> {
        Self::new(KVVec::new())
    }

    fn new(mut ranges: KVVec<Range>) -> Result<Arc<Self>> {
        let overlap = iotlb::index(&mut ranges);
        Ok(Arc::new(Self { ranges, overlap }, GFP_KERNEL)?)
    }

    /// Builds the table of a `struct vhost_memory`. C: `vhost_set_memory()`.
    ///
    /// # Errors
    ///
    /// `EFAULT` if it cannot be read or a region wraps, `EOPNOTSUPP` if its
    /// padding is not zero, `E2BIG`, `ENOMEM`.
    pub(crate) fn read(arg: usize) -> Result<Arc<Self>> {
        let [count, padding] = ioctl::read::<[u32; 2]>(arg)?;
        if padding != 0 {
            return Err(EOPNOTSUPP);
        }
        if count > MAX_REGIONS {
            return Err(E2BIG);
        }
        // CAST: at most `MAX_REGIONS`.
        let count = count as usize;

        let header = size_of::<[u32; 2]>();
        let bytes = count.wrapping_mul(size_of::<RawRegion>());
        let mut reader = ioctl::reader(arg.wrapping_add(header), bytes);
        // A region that is the whole address space takes two ranges.
        let mut ranges = KVVec::with_capacity(count.wrapping_mul(2), GFP_KERNEL)?;
        for _ in 0..count {
            let [start, size, uva, _padding] = reader.read::<RawRegion>()?;
            for range in Range::of_region(start, size, uva)?.into_iter().flatten() {
                let at = iotlb::insert_at(&ranges, range.start());
                ranges
                    .insert_within_capacity(at, range)
                    .map_err(|_| ENOMEM)?;
            }
        }
        Self::new(ranges)
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
