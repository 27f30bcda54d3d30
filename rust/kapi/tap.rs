// SPDX-License-Identifier: GPL-2.0

//! Packets to and from a socket.
//!
//! C headers: [`include/linux/if_tun.h`](srctree/include/linux/if_tun.h),
//! [`include/linux/ptr_ring.h`](srctree/include/linux/ptr_ring.h)

use super::owner::OwnerMemory;
use super::socket::NetSocket;
use crate::bindings;
use crate::engine::addr::Segment;
use crate::engine::addr::Uva;
use crate::engine::net::backend::Received;
use crate::engine::net::backend::RxBackend;
use crate::engine::net::backend::SendError;
use crate::engine::net::backend::Staged;
use crate::engine::net::backend::TxBackend;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ptr::NonNull;
use core::slice;
use kernel::prelude::*;

// A segment is passed as what it is to C: no field more, and no padding, which
// nobody sets.
const _: fn(&Segment) -> (&u64, &u64) = |Segment {
                                             addr: Uva(addr),
                                             len,
                                         }| (addr, len);
const _: () = assert!(size_of::<Segment>() == size_of::<bindings::iovec>());
const _: () = assert!(align_of::<Segment>() == align_of::<bindings::iovec>());
const _: () = assert!(offset_of!(Segment, addr) == offset_of!(bindings::iovec, iov_base));
const _: () = assert!(offset_of!(Segment, len) == offset_of!(bindings::iovec, iov_len));

/// The longest header that a socket takes, in bytes.
const MAX_HEADER: usize = bindings::VNR_TX_MAX_HEADER as usize;

/// `MAX_ERRNO`: error pointers are the addresses of -1 to this.
const MAX_ERRNO: isize = bindings::MAX_ERRNO as isize;

/// `segments` for C; no more than it can count.
#[inline]
pub(super) fn as_iovecs(segments: &[Segment]) -> (*const bindings::iovec, u32) {
    let count = u32::try_from(segments.len()).unwrap_or(u32::MAX);
    (segments.as_ptr().cast(), count)
}

/// A length for C, cut at what it can count.
#[inline]
pub(super) fn as_u32(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

/// What a socket answered to a single frame: 0 or an error.
pub(super) fn answer(ret: i32) -> Result<(), SendError> {
    if ret == 0 {
        return Ok(());
    }

    // C also tries again after ENOMEM and ENOBUFS, once the socket is writable:
    // it may be so all the time, as with a full queue discipline or no carrier
    // below a packet socket, and C then spins.
    if Error::from_errno(ret) == EAGAIN {
        Err(SendError::Full)
    } else {
        Err(SendError::Refused)
    }
}

/// Frames from the guest to a socket.
///
/// # Invariants
///
/// `raw` is a live queue of ours, for `_socket`. It holds frames only if that
/// knows batches.
pub(crate) struct TxQueue {
    raw: NonNull<bindings::vnr_tx>,
    _socket: NetSocket,
}

// SAFETY: A queue is bound to no thread.
unsafe impl Send for TxQueue {}
// SAFETY: There is no shared use.
unsafe impl Sync for TxQueue {}

impl TxQueue {
    /// Makes an empty queue.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(socket: &NetSocket) -> Result<Self> {
        // SAFETY: The socket's parts live as long as the clone below.
        let raw = unsafe { bindings::vnr_tx_alloc(socket.as_raw()) };
        // INVARIANT: The queue is new, and empty.
        Ok(Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            _socket: socket.clone(),
        })
    }

    /// Gets ready for a run, whose frames have a header of `header` bytes, at
    /// most 24, and are in `_memory`. Looks whether the socket takes batches
    /// now.
    pub(crate) fn for_run(&mut self, header: usize, _memory: OwnerMemory) -> TxRun<'_> {
        let header = header.min(MAX_HEADER);
        // SAFETY: By the invariant the queue is live.
        let batch = unsafe { bindings::vnr_tx_prepare(self.raw.as_ptr(), as_u32(header)) };
        // INVARIANT: The queue is borrowed, and was told just now.
        TxRun {
            raw: self.raw,
            header,
            // CAST: from 32 bits to 64.
            batch: batch as usize,
            _queue: PhantomData,
            _memory,
        }
    }
}

/// A [`TxQueue`] during a run.
///
/// # Invariants
///
/// `raw` is the live queue that `'a` borrows, of which the invariant holds:
/// only a socket that knows batches has a `batch` size.
pub(crate) struct TxRun<'a> {
    raw: NonNull<bindings::vnr_tx>,
    /// Of a frame's header, in bytes; what the queue was told last.
    header: usize,
    /// Frames that one batch holds, 0 for none.
    batch: usize,
    _queue: PhantomData<&'a mut TxQueue>,
    _memory: OwnerMemory,
}

impl TxRun<'_> {
    /// The queue, valid as long as `self`.
    pub(super) fn as_ptr(&self) -> *mut bindings::vnr_tx {
        self.raw.as_ptr()
    }

    /// Lets `fix` see the header of the frame just staged, of `len` bytes.
    ///
    /// # Safety
    ///
    /// `header` must be what the helper answered, an error pointer or the copy
    /// of the header, and no call have come since.
    #[inline]
    unsafe fn finish(
        &mut self,
        header: *mut u8,
        len: usize,
        fix: impl FnOnce(&mut [u8], usize) -> bool,
    ) -> Staged {
        // CAST: An error pointer is a negative number.
        let code = header as isize;
        if (-MAX_ERRNO..0).contains(&code) {
            return not_staged(code);
        }

        // SAFETY: The helper gave us a copy of the header, which is as long as
        // what it was told last, and initialised; nobody else uses it before
        // the next call.
        let header = unsafe { slice::from_raw_parts_mut(header, self.header) };
        if fix(header, len) {
            return Staged::Done;
        }

        // SAFETY: By the invariant the queue is live. `header` is not used any
        // more.
        unsafe { bindings::vnr_tx_unstage(self.raw.as_ptr()) };
        Staged::Unsendable
    }
}

/// What the error pointer `code` says of a frame.
#[cold]
fn not_staged(code: isize) -> Staged {
    const TOO_LARGE: isize = -(bindings::E2BIG as isize);
    const NO_MEMORY: isize = -(bindings::ENOMEM as isize);

    match code {
        TOO_LARGE => Staged::TooLarge,
        NO_MEMORY => Staged::NoMemory,
        _ => Staged::Unsendable,
    }
}

impl TxBackend for TxRun<'_> {
    #[inline]
    fn batch_size(&self) -> usize {
        self.batch
    }

    #[inline]
    fn stage(
        &mut self,
        segments: &[Segment],
        len: usize,
        fix: impl FnOnce(&mut [u8], usize) -> bool,
    ) -> Staged {
        if self.batch == 0 {
            return Staged::TooLarge;
        }

        let (iov, nr) = as_iovecs(segments);
        // SAFETY: By the invariant the queue is live; `iov` is valid for `nr`
        // segments, whose addresses the helper checks, in the owner's memory.
        let header = unsafe { bindings::vnr_tx_stage(self.raw.as_ptr(), iov, nr, len) };
        // SAFETY: This is what the helper answered to the frame just staged.
        unsafe { self.finish(header, len, fix) }
    }

    #[inline]
    fn stage_one(
        &mut self,
        segment: Segment,
        fix: impl FnOnce(&mut [u8], usize) -> bool,
    ) -> Staged {
        // CAST: as wide on x86-64.
        let len = segment.len as usize;
        if self.batch == 0 {
            return Staged::TooLarge;
        }

        // SAFETY: By the invariant the queue is live; the helper checks the
        // address, in the owner's memory.
        let header = unsafe { bindings::vnr_tx_stage_one(self.raw.as_ptr(), segment.addr.0, len) };
        // SAFETY: As in `stage`.
        unsafe { self.finish(header, len, fix) }
    }

    #[inline]
    fn submit(&mut self) -> Result<(), SendError> {
        // SAFETY: By the invariants the queue is live, and holds frames only if
        // its socket knows batches.
        match unsafe { bindings::vnr_tx_submit(self.raw.as_ptr()) } {
            0 => Ok(()),
            _ => Err(SendError::Refused),
        }
    }

    fn send(&mut self, segments: &[Segment], len: usize, more: bool) -> Result<(), SendError> {
        let (iov, nr) = as_iovecs(segments);
        // SAFETY: By the invariant the queue is live; `iov` is valid for `nr`
        // segments, whose addresses, in the owner's memory, the socket checks.
        let ret = unsafe { bindings::vnr_tx_send(self.raw.as_ptr(), iov, nr, len, more) };
        answer(ret)
    }
}

impl Drop for TxQueue {
    fn drop(&mut self) {
        // SAFETY: By the invariant the queue is live and ours.
        unsafe { bindings::vnr_tx_free(self.raw.as_ptr()) };
    }
}

/// Packets from a socket to the guest.
///
/// # Invariants
///
/// `raw` is a live queue of ours, for `_socket`.
pub(crate) struct RxQueue {
    raw: NonNull<bindings::vnr_rx>,
    _socket: NetSocket,
}

// SAFETY: A queue is bound to no thread.
unsafe impl Send for RxQueue {}
// SAFETY: Shared use only reads what is written through `&mut`.
unsafe impl Sync for RxQueue {}

impl RxQueue {
    /// Makes an empty queue.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn new(socket: &NetSocket) -> Result<Self> {
        // SAFETY: The socket's parts live as long as the clone below.
        let raw = unsafe { bindings::vnr_rx_alloc(socket.as_raw()) };
        // INVARIANT: The queue is new.
        Ok(Self {
            raw: NonNull::new(raw).ok_or(ENOMEM)?,
            _socket: socket.clone(),
        })
    }

    /// Whether it holds packets, which [`NetSocket::has_rx_data`] cannot see.
    #[inline]
    pub(crate) fn has_cached(&self) -> bool {
        // SAFETY: By the invariant the queue is live, and begins with its
        // batch; only calls that take `&mut self` change it.
        unsafe { cached_len(self.raw) }.is_some()
    }

    /// Gets ready for a run, which receives into `_memory`.
    pub(crate) fn for_run(&mut self, _memory: OwnerMemory) -> RxRun<'_> {
        // INVARIANT: The queue is borrowed.
        RxRun {
            raw: self.raw,
            _queue: PhantomData,
            _memory,
        }
    }

    /// Gives the packets that it holds back to the socket, which takes what
    /// fits. Answers how many did not: they are lost. Sleeps.
    pub(crate) fn put_back(&mut self) -> usize {
        // CAST: from 32 bits to 64.
        // SAFETY: By the invariant the queue is live.
        unsafe { bindings::vnr_rx_put_back(self.raw.as_ptr()) as usize }
    }
}

/// The length of the next packet that a queue has taken off its socket.
///
/// # Safety
///
/// `raw` must be a live queue that nobody changes meanwhile.
#[inline]
unsafe fn cached_len(raw: NonNull<bindings::vnr_rx>) -> Option<usize> {
    const MASK: usize = bindings::VNR_RX_BATCH as usize - 1;
    const _: () = assert!(bindings::VNR_RX_BATCH.is_power_of_two());

    // SAFETY: By the contract; a queue begins with its batch.
    let batch = unsafe { raw.cast::<bindings::vnr_rx_batch>().as_ref() };
    if batch.head == batch.tail {
        return None;
    }
    // CAST: from 32 bits to 64, and a length is not negative.
    Some(batch.len[batch.head as usize & MASK] as usize)
}

/// An [`RxQueue`] during a run.
///
/// # Invariants
///
/// `raw` is the live queue that `'a` borrows.
pub(crate) struct RxRun<'a> {
    raw: NonNull<bindings::vnr_rx>,
    _queue: PhantomData<&'a mut RxQueue>,
    _memory: OwnerMemory,
}

/// What a helper says of a packet.
#[inline]
fn received(what: bindings::vnr_received) -> Received {
    match what {
        bindings::vnr_received_VNR_RECEIVED_WHOLE => Received::Whole,
        bindings::vnr_received_VNR_RECEIVED_UNCOUNTED => Received::Uncounted,
        _ => Received::Part,
    }
}

impl RxBackend for RxRun<'_> {
    #[inline]
    fn peek_len(&mut self, max: usize) -> Option<usize> {
        // SAFETY: By the invariant the queue is live.
        let len = unsafe { bindings::vnr_rx_peek(self.raw.as_ptr(), as_u32(max)) };
        usize::try_from(len).ok()
    }

    #[inline]
    fn cached_len(&self) -> Option<usize> {
        // SAFETY: By the invariant the queue is live, and borrowed by us.
        unsafe { cached_len(self.raw) }
    }

    #[inline]
    fn recv_one(&mut self, segment: Segment, len: usize, num_buffers: u16) -> Received {
        let (raw, to) = (self.raw.as_ptr(), segment.addr.0);
        // The segment's length is the bound of what is written.
        // CAST: as wide on x86-64.
        let len = len.min(segment.len as usize);
        // SAFETY: By the invariant the queue is live; the socket and the helper
        // check the address, in the owner's memory.
        received(unsafe { bindings::vnr_rx_recv_one(raw, to, len, num_buffers) })
    }

    #[inline]
    fn recv(&mut self, segments: &[Segment], len: usize, num_buffers: u16) -> Received {
        let raw = self.raw.as_ptr();
        let (iov, nr) = as_iovecs(segments);
        // SAFETY: By the invariant the queue is live; `iov` is valid for `nr`
        // segments, whose addresses, in the owner's memory, the socket and the
        // helper check.
        received(unsafe { bindings::vnr_rx_recv(raw, iov, nr, len, num_buffers) })
    }

    fn discard(&mut self) {
        // SAFETY: By the invariant the queue is live.
        unsafe { bindings::vnr_rx_discard(self.raw.as_ptr()) };
    }
}

impl Drop for RxQueue {
    fn drop(&mut self) {
        self.put_back();
        // SAFETY: By the invariant the queue is live and ours, and it is empty.
        unsafe { bindings::vnr_rx_free(self.raw.as_ptr()) };
    }
}
