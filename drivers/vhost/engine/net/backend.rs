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

/// Gives packets to the guest. C: `vhost_net_rx_peek_head_len()`, `recvmsg`.
pub trait RxBackend {
    /// Length in bytes of the next packet, without a virtio-net header. `None`
    /// if there is none.
    ///
    /// May take up to `max` packets off the socket at once (at least 1); they
    /// stay this backend's until received, discarded, or given back.
    fn peek_len(&mut self, max: usize) -> Option<usize>;

    /// Receives the next packet into `segments`: its header of `sock_hlen`
    /// bytes, then its data. Answers the bytes written, which differ from the
    /// `len` expected when the packet changed or memory cannot be written. The
    /// packet is gone in any case.
    fn recv(&mut self, segments: &[Segment], len: usize) -> usize;

    /// Drops the next packet.
    fn discard(&mut self);
}
