// SPDX-License-Identifier: GPL-2.0

//! Packets that a socket sends from the owner's memory.
//!
//! The pages are the packets' too, as long as these live: they may outlive the
//! owner. So may what they report to, and the code that does it.
//!
//! C header: [`include/linux/skbuff.h`](srctree/include/linux/skbuff.h), `struct
//! ubuf_info`

use super::tap::answer;
use super::tap::as_iovecs;
use super::tap::as_u32;
use super::tap::TxRun;
use super::wait::woken;
use super::wait::Wake;
use crate::bindings;
use crate::engine;
use crate::engine::addr::Segment;
use crate::engine::counters::Counter;
use crate::engine::memory::GuestMemory;
use crate::engine::net::backend::Completion;
use crate::engine::net::backend::Completions;
use crate::engine::net::backend::Listen;
use crate::engine::net::backend::SendError;
use crate::engine::net::backend::TxBackend;
use crate::engine::net::backend::ZeroCopyBackend;
use crate::engine::net::in_flight::Entry;
use crate::engine::net::in_flight::InFlight;
use crate::engine::net::in_flight::SLOTS;
use crate::engine::split::SplitQueue;
use core::marker::PhantomData;
use core::ptr::NonNull;
use kernel::prelude::*;

const _: () = assert!(SLOTS == bindings::VNR_ZEROCOPY_SLOTS as usize);

const _: fn(&Entry) -> (&u16, &bool) = |Entry { head, in_place }| (head, in_place);
const _: fn(&InFlight) -> (&[Entry; SLOTS], [&u16; 5]) = |in_flight| {
    let InFlight {
        entries,
        first,
        next,
        pending,
        packets,
        copied,
    } = in_flight;
    (entries, [first, next, pending, packets, copied])
};

// SAFETY: It is made of `u16` and `bool`, as is shown above, and with all of
// them 0 it is `InFlight::new()`.
unsafe impl pin_init::Zeroable for InFlight {}

/// Sees which packets are done.
///
/// # Invariants
///
/// `raw` is live during `'a`, and only used by the holder of a `&mut` to the
/// [`ZeroCopy`] that it is of.
struct Slots<'a> {
    raw: NonNull<bindings::vnr_zerocopy>,
    _owner: PhantomData<&'a ()>,
}

impl Completions for Slots<'_> {
    #[inline]
    fn complete(&mut self, slot: usize) -> Option<Completion> {
        // SAFETY: By the invariant it is live; the helper checks the slot.
        match unsafe { bindings::vnr_zerocopy_take(self.raw.as_ptr(), as_u32(slot)) } {
            bindings::vnr_completion_VNR_COMPLETION_NONE => None,
            bindings::vnr_completion_VNR_COMPLETION_IN_PLACE => Some(Completion::InPlace),
            _ => Some(Completion::Copied),
        }
    }
}

/// The packets of one tx queue that its socket sends from the owner's memory.
///
/// When it is dropped those in flight are left to the kernel, which is done with
/// them some time: until then the module cannot be unloaded.
///
/// # Invariants
///
/// `raw` is live and ours to close; its callback is [`woken`] with `_waker`,
/// which is on the heap.
pub(crate) struct ZeroCopy<W: Wake> {
    raw: NonNull<bindings::vnr_zerocopy>,
    in_flight: KBox<InFlight>,
    _waker: KBox<W>,
}

// SAFETY: It is bound to no thread, and what it owns can be sent.
unsafe impl<W: Wake> Send for ZeroCopy<W> {}
// SAFETY: Shared use reads a number that is atomic, or waits for it.
unsafe impl<W: Wake> Sync for ZeroCopy<W> {}

impl<W: Wake> ZeroCopy<W> {
    /// Nothing is in flight. `waker` is woken when packets are done.
    ///
    /// # Errors
    ///
    /// `ENOMEM`, also while the module is being unloaded.
    pub(crate) fn new(waker: W) -> Result<Self> {
        let in_flight = KBox::zeroed(GFP_KERNEL)?;
        let waker = KBox::new(waker, GFP_KERNEL)?;
        let data = (&raw const *waker).cast_mut().cast();
        // SAFETY: The helper only notes its arguments, and takes a reference to
        // the module if that may be. What must hold when the callback is called
        // is the type's invariant.
        let raw = unsafe { bindings::vnr_zerocopy_alloc(Some(woken::<W>), data) };

        // INVARIANT: It is new, and made of the fields beside it.
        Ok(Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            in_flight,
            _waker: waker,
        })
    }

    /// Sleeps until no packet is in flight.
    ///
    /// # Errors
    ///
    /// `EINTR` if some are, and the task is killed or at its end.
    pub(crate) fn wait(&self) -> Result {
        // SAFETY: By the invariant it is live.
        if unsafe { bindings::vnr_zerocopy_wait(self.raw.as_ptr()) } {
            Ok(())
        } else {
            Err(EINTR)
        }
    }

    /// Returns the chains of packets that are done, and counts them by `bump`.
    /// Answers whether the driver wants a call.
    ///
    /// # Errors
    ///
    /// As [`InFlight::return_done`].
    pub(crate) fn return_done<M: GuestMemory>(
        &mut self,
        queue: &mut SplitQueue,
        mem: &M,
        bump: impl FnMut(Counter),
    ) -> engine::error::Result<bool> {
        // INVARIANT: It is ours, and `self` is borrowed for as long.
        let mut slots = Slots {
            raw: self.raw,
            _owner: PhantomData,
        };
        self.in_flight.return_done(queue, mem, &mut slots, bump)
    }

    /// Gets ready for a run, whose packets `tx` sends.
    pub(crate) fn for_run<'a>(&'a mut self, tx: TxRun<'a>) -> (ZeroCopyRun<'a>, &'a mut InFlight) {
        // INVARIANT: It is ours, and `self` is borrowed for as long.
        let slots = Slots {
            raw: self.raw,
            _owner: PhantomData,
        };
        (ZeroCopyRun { tx, slots }, &mut self.in_flight)
    }
}

impl<W: Wake> Drop for ZeroCopy<W> {
    fn drop(&mut self) {
        // SAFETY: By the invariant it is ours to close. The waker is not called
        // after this, and is dropped then.
        unsafe { bindings::vnr_zerocopy_close(self.raw.as_ptr()) };
    }
}

/// A socket that may send from the owner's memory, during a run.
pub(crate) struct ZeroCopyRun<'a> {
    tx: TxRun<'a>,
    slots: Slots<'a>,
}

impl Completions for ZeroCopyRun<'_> {
    #[inline]
    fn complete(&mut self, slot: usize) -> Option<Completion> {
        self.slots.complete(slot)
    }
}

impl ZeroCopyBackend for ZeroCopyRun<'_> {
    fn send(
        &mut self,
        segments: &[Segment],
        len: usize,
        more: bool,
        slot: Option<usize>,
    ) -> Result<(), SendError> {
        let Some(slot) = slot else {
            return self.tx.send(segments, len, more);
        };
        let (iov, nr) = as_iovecs(segments);
        let zerocopy = self.slots.raw.as_ptr();
        // SAFETY: By the invariants both are live; `iov` is valid for `nr`
        // segments, whose addresses, in the owner's memory, the socket checks,
        // as the helper does the slot.
        answer(unsafe {
            bindings::vnr_tx_send_in_place(
                self.tx.as_ptr(),
                zerocopy,
                as_u32(slot),
                iov,
                nr,
                len,
                more,
            )
        })
    }

    fn listen(&mut self, listen: Listen) {
        let listen = match listen {
            Listen::Never => bindings::vnr_listen_VNR_LISTEN_NEVER,
            Listen::Sometimes => bindings::vnr_listen_VNR_LISTEN_SOMETIMES,
            Listen::Always => bindings::vnr_listen_VNR_LISTEN_ALWAYS,
        };
        // SAFETY: By the invariant it is live.
        unsafe { bindings::vnr_zerocopy_listen(self.slots.raw.as_ptr(), listen) };
    }
}
