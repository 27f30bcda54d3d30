// SPDX-License-Identifier: GPL-2.0

//! What of the owner's memory a vring may use, and how it gets at its rings.

use crate::{
    dirty_log::{Log, LoggedMemory, MappedMemory},
    engine::{
        self, addr::Iova, counters::Counter, error::Access, features, iotlb::AddressMap, layout,
        miss::Miss, split::SplitQueue,
    },
    iotlb::VringIotlb,
    kapi::{owner::OwnerMemory, user_memory::access_ok},
    table::MemTable,
    vring::{Locked, State},
    worker::Work,
};
use core::mem;

/// `VHOST_BACKEND_F_IOTLB_MSG_V2`, as a mask: misses are messages of the second
/// kind.
pub(crate) const IOTLB_MSG_V2: u64 = 1 << 1;

/// Finds what is needed of a ring in an IOTLB.
type LookUp = for<'a> fn(
    &'a OwnerMemory,
    AddressMap<'a>,
    &SplitQueue,
) -> engine::error::Result<MappedMemory<'a>>;

/// The memory with the rings of `queue` in it, which are behind `iotlb` if there
/// is one.
///
/// # Errors
///
/// The IOTLB does not have them.
pub(crate) fn mapped<'a>(
    memory: &'a OwnerMemory,
    iotlb: &'a Option<VringIotlb>,
    queue: &SplitQueue,
) -> engine::error::Result<MappedMemory<'a>> {
    match iotlb {
        Some(iotlb) => MappedMemory::new(memory, iotlb.map(), queue),
        None => Ok(MappedMemory::direct(memory)),
    }
}

impl<W: Work> State<W> {
    /// Whether a backend may be attached. C: `vhost_vq_access_ok()`.
    pub(crate) fn access_ok(&self) -> bool {
        let [desc, avail, used] = self.queue.addresses();

        self.log_ok(self.log.base) && self.rings_ok(desc.0, avail.0, used.0)
    }

    /// Whether the memory table may be used with a log at `base`. C:
    /// `vq_log_access_ok()`.
    fn log_ok(&self, base: u64) -> bool {
        let log_all = self.queue.has(features::LOG_ALL);

        self.table
            .as_ref()
            .is_some_and(|table| self.table_ok(table, base, log_all))
            && self.log_used_ok(base, self.log.used)
    }

    /// C: `vq_log_used_access_ok()`.
    pub(super) fn log_used_ok(&self, base: u64, used: Option<u64>) -> bool {
        // With an IOTLB it is not the address that is logged.
        self.iotlb.is_some() || Log::used_ok(base, used, &self.queue)
    }

    /// C: `vq_memory_access_ok()`.
    fn table_ok(&self, table: &MemTable, base: u64, log_all: bool) -> bool {
        table.access_ok() && (!log_all || Log::table_ok(base, table))
    }

    /// Whether a vring that has a backend may go on with `table`, and with
    /// buffers logged if `log_all` says so or they are. C:
    /// `memory_access_ok()`.
    pub(crate) fn memory_ok(&self, table: &MemTable, log_all: bool) -> bool {
        let log_all = log_all || self.queue.has(features::LOG_ALL);

        self.backend.is_none() || self.table_ok(table, self.log.base, log_all)
    }

    /// Whether the log may be at `base`: a vring that has no backend does not
    /// mind.
    pub(crate) fn log_base_ok(&self, base: u64) -> bool {
        self.backend.is_none() || self.log_ok(base)
    }

    /// Whether rings may lie there. C: `vq_access_ok()`.
    pub(super) fn rings_ok(&self, desc: u64, avail: u64, used: u64) -> bool {
        let num = self.queue.num();
        let event_idx = self.queue.event_idx();

        // I/O virtual addresses may be any.
        if self.iotlb.is_some() {
            return true;
        }
        access_ok(desc, layout::desc_bytes(num))
            && access_ok(avail, layout::avail_bytes(num, event_idx))
            && access_ok(used, layout::used_bytes(num, event_idx))
    }

    /// The memory with the rings in it, for as long as this state is locked.
    ///
    /// # Errors
    ///
    /// The IOTLB does not have them.
    pub(crate) fn mapped<'a>(
        &'a self,
        memory: &'a OwnerMemory,
    ) -> engine::error::Result<MappedMemory<'a>> {
        mapped(memory, &self.iotlb, &self.queue)
    }

    /// Addresses are I/O virtual ones from now on, by the IOTLB `new`, or not
    /// any more. Answers whether they were before.
    ///
    /// If they change their meaning the rings' are forgotten. C:
    /// `vhost_init_device_iotlb()`, `vhost_clear_device_iotlb()`.
    pub(crate) fn set_iotlb(&mut self, new: Option<VringIotlb>) -> bool {
        let on = new.is_some();
        let was_on = mem::replace(&mut self.iotlb, new).is_some();

        if was_on != on {
            self.queue.set_addresses(0, 0, 0);
            self.log.used = None;
        }
        was_on
    }

    /// The question for an address that the IOTLB does not have.
    pub(crate) fn miss(&self, iova: Iova, access: Access) -> Miss {
        let v2 = self.backend_features & IOTLB_MSG_V2 != 0;
        Miss { iova, access, v2 }
    }
}

impl<W: Work> Locked<'_, W> {
    /// Does something with the virtqueue and its memory, outside of a run.
    ///
    /// # Errors
    ///
    /// The IOTLB does not have the rings.
    pub(crate) fn with_ring<R>(
        &mut self,
        memory: OwnerMemory,
        act: impl FnOnce(&mut SplitQueue, &LoggedMemory<'_>) -> R,
    ) -> engine::error::Result<R> {
        self.with_mapped(
            memory,
            |mem, map, queue| MappedMemory::new(mem, map, queue),
            act,
        )
    }

    /// Starts the virtqueue. C: `vhost_vq_init_access()`.
    ///
    /// # Errors
    ///
    /// Its used ring cannot be reached.
    pub(crate) fn start(&mut self, memory: OwnerMemory) -> engine::error::Result {
        self.with_mapped(
            memory,
            |mem, map, queue| MappedMemory::for_start(mem, map, queue),
            |queue, mem| queue.start(mem),
        )?
    }

    /// [`Self::with_ring`], with the parts of the ring that `look_up` finds.
    fn with_mapped<R>(
        &mut self,
        memory: OwnerMemory,
        look_up: LookUp,
        act: impl FnOnce(&mut SplitQueue, &LoggedMemory<'_>) -> R,
    ) -> engine::error::Result<R> {
        let stats = self.stats;
        let State {
            queue,
            table,
            log,
            iotlb,
            ..
        } = &mut **self;
        let mapped = match iotlb {
            Some(iotlb) => look_up(&memory, iotlb.map(), queue)?,
            None => MappedMemory::direct(&memory),
        };
        let mem = log.memory(&mapped, queue, table.as_ref());
        let result = act(queue, &mem);

        stats.count(Counter::LogErrors, mem.failed());
        Ok(result)
    }
}
