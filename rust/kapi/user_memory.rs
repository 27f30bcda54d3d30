// SPDX-License-Identifier: GPL-2.0

//! The owner's memory, for the engine.
//!
//! Every method is one helper call, and every batch one user-access window:
//! opening one costs more than what is done inside.
//!
//! C header: [`include/linux/uaccess.h`](srctree/include/linux/uaccess.h)

use super::owner::OwnerMemory;
use crate::bindings;
use crate::engine::addr::RingAddr;
use crate::engine::addr::Segment;
use crate::engine::addr::Uva;
use crate::engine::error;
use crate::engine::error::Error::Fault;
use crate::engine::memory::Fetched;
use crate::engine::memory::GuestMemory;
use crate::engine::memory::Publication;
use crate::engine::memory::RawDesc;
use crate::engine::memory::Rings;
use crate::engine::memory::UsedElem;
use crate::engine::scratch::Scratch;
use crate::engine::scratch::BATCH;
use crate::engine::scratch::MAX_SEGMENTS;
use crate::engine::scratch::TABLE_BYTES;
use core::mem::offset_of;
use core::ptr;
use kernel::prelude::*;

// The engine is free to change its types, and C would not see it. That these
// have no other fields, and of no other types, shows that any bits are a value,
// and that no byte is padding, which nobody sets.
const _: fn(&RawDesc) -> (&u64, &u32, &u16, &u16) =
    |RawDesc {
         addr,
         len,
         flags,
         next,
     }| (addr, len, flags, next);
const _: fn(&UsedElem) -> (&u32, &u32) = |UsedElem { id, len }| (id, len);
const _: fn(&Rings) -> (&RingAddr, &RingAddr, &u32) =
    |Rings { desc, avail, num }| (desc, avail, num);
const _: fn(&RingAddr) -> &u64 = |RingAddr(addr)| addr;

// A descriptor is copied as it lies in memory.
const _: () = assert!(size_of::<RawDesc>() == size_of::<bindings::vring_desc>());
const _: () = assert!(align_of::<RawDesc>() == align_of::<bindings::vring_desc>());
const _: () = assert!(offset_of!(RawDesc, len) == offset_of!(bindings::vring_desc, len));
const _: () = assert!(offset_of!(RawDesc, flags) == offset_of!(bindings::vring_desc, flags));
const _: () = assert!(offset_of!(RawDesc, next) == offset_of!(bindings::vring_desc, next));

// A used element is copied as one number.
const _: () = assert!(size_of::<UsedElem>() == size_of::<u64>());
const _: () = assert!(offset_of!(UsedElem, len) == size_of::<u32>());

// So is where the driver's parts are.
const _: () = assert!(size_of::<Rings>() == size_of::<bindings::vnr_rings>());
const _: () = assert!(offset_of!(Rings, desc) == offset_of!(bindings::vnr_rings, desc));
const _: () = assert!(offset_of!(Rings, avail) == offset_of!(bindings::vnr_rings, avail));
const _: () = assert!(offset_of!(Rings, num) == offset_of!(bindings::vnr_rings, num));

/// Turns what a helper answers that stores and then loads into results.
#[inline]
fn asked(ret: c_int) -> error::Result<error::Result<u16>> {
    const NOT_READ: c_int = -(bindings::ENODATA as c_int);

    match u16::try_from(ret) {
        Ok(value) => Ok(Ok(value)),
        Err(_) if ret == NOT_READ => Ok(Err(Fault)),
        Err(_) => Err(Fault),
    }
}

/// Turns what a helper answers, 0 or a negative error, into a result.
#[inline]
fn done(ret: c_int) -> error::Result {
    if ret < 0 {
        Err(Fault)
    } else {
        Ok(())
    }
}

/// Ring addresses are addresses of the owner's memory. Every method may sleep.
impl GuestMemory for OwnerMemory {
    /// Acquire: `smp_rmb()` in the helper, between the index and the heads.
    #[inline]
    fn fetch_heads(
        &self,
        avail: RingAddr,
        num: u16,
        next: u16,
        heads: &mut [u16],
    ) -> error::Result<Fetched> {
        let mut avail_idx = 0;
        let max = u32::try_from(heads.len()).unwrap_or(u32::MAX);
        let heads = heads.as_mut_ptr();
        // SAFETY: `heads` is valid for writing `max` numbers, `avail_idx` for
        // one. The helper checks every address of user space.
        let count = unsafe {
            bindings::vnr_fetch_heads(avail.0, num.into(), next, heads, max, &mut avail_idx)
        };

        Ok(Fetched {
            avail_idx,
            count: usize::try_from(count).map_err(|_| Fault)?,
        })
    }

    #[inline]
    fn read_descs(
        &self,
        table: RingAddr,
        num: u16,
        heads: &[u16],
        out: &mut [RawDesc],
    ) -> error::Result {
        let n = heads.len().min(out.len());
        let out = out.as_mut_ptr().cast();
        // SAFETY: `heads` is valid for reading `n` numbers, and `out` for
        // writing `n` descriptors, whose layout is checked above. The helper
        // checks every address of user space.
        done(unsafe { bindings::vnr_read_descs(table.0, num.into(), heads.as_ptr(), out, n) })
    }

    /// Acquire: `smp_rmb()` in the helper, between the index and the heads.
    #[inline]
    fn fetch_chains(
        &self,
        rings: &Rings,
        next: u16,
        heads: &mut [u16],
        descs: &mut [RawDesc],
    ) -> error::Result<Fetched> {
        let max = u32::try_from(heads.len().min(descs.len())).unwrap_or(u32::MAX);
        // CAST: both have the layouts that are checked above.
        let (rings, descs) = (ptr::from_ref(rings).cast(), descs.as_mut_ptr().cast());
        // SAFETY: `rings` is valid for reading, `heads` and `descs` for writing
        // `max` entries each. The helper checks every address of user space.
        let both =
            unsafe { bindings::vnr_fetch_chains(rings, next, heads.as_mut_ptr(), descs, max) };
        if both < 0 {
            return Err(Fault);
        }
        Ok(Fetched {
            // CAST: 16 bits above the lower half, and at most `max` in it.
            avail_idx: (both >> 32) as u16,
            count: both as u32 as usize,
        })
    }

    /// Release: `smp_wmb()` in the helper, before the index; then `smp_mb()`.
    #[inline]
    fn publish(&self, what: Publication<'_>, ask: RingAddr) -> error::Result<error::Result<u16>> {
        let Publication { to, elems, .. } = what;
        let (at, index) = (what.index_at.0, what.index);
        // CAST: one element is one number, as checked above.
        let from = elems.as_ptr().cast();
        // SAFETY: `from` is valid for reading as many elements as there are, of
        // any alignment. The helper checks every address of user space.
        asked(unsafe { bindings::vnr_publish(to.0, from, elems.len(), at, index, ask.0) })
    }

    /// Release: `smp_wmb()` in the helper, before the store; then `smp_mb()`.
    #[inline]
    fn store_and_ask(
        &self,
        to: RingAddr,
        value: u16,
        ask: RingAddr,
    ) -> error::Result<error::Result<u16>> {
        // SAFETY: The helper checks the addresses.
        asked(unsafe { bindings::vnr_store_and_ask(to.0, value, ask.0) })
    }

    #[inline]
    fn write_used(&self, to: RingAddr, elems: &[UsedElem]) -> error::Result {
        // CAST: one element is one number, as checked above.
        let from = elems.as_ptr().cast();
        // SAFETY: `from` is valid for reading as many elements as there are, of
        // any alignment. The helper checks every address of user space.
        done(unsafe { bindings::vnr_write_used(to.0, from, elems.len()) })
    }

    /// Acquire: `smp_rmb()` in the helper, after the load.
    #[inline]
    fn load_u16(&self, from: RingAddr) -> error::Result<u16> {
        // SAFETY: The helper checks the address.
        let value = unsafe { bindings::vnr_load_u16(from.0) };
        u16::try_from(value).map_err(|_| Fault)
    }

    /// Release: `smp_wmb()` in the helper, before the store.
    #[inline]
    fn store_u16(&self, to: RingAddr, value: u16) -> error::Result {
        // SAFETY: The helper checks the address.
        done(unsafe { bindings::vnr_store_u16(to.0, value) })
    }

    /// Full barrier: `smp_mb()`.
    #[inline]
    fn fence(&self) {
        kernel::sync::barrier::smp_mb(kernel::sync::barrier::Full);
    }

    #[inline]
    fn read(&self, from: Uva, dst: &mut [u8]) -> error::Result {
        let to = dst.as_mut_ptr().cast();
        // SAFETY: `to` is valid for writing the slice's length, and the helper
        // checks every address of user space.
        done(unsafe { bindings::vnr_copy_in(to, from.0, dst.len()) })
    }

    #[inline]
    fn write(&self, to: Uva, src: &[u8]) -> error::Result {
        let from = src.as_ptr().cast();
        // SAFETY: `from` is valid for reading the slice's length, and the
        // helper checks every address of user space.
        done(unsafe { bindings::vnr_copy_out(to.0, from, src.len()) })
    }
}

/// Whether `len` bytes from `addr` on lie where user memory may lie. Nothing is
/// touched.
#[inline]
pub(crate) fn access_ok(addr: u64, len: u64) -> bool {
    // SAFETY: The helper only calculates.
    unsafe { bindings::vnr_access_ok(addr, len) }
}

const _: fn(&Scratch) = |scratch| {
    let Scratch {
        heads,
        descs,
        segments,
        table,
        used,
    } = scratch;
    let _: &[u16; BATCH] = heads;
    let _: &[RawDesc; BATCH] = descs;
    let _: &[Segment; MAX_SEGMENTS] = segments;
    let _: &[u8; TABLE_BYTES] = table;
    let _: &[UsedElem; MAX_SEGMENTS + BATCH] = used;
};

// SAFETY: `Scratch` is arrays of integers and of structures of integers, as is
// shown above and in `kapi/tap.rs`: all zero is a value of each.
unsafe impl pin_init::Zeroable for Scratch {}

/// Room for the runs of one worker, too large for a stack.
///
/// # Errors
///
/// `ENOMEM`.
pub(crate) fn new_scratch() -> Result<KBox<Scratch>> {
    Ok(KBox::zeroed(GFP_KERNEL)?)
}
