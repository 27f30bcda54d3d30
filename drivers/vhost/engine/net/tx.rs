// SPDX-License-Identifier: GPL-2.0

//! The tx loop: frames from the guest go to the socket. C: `handle_tx_copy()`.
//!
//! A frame that can never be sent is dropped and counted, and its head
//! returned; C puts some of them back and spins. A chain that breaks the ring's
//! rules ends the run. So does a used ring that cannot be written: heads that
//! could not be returned stay the device's, and their frames may go twice.

use super::super::addr::Segment;
use super::super::batch::Head;
use super::super::counters::Counter;
use super::super::error::Access;
use super::super::features;
use super::super::features::HeaderLen;
use super::super::host::Host;
use super::super::memory::GuestMemory;
use super::super::scratch::Extent;
use super::super::scratch::BATCH;
use super::super::split::SplitQueue;
use super::backend::SendError;
use super::backend::Staged;
use super::backend::TxBackend;
use super::header;
use super::run::bytes;
use super::run::Next;
use super::run::Result;
use super::run::Run;
use super::run::Stopped;
use super::Env;
use super::Outcome;

/// Bytes of the longest frame taken, its header included.
///
/// virtio-net packets end near 64 KiB (virtio 1.3, section 5.1.6). Sockets
/// answer "no memory" to sizes that they can never have, and such a frame would
/// be tried for ever.
pub const MAX_FRAME: usize = 0x20000;

/// What became of a chain.
enum Step {
    /// It is sent, staged or dropped: return it. It took so many bytes.
    Done(usize),
    /// The socket takes no more.
    Full,
    /// There is no memory for a batch.
    NoMemory,
}

struct Tx<'r, 'a, M, H, B> {
    run: Run<'r, 'a, M, H>,
    backend: &'r mut B,
    /// Frames that a batch holds; 0 if the socket takes single frames.
    batch_size: u64,
    /// It holds some, and what the guest puts before a packet is what the socket
    /// wants: a frame of one segment goes as it is.
    is_plain: bool,
    /// A frame that [`Tx::quick`] could not stage, why, and whether its header
    /// lies.
    unstaged: Option<(Staged, bool, Segment)>,
    /// Bytes of the shortest frame taken.
    min_len: usize,
    /// Frames in the batch, and their bytes with headers.
    staged: u64,
    staged_bytes: u64,
}

/// Serves the tx ring of `queue` until it is empty, broken, or had its turn.
///
/// Context: process context under the vring's lock; may sleep.
#[inline(never)]
pub fn run<M: GuestMemory, H: Host, B: TxBackend>(
    queue: &mut SplitQueue,
    env: Env<'_, M>,
    host: &mut H,
    backend: &mut B,
) -> Outcome {
    run_here(queue, env, host, backend)
}

/// [`run`] on the caller's stack, where it finds its arguments.
#[inline(always)]
pub fn run_here<M: GuestMemory, H: Host, B: TxBackend>(
    queue: &mut SplitQueue,
    env: Env<'_, M>,
    host: &mut H,
    backend: &mut B,
) -> Outcome {
    let batch_size = bytes(backend.batch_size().min(BATCH));
    let min_len = min_len(env.header);
    let HeaderLen { vhost, .. } = env.header;
    let mut tx = Tx {
        run: Run::new(queue, env, host, BATCH),
        backend,
        batch_size,
        is_plain: batch_size != 0 && vhost == 0,
        unstaged: None,
        min_len,
        staged: 0,
        staged_bytes: 0,
    };
    if tx.run.queue.has(features::IN_ORDER) {
        tx.run.batch.return_as_one();
    }
    match tx.serve() {
        Ok(next) => next.into(),
        Err(Stopped) => {
            tx.submit();
            tx.run.broken(tx.run.error())
        }
    }
}

/// What is in a chain.
pub(super) enum Found {
    /// A frame of `len` bytes, in the first `count` segments.
    Frame {
        /// Segments.
        count: usize,
        /// Bytes, with the socket's header.
        len: usize,
    },
    /// None: it is counted as dropped. So many bytes are in it.
    Dropped(usize),
}

/// Bytes of the shortest frame taken: its headers, and not nothing.
#[inline]
pub(super) fn min_len(header: HeaderLen) -> usize {
    header.vhost.saturating_add(1).max(header.sock)
}

/// Looks for the frame in the chain that `head` begins; `min_len` is
/// [`min_len`].
#[inline(always)]
pub(super) fn look<M: GuestMemory, H: Host>(
    run: &mut Run<'_, '_, M, H>,
    head: Head,
    min_len: usize,
) -> Result<Found> {
    let (readable, count) = match run.common(head, Access::Read) {
        (readable, count @ 1..) => (readable, count),
        _ => {
            let (chain, extent) = run.walk(Extent::default())?;
            if chain.writable != 0 {
                run.host.bump(Counter::DropDirection);
                return Ok(Found::Dropped(0));
            }
            (chain.readable, extent.segments)
        }
    };
    let len = usize::try_from(readable).unwrap_or(usize::MAX);
    if !(min_len..=MAX_FRAME).contains(&len) {
        return Ok(Found::Dropped(unfit(run, len)));
    }

    let HeaderLen { vhost, .. } = run.header;
    let count = if vhost == 0 {
        count
    } else {
        run.skip(count, vhost)
    };
    let len = len.wrapping_sub(vhost);
    Ok(Found::Frame { count, len })
}

/// Drops a chain of `len` readable bytes, which is no frame. Answers what it
/// counts as.
#[cold]
fn unfit<M: GuestMemory, H: Host>(run: &mut Run<'_, '_, M, H>, len: usize) -> usize {
    run.host.bump(if len <= run.header.vhost {
        Counter::DropLength
    } else if len <= MAX_FRAME {
        Counter::DropHeader
    } else {
        Counter::DropOversize
    });
    len.min(MAX_FRAME)
}

impl<M: GuestMemory, H: Host, B: TxBackend> Tx<'_, '_, M, H, B> {
    /// The loop.
    fn serve(&mut self) -> Result<Next> {
        self.run.kicks_off()?;

        loop {
            if !self.run.ready()? {
                match self.idle()? {
                    Some(next) => return Ok(next),
                    None => continue,
                }
            }

            let len = match self.quick() {
                Some(len) => len,
                None => {
                    let head = self.run.head()?;
                    match self.any(head)? {
                        Step::Done(len) => {
                            self.run.take(head, 0);
                            len
                        }
                        Step::Full => {
                            self.flush()?;
                            return Ok(self.run.end(Counter::LeftFull, Next::WaitSocket));
                        }
                        Step::NoMemory => {
                            self.flush()?;
                            return Ok(self.run.end(Counter::LeftMemory, Next::Requeue));
                        }
                    }
                }
            };

            if self.run.is_batch_full() {
                self.flush()?;
            }
            if self.run.budget.spend(bytes(len)) {
                self.flush()?;
                return Ok(self.run.end(Counter::LeftWeight, Next::Requeue));
            }
        }
    }

    /// The ring is empty: publish, poll, look again. `None` to go on.
    #[inline(never)]
    fn idle(&mut self) -> Result<Option<Next>> {
        self.flush()?;

        if let Some(window) = self.run.poll() {
            let found = self.run.ready();
            self.run.polled(window, matches!(found, Ok(true)));
            if found? {
                return Ok(None);
            }
            if let Some(why) = window.end.requeues() {
                return Ok(Some(self.run.end(why, Next::Requeue)));
            }
        }
        self.run.wait_kick(Counter::LeftEmpty)
    }

    /// Stages the next frame and takes its chain, if it is the common one: of one
    /// segment, that was found where the last one was, with a header as the
    /// socket wants it. Answers its bytes; `None` if it is another, or did not
    /// join the batch.
    #[inline]
    fn quick(&mut self) -> Option<usize> {
        if !self.is_plain {
            return None;
        }
        let head = self.run.head().ok()?;
        let segment = self.run.segment(head, Access::Read)?;
        let len = usize::try_from(segment.len).ok()?;
        if len < self.min_len || len > MAX_FRAME {
            return None;
        }

        let mut lies = false;
        let fix = |header: &mut [u8], frame: usize| {
            lies = !header::fix_csum(header, frame);
            !lies
        };
        let staged = self.backend.stage_one(segment, fix);
        if staged != Staged::Done {
            self.unstaged = Some((staged, lies, segment));
            return None;
        }
        self.run.take(head, 0);
        self.staged(len);
        Some(len)
    }

    /// Sends the frame in the chain that `head` begins, whatever it is made of.
    #[inline(never)]
    fn any(&mut self, head: Head) -> Result<Step> {
        if let Some((why, lies, segment)) = self.unstaged.take() {
            self.run.hold(segment);
            let len = usize::try_from(segment.len).unwrap_or(usize::MAX);
            return Ok(self.not_staged(why, lies, 1, len));
        }
        match look(&mut self.run, head, self.min_len)? {
            Found::Frame { count, len } => Ok(self.frame(count, len)),
            Found::Dropped(len) => Ok(Step::Done(len)),
        }
    }

    /// Sends the `len` bytes in the first `count` segments.
    fn frame(&mut self, count: usize, len: usize) -> Step {
        if self.batch_size == 0 {
            return self.send(count, len);
        }

        let mut lies = false;
        let fix = |header: &mut [u8], frame: usize| {
            lies = !header::fix_csum(header, frame);
            !lies
        };
        match self.backend.stage(self.run.segments(count), len, fix) {
            Staged::Done => {
                self.staged(len);
                Step::Done(len)
            }
            other => self.not_staged(other, lies, count, len),
        }
    }

    /// What is done with a frame that did not join the batch: the `len` bytes in
    /// the first `count` segments.
    #[inline(never)]
    fn not_staged(&mut self, why: Staged, lies: bool, count: usize, len: usize) -> Step {
        match why {
            Staged::Done => Step::Done(len),
            Staged::TooLarge => {
                self.submit();
                self.send(count, len)
            }
            Staged::Unsendable => self.unsendable(lies, len),
            Staged::NoMemory => Step::NoMemory,
        }
    }

    /// A frame of `len` bytes joined the batch.
    #[inline]
    fn staged(&mut self, len: usize) {
        self.staged = self.staged.wrapping_add(1);
        if H::COUNTS {
            self.staged_bytes = self.staged_bytes.wrapping_add(bytes(len));
        }
        if self.staged >= self.batch_size {
            self.submit();
        }
    }

    /// A frame that can never be sent.
    #[cold]
    fn unsendable(&mut self, lies: bool, len: usize) -> Step {
        self.run.host.bump(if lies {
            Counter::DropHeader
        } else {
            Counter::DropMemory
        });
        Step::Done(len)
    }

    /// Sends the batch. What the socket does not take is lost.
    #[inline(never)]
    fn submit(&mut self) {
        if self.staged == 0 {
            return;
        }
        let host = &mut *self.run.host;
        match self.backend.submit() {
            Ok(()) => {
                let headers = self.staged.wrapping_mul(bytes(self.run.header.sock));
                host.count(Counter::Packets, self.staged);
                host.count(Counter::Bytes, self.staged_bytes.wrapping_sub(headers));
            }
            Err(_) => host.count(Counter::DropRefused, self.staged),
        }
        (self.staged, self.staged_bytes) = (0, 0);
    }

    /// Sends one frame of `len` bytes in `count` segments from the owner's memory.
    #[inline(never)]
    fn send(&mut self, count: usize, len: usize) -> Step {
        let more = self.more(len);
        match self.backend.send(self.run.segments(count), len, more) {
            Ok(()) => {
                let packet = bytes(len).wrapping_sub(bytes(self.run.header.sock));
                self.run.host.bump(Counter::Packets);
                self.run.host.count(Counter::Bytes, packet);
                Step::Done(len)
            }
            Err(SendError::Refused) => {
                self.run.host.bump(Counter::DropRefused);
                Step::Done(len)
            }
            Err(SendError::Full) => Step::Full,
        }
    }

    /// Whether to tell the socket that more follows. C: `tx_can_batch()`.
    ///
    /// Not for a frame too large for the batch: it goes alone, as in C.
    fn more(&mut self, len: usize) -> bool {
        if self.batch_size != 0 || !self.run.budget.allows_more(bytes(len)) {
            return false;
        }
        let run = &mut self.run;
        let taken = run.batch.taken().wrapping_add(1);
        run.batch.has_two() || matches!(run.queue.available(run.mem, taken), Ok(1..))
    }

    /// Sends what is staged and returns what was taken.
    fn flush(&mut self) -> Result {
        self.submit();
        self.run.publish()
    }
}
