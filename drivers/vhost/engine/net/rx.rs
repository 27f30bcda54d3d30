// SPDX-License-Identifier: GPL-2.0

//! The rx loop: packets from the socket go to the guest. C: `handle_rx()`.
//!
//! Nothing is taken from the guest for a packet that does not arrive whole: its
//! chains are put back. A packet that no chain can hold is dropped and counted.

use super::super::addr::Segment;
use super::super::counters::Counter;
use super::super::error::Access;
use super::super::error::Error;
use super::super::features;
use super::super::features::HeaderLen;
use super::super::host::End;
use super::super::host::Host;
use super::super::memory::GuestMemory;
use super::super::scratch::Extent;
use super::super::scratch::MAX_SEGMENTS;
use super::super::split::SplitQueue;
use super::backend::Received;
use super::backend::RxBackend;
use super::header;
use super::run::bytes;
use super::run::Next;
use super::run::Result;
use super::run::Run;
use super::run::Stopped;
use super::Env;
use super::Outcome;

/// [`MAX_SEGMENTS`], as chains are counted.
const MAX_CHAINS: u16 = 1024;
const _: () = assert!(MAX_SEGMENTS == 1024);

/// Chains for a packet.
enum Fit {
    /// So many chains and segments hold it.
    Yes { chains: u16, segments: usize },
    /// The ring has too few now.
    TooFew,
    /// They may never.
    Never,
}

/// What became of a packet.
enum Step {
    /// It was received, or dropped.
    Done,
    /// It waits for more chains.
    TooFew,
}

struct Rx<'r, 'a, M, H, B> {
    run: Run<'r, 'a, M, H>,
    backend: &'r mut B,
    /// Bytes of the header in the guest's buffer.
    header: usize,
    /// Chains that one packet may take.
    quota: u16,
    /// The header ends in `num_buffers`.
    num_buffers: bool,
    /// One used element returns all chains of a packet.
    in_order: bool,
    /// What the socket has before a packet is what the guest wants: one of one
    /// segment comes as it is.
    is_plain: bool,
    /// A packet that [`Rx::quick`] received, but not whole.
    unsettled: Option<(Received, Segment, u32)>,
    /// Other work interrupted a poll; nothing was received since.
    interrupted: bool,
}

/// Serves the rx ring of `queue` until the socket is dry, the ring has too few
/// buffers or is broken, or the run had its turn.
///
/// Context: process context under the vring's lock; may sleep.
#[inline(never)]
pub fn run<M: GuestMemory, H: Host, B: RxBackend>(
    queue: &mut SplitQueue,
    env: Env<'_, M>,
    host: &mut H,
    backend: &mut B,
) -> Outcome {
    run_here(queue, env, host, backend)
}

/// [`run`] on the caller's stack, where it finds its arguments.
#[inline(always)]
pub fn run_here<M: GuestMemory, H: Host, B: RxBackend>(
    queue: &mut SplitQueue,
    env: Env<'_, M>,
    host: &mut H,
    backend: &mut B,
) -> Outcome {
    let mergeable = queue.has(features::NET_MRG_RXBUF);
    let header = env.header.vhost.saturating_add(env.header.sock);
    let mut rx = Rx {
        header,
        is_plain: env.header.vhost == 0,
        unsettled: None,
        quota: if mergeable { MAX_CHAINS } else { 1 },
        num_buffers: (mergeable || queue.has(features::VERSION_1))
            && header >= header::NUM_BUFFERS_LEN,
        in_order: queue.has(features::IN_ORDER),
        // A packet takes one chain as a rule, and there may be one packet.
        run: Run::new(queue, env, host, 1),
        backend,
        interrupted: false,
    };
    match rx.serve() {
        Ok(next) => next.into(),
        Err(Stopped) => rx.run.broken(rx.run.error()),
    }
}

impl<M: GuestMemory, H: Host, B: RxBackend> Rx<'_, '_, M, H, B> {
    /// The loop.
    fn serve(&mut self) -> Result<Next> {
        self.run.kicks_off()?;

        loop {
            let Some(len) = self.peek_len()? else {
                match self.dry()? {
                    Some(next) => return Ok(next),
                    None => continue,
                }
            };

            let step = if !self.run.ready()? {
                Step::TooFew
            } else if self.quick(len) {
                Step::Done
            } else {
                self.any(len)?
            };
            if let Step::TooFew = step {
                match self.starved()? {
                    Some(next) => return Ok(next),
                    None => continue,
                }
            }

            if self.run.is_batch_full() {
                self.run.publish()?;
            }
            if self.run.budget.spend(bytes(len)) {
                self.run.publish()?;
                return Ok(self.run.end(Counter::LeftWeight, Next::Requeue));
            }
        }
    }

    /// The length of the next packet. Takes no more packets off the socket than
    /// the driver has chains for: what finds none cannot stay there.
    #[inline]
    fn peek_len(&mut self) -> Result<Option<usize>> {
        if let Some(len) = self.backend.cached_len() {
            return Ok(Some(len));
        }
        let chains = self.run.available()?;
        Ok(self.backend.peek_len(usize::from(chains.max(1))))
    }

    /// The socket has no packet: publish, poll, look again. `None` to go on.
    #[inline(never)]
    fn dry(&mut self) -> Result<Option<Next>> {
        self.run.publish()?;

        let window = self.run.poll();
        // Also without a window: packets may have come while the driver was
        // called.
        let len = self.peek_len();
        if let Some(window) = window {
            self.interrupted |= window.end == End::Work;
            self.run.polled(window, matches!(len, Ok(Some(_))));
        }
        if len?.is_some() {
            return Ok(self.run.look_again());
        }
        if self.interrupted {
            return Ok(Some(self.run.end(Counter::LeftWork, Next::Requeue)));
        }
        if let Some(why) = window.and_then(|window| window.end.requeues()) {
            return Ok(Some(self.run.end(why, Next::Requeue)));
        }
        Ok(Some(self.run.end(Counter::LeftEmpty, Next::WaitSocket)))
    }

    /// A packet waits for more chains: publish, and wait for a kick. `None` to
    /// go on.
    #[inline(never)]
    fn starved(&mut self) -> Result<Option<Next>> {
        self.run.publish()?;

        if self.interrupted {
            return Ok(Some(self.run.end(Counter::LeftWork, Next::Requeue)));
        }
        let next = self.run.wait_kick(Counter::LeftShort)?;
        self.run.queue.set_stuck(next == Some(Next::WaitKick));
        Ok(next)
    }

    /// Receives the next packet, of `len` bytes without its header, if it is the
    /// common one: into one chain of one segment, that was read ahead and found
    /// where the last one was. `false` if it is another, or did not arrive so;
    /// it is still the next one then, or gone and counted.
    #[inline]
    fn quick(&mut self, len: usize) -> bool {
        if !self.is_plain {
            return false;
        }
        let need = len.saturating_add(self.header);
        let Ok(head) = self.run.head() else {
            return false;
        };
        let Some(segment) = self.run.segment(head, Access::Write) else {
            return false;
        };
        let Ok(used) = u32::try_from(need) else {
            return false;
        };
        if segment.len < u64::from(used) {
            return false;
        }
        let chains = u16::from(self.num_buffers).to_le();
        let received = self.backend.recv_one(segment, need, chains);
        if received != Received::Whole {
            self.unsettled = Some((received, segment, used));
            return false;
        }
        self.run.mem.written(&[segment], bytes(need));
        self.run.take(head, used);
        self.received(len);
        true
    }

    /// What is left to do of a packet that [`Rx::quick`] did not see whole.
    #[cold]
    #[inline(never)]
    fn settle(&mut self, received: Received, segment: Segment, used: u32) -> Result<Step> {
        let need = u64::from(used);
        if received == Received::Part {
            self.run.mem.written(&[segment], need);
            self.run.host.bump(Counter::DropTruncated);
            return Ok(Step::Done);
        }

        // `num_buffers` is not written yet.
        let head = self.run.head()?;
        self.run.hold(segment);
        let counted = self.count_buffers(1, 1);
        self.run.mem.written(&[segment], need);
        counted?;
        self.run.take(head, used);
        let len = need.wrapping_sub(bytes(self.header));
        self.received(usize::try_from(len).unwrap_or(0));
        Ok(Step::Done)
    }

    /// A packet of `len` bytes arrived.
    #[inline]
    fn received(&mut self, len: usize) {
        self.interrupted = false;
        self.run.moved(len);
    }

    /// Receives the next packet, of `len` bytes without its header, into as many
    /// chains and segments as it takes.
    #[inline(never)]
    fn any(&mut self, len: usize) -> Result<Step> {
        if let Some((received, segment, used)) = self.unsettled.take() {
            return self.settle(received, segment, used);
        }
        let need = len.saturating_add(self.header);
        let (chains, segments) = match self.gather(bytes(need))? {
            Fit::Yes { chains, segments } => (chains, segments),
            Fit::TooFew => return Ok(Step::TooFew),
            Fit::Never => {
                self.backend.discard();
                self.run.host.bump(Counter::DropOversize);
                return Ok(Step::Done);
            }
        };

        let HeaderLen { vhost, .. } = self.run.header;
        let segments = if vhost == 0 {
            segments
        } else {
            self.add_header(chains, segments)?
        };
        let expected = need.wrapping_sub(vhost);
        let whole = self.receive(chains, segments, expected);
        // Also a part.
        self.written(segments, expected);
        if whole != Ok(true) {
            self.run.batch.put_back(chains);
            return whole.map(|_| Step::Done);
        }

        self.received(len);
        Ok(Step::Done)
    }

    /// Receives the next packet, `expected` bytes, into `segments` of `chains`.
    /// Answers whether it arrived whole.
    ///
    /// # Errors
    ///
    /// What the memory answers.
    #[inline]
    fn receive(&mut self, chains: u16, segments: usize, expected: usize) -> Result<bool> {
        let counts = self.is_plain && self.num_buffers;
        let num_buffers = if counts { chains.to_le() } else { 0 };
        let buffer = self.run.segments(segments);
        match self.backend.recv(buffer, expected, num_buffers) {
            Received::Whole => Ok(true),
            Received::Uncounted => {
                self.count_buffers(chains, segments)?;
                Ok(true)
            }
            Received::Part => {
                self.run.host.bump(Counter::DropTruncated);
                Ok(false)
            }
        }
    }

    /// Writes `num_buffers` into the header of the packet in hand.
    ///
    /// # Errors
    ///
    /// What the memory answers.
    #[inline]
    fn count_buffers(&mut self, chains: u16, segments: usize) -> Result {
        let at = header::NUM_BUFFERS;
        let written = self.write(segments, at, &chains.to_le_bytes());
        if written.is_err() {
            self.run.host.bump(Counter::DropMemory);
        }
        written
    }

    /// Takes the chains that `need` bytes take. On anything but [`Fit::Yes`]
    /// none is taken.
    ///
    /// # Errors
    ///
    /// [`Error::BadRing`] also for a chain with a buffer that the device may
    /// not write, or none that it may.
    #[inline]
    fn gather(&mut self, need: u64) -> Result<Fit> {
        let head = self.run.head()?;
        // One buffer was too short for [`Rx::quick`] already.
        if !self.is_plain || !head.desc.is_alone() {
            let (len, segments) = self.run.common(head, Access::Write);
            if segments != 0 && len >= need {
                self.run.take(head, u32::try_from(need).unwrap_or(u32::MAX));
                return Ok(Fit::Yes {
                    chains: 1,
                    segments,
                });
            }
        }

        let mut chains = 0;
        let fit = self.gather_chains(need, &mut chains);
        if !matches!(fit, Ok(Fit::Yes { .. })) {
            self.run.batch.put_back(chains);
        }
        fit
    }

    /// [`Rx::gather`] chain by chain, without the way back: `chains` are taken.
    #[inline(never)]
    fn gather_chains(&mut self, need: u64, chains: &mut u16) -> Result<Fit> {
        let mut left = need;
        let mut extent = Extent::default();

        while self.run.ready()? {
            let max = self.quota.saturating_sub(*chains);
            let mut taken = self.run.take_buffers(&mut extent, max, &mut left);
            if taken == 0 {
                taken = 1;
                left = match self.take_any(&mut extent, left) {
                    // The chains before it take up the room.
                    Err(Stopped) if *chains > 0 && self.run.error() == Error::TooManySegments => {
                        return Ok(Fit::Never)
                    }
                    left => left?,
                };
            }
            *chains = chains.wrapping_add(taken);
            if left == 0 {
                if self.in_order {
                    self.run.merge(*chains);
                }
                return Ok(Fit::Yes {
                    chains: *chains,
                    segments: extent.segments,
                });
            }
            if *chains >= self.quota {
                return Ok(Fit::Never);
            }
        }
        // A driver that has made every descriptor available can add none until
        // some are used: C waits for ever.
        Ok(if *chains < self.run.queue.num() {
            Fit::TooFew
        } else {
            Fit::Never
        })
    }

    /// Takes the next chain, of any kind, for the packet in hand, of which `left`
    /// bytes have no place yet. Answers how many have none then.
    ///
    /// # Errors
    ///
    /// As [`Rx::gather`].
    #[inline(never)]
    fn take_any(&mut self, extent: &mut Extent, left: u64) -> Result<u64> {
        let head = self.run.head()?;
        let (chain, total) = self.run.walk(*extent)?;
        *extent = total;
        if chain.readable != 0 || chain.writable == 0 {
            return Err(self.run.stop(Error::BadRing));
        }
        let used = chain.writable.min(left);
        self.run.take(head, u32::try_from(used).unwrap_or(u32::MAX));
        Ok(left.wrapping_sub(used))
    }

    /// Writes the header that the socket does not have, and takes its bytes off
    /// the `segments`. Answers how many are left.
    ///
    /// # Errors
    ///
    /// What the memory answers; the chains are put back, the packet waits.
    #[cold]
    fn add_header(&mut self, chains: u16, segments: usize) -> Result<usize> {
        let HeaderLen { vhost, .. } = self.run.header;
        let chains_le = if self.num_buffers {
            chains.to_le_bytes()
        } else {
            [0; 2]
        };
        let header = header::blank(chains_le);
        let header = header.get(..vhost).unwrap_or(&header);
        let written = self.write(segments, 0, header);
        self.written(segments, vhost);
        if let Err(error) = written {
            self.run.batch.put_back(chains);
            return Err(error);
        }

        Ok(self.run.skip(segments, vhost))
    }

    /// Lets a log know of `len` bytes of the packet in hand.
    #[inline]
    fn written(&self, segments: usize, len: usize) {
        let run = &self.run;
        run.mem.written(run.segments(segments), bytes(len));
    }

    /// Writes `data` at byte `at` of the packet in hand.
    #[inline]
    fn write(&mut self, segments: usize, at: u64, data: &[u8]) -> Result {
        let written = header::write_at(self.run.mem, self.run.segments(segments), at, data);
        self.run.check(written)
    }
}
