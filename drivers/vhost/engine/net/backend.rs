// SPDX-License-Identifier: GPL-2.0

//! The socket behind a vring, as the tx and rx loops see it.

use super::super::addr::Segment;

/// What became of a frame that was to join the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Staged {
    /// It is in the batch.
    Done,
    /// It does not fit a page: submit the batch, then [`TxBackend::send`] it.
    TooLarge,
    /// Its memory cannot be read, or its header lies: it can never be sent.
    Unsendable,
    /// No memory now: submit what there is and try again later.
    NoMemory,
}

/// Why a frame was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// The socket takes no more until it has room again (`EAGAIN`).
    Full,
    /// The frame is not sent, and waiting for room would not help.
    Refused,
}

/// Takes frames from the guest. C: `vhost_net_build_xdp()`, `vhost_tx_batch()`.
///
/// A frame is `sock_hlen` bytes of virtio-net header, then the packet.
pub trait TxBackend {
    /// Frames that one batch holds. 0: this socket takes single frames only.
    fn batch_size(&self) -> usize;

    /// Copies the frame in `segments`, `len` bytes in all, to the batch.
    ///
    /// `fix` is shown the copied header before the frame joins the batch; the
    /// frame is [`Staged::Unsendable`] if it answers `false`. The length it
    /// gets is the frame's, the header's included.
    fn stage(
        &mut self,
        segments: &[Segment],
        len: usize,
        fix: impl FnOnce(&mut [u8], usize) -> bool,
    ) -> Staged;

    /// [`TxBackend::stage`] of a frame in one piece.
    #[inline]
    fn stage_one(
        &mut self,
        segment: Segment,
        fix: impl FnOnce(&mut [u8], usize) -> bool,
    ) -> Staged {
        let len = usize::try_from(segment.len).unwrap_or(usize::MAX);
        self.stage(&[segment], len, fix)
    }

    /// Sends the batch; it is empty afterwards, whatever is answered.
    ///
    /// # Errors
    ///
    /// The socket is gone or failed: every frame of the batch is lost.
    fn submit(&mut self) -> Result<(), SendError>;

    /// Sends one frame from the owner's memory. `more` is waiting behind it.
    ///
    /// # Errors
    ///
    /// [`SendError`], the frame was not sent.
    fn send(&mut self, segments: &[Segment], len: usize, more: bool) -> Result<(), SendError>;
}

/// What became of a packet that was to be received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// It is there, and so is `num_buffers` if it was given.
    Whole,
    /// It is there without `num_buffers`.
    Uncounted,
    /// It changed, or the memory cannot be written; it is gone.
    Part,
}

/// What became of a packet that was sent in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// It left from the guest's memory.
    InPlace,
    /// The kernel had to copy it.
    Copied,
}

/// Knows which packets the socket does not read any more.
pub trait Completions {
    /// What became of the packet that was sent in `slot`, once it is done; then
    /// the slot is free.
    fn complete(&mut self, slot: usize) -> Option<Completion>;
}

/// Which completions are to wake the vring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// None: a run looks for itself.
    Never,
    /// That of the last packet in flight, and some before it.
    Sometimes,
    /// Each.
    Always,
}

/// Takes frames from the guest, and leaves them where they are. C:
/// `handle_tx_zerocopy()`.
pub trait ZeroCopyBackend: Completions {
    /// [`TxBackend::send`], in one of both ways.
    ///
    /// With a `slot`, which is free, the socket may read the frame until
    /// [`Completions::complete`] says that it is done.
    ///
    /// # Errors
    ///
    /// [`SendError`], the frame was not sent, and the slot is free.
    fn send(
        &mut self,
        segments: &[Segment],
        len: usize,
        more: bool,
        slot: Option<usize>,
    ) -> Result<(), SendError>;

    /// Sets which completions wake the vring. Those that came before are seen
    /// by the next look.
    fn listen(&mut self, listen: Listen);
}

/// Gives packets to the guest. C: `vhost_net_rx_peek_head_len()`, `recvmsg`.
pub trait RxBackend {
    /// Length in bytes of the next packet, without a virtio-net header. `None`
    /// if there is none.
    ///
    /// May take up to `max` packets off the socket at once (at least 1); they
    /// stay this backend's until received, discarded, or given back.
    fn peek_len(&mut self, max: usize) -> Option<usize>;

    /// As [`RxBackend::peek_len`], of packets that were taken off the socket
    /// before; `None` is no answer.
    #[inline]
    fn cached_len(&self) -> Option<usize> {
        None
    }

    /// Receives the next packet, `len` bytes, into `segments`: its header of
    /// `sock_hlen` bytes, then its data. Writes `num_buffers`, little-endian, into
    /// the header then, if it is not 0 and the backend can. The packet is gone in
    /// any case.
    fn recv(&mut self, segments: &[Segment], len: usize, num_buffers: u16) -> Received;

    /// [`RxBackend::recv`] into one segment of at least `len` bytes.
    #[inline]
    fn recv_one(&mut self, segment: Segment, len: usize, num_buffers: u16) -> Received {
        self.recv(&[segment], len, num_buffers)
    }

    /// Drops the next packet.
    fn discard(&mut self);
}
