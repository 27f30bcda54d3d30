// SPDX-License-Identifier: GPL-2.0

//! What the tx and the rx loop have in common.

use super::super::addr::Iova;
use super::super::addr::Segment;
use super::super::batch::Batch;
use super::super::batch::Head;
use super::super::budget::Budget;
use super::super::chain;
use super::super::chain::Chain;
use super::super::chain::Walker;
use super::super::counters::Counter;
use super::super::desc::Desc;
use super::super::error;
use super::super::error::Access;
use super::super::error::Error;
use super::super::features;
use super::super::features::HeaderLen;
use super::super::host::End;
use super::super::host::Host;
use super::super::host::Window;
use super::super::memory::GuestMemory;
use super::super::scratch::Extent;
use super::super::scratch::Scratch;
use super::super::scratch::Segments;
use super::super::scratch::BATCH;
use super::super::scratch::MAX_SEGMENTS;
use super::super::split::SplitQueue;
use super::super::translate::Translator;
use super::header;
use super::Env;
use super::Outcome;
use core::mem;

/// A run ends with an error, which [`Run::error`] has.
///
/// As the error itself it would not fit a register with what else a function
/// may answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stopped;

/// A result whose error is [`Stopped`].
pub(super) type Result<T = ()> = core::result::Result<T, Stopped>;

/// What is next after a run that no error ended: see [`Outcome`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    WaitKick,
    WaitSocket,
    WaitCompletion,
    Requeue,
}

impl From<Next> for Outcome {
    #[inline]
    fn from(next: Next) -> Self {
        match next {
            Next::WaitKick => Self::WaitKick,
            Next::WaitSocket => Self::WaitSocket,
            Next::WaitCompletion => Self::WaitCompletion,
            Next::Requeue => Self::Requeue,
        }
    }
}

/// One run of one vring.
pub(super) struct Run<'r, 'a, M, H> {
    pub(super) queue: &'r mut SplitQueue,
    pub(super) mem: &'a M,
    pub(super) scratch: &'a mut Scratch,
    pub(super) header: HeaderLen,
    pub(super) host: &'r mut H,
    pub(super) batch: Batch,
    pub(super) budget: Budget,
    translator: Translator<'a>,
    /// Packets moved, and their bytes, that are not counted yet.
    moved: [u64; 2],
    /// What stopped it, if something did.
    error: Error,
}

impl<'r, 'a, M: GuestMemory, H: Host> Run<'r, 'a, M, H> {
    /// Begins a run that reads `ahead` chains at first.
    #[inline]
    pub(super) fn new(
        queue: &'r mut SplitQueue,
        env: Env<'a, M>,
        host: &'r mut H,
        ahead: usize,
    ) -> Self {
        queue.set_stuck(false);
        let translator = Translator::guessing(env.map, queue.guess());
        Self {
            queue,
            mem: env.mem,
            scratch: env.scratch,
            header: env.header,
            host,
            batch: Batch::new(ahead),
            budget: Budget::new(),
            translator,
            moved: [0; 2],
            error: Error::Fault,
        }
    }

    /// What stopped the run.
    pub(super) fn error(&self) -> Error {
        self.error
    }

    /// Notes an error, for [`Run::error`].
    #[inline]
    pub(super) fn check<T>(&mut self, result: error::Result<T>) -> Result<T> {
        result.map_err(|error| self.stop(error))
    }

    /// Ends the run because of `error`.
    #[cold]
    pub(super) fn stop(&mut self, error: Error) -> Stopped {
        self.error = error;
        Stopped
    }

    /// Tells the driver that kicks are not wanted.
    ///
    /// # Errors
    ///
    /// As [`SplitQueue::kicks_off`].
    #[inline]
    pub(super) fn kicks_off(&mut self) -> Result {
        let off = self.queue.kicks_off(self.mem);
        self.check(off)
    }

    /// Whether there is another chain; reads more ahead if need be.
    ///
    /// # Errors
    ///
    /// As [`Batch::fetch`].
    #[inline]
    pub(super) fn ready(&mut self) -> Result<bool> {
        if self.batch.has_next() {
            return Ok(true);
        }
        if self.batch.is_drained() && self.available()? == 0 {
            return Ok(false);
        }
        self.fetch()
    }

    /// Chains available after those taken, see [`SplitQueue::available`].
    #[inline]
    pub(super) fn available(&mut self) -> Result<u16> {
        let chains = self.queue.available(self.mem, self.batch.taken());
        self.check(chains)
    }

    /// The next chain, see [`Batch::head`].
    #[inline]
    pub(super) fn head(&mut self) -> Result<Head> {
        let head = self.batch.head(self.queue, self.scratch);
        self.check(head)
    }

    /// Reads chains ahead, see [`Batch::fetch`].
    #[inline(never)]
    fn fetch(&mut self) -> Result<bool> {
        let found = self.batch.fetch(self.queue, self.mem, self.scratch);
        let found = self.check(found)?;
        if self.queue.is_full() {
            self.host.bump(Counter::RingFull);
        }
        Ok(found)
    }

    /// The segment of the chain of `head`, if it is one and is for `access`.
    ///
    /// That is the common chain; `None` is no answer, ask [`Run::walk`].
    #[inline]
    pub(super) fn segment(&mut self, head: Head, access: Access) -> Option<Segment> {
        let Head { desc, .. } = head;
        if !desc.is_alone_for(access) {
            return None;
        }
        match chain::one(&self.translator, desc, access) {
            None => self.look_up(desc.addr, desc.len, access),
            segment => segment,
        }
    }

    /// [`Run::segment`] of a buffer that is in another entry than the last hit.
    #[inline(never)]
    fn look_up(&mut self, addr: Iova, len: u32, access: Access) -> Option<Segment> {
        let segment = self.translator.miss(addr, len, access)?;
        self.queue.set_guess(self.translator.place());
        Some(segment)
    }

    /// Makes [`Run::segment`] the packet in hand. Answers its bytes.
    #[inline]
    pub(super) fn one(&mut self, head: Head, access: Access) -> Option<u64> {
        let segment = self.segment(head, access)?;
        self.hold(segment);
        Some(segment.len)
    }

    /// Makes the chain of `head` the packet in hand, if it is for `access` and
    /// has one buffer or a common table of them. Answers bytes and segments.
    ///
    /// No segments are no answer, ask [`Run::walk`].
    #[inline]
    pub(super) fn common(&mut self, head: Head, access: Access) -> (u64, usize) {
        if head.desc.is_alone() {
            return match self.one(head, access) {
                Some(len) => (len, 1),
                None => (0, 0),
            };
        }
        self.table(head.desc, access)
    }

    /// [`Run::common`] of a chain that is no buffer. As in [`Run::walk`],
    /// descriptors are charged to the budget.
    #[inline(never)]
    fn table(&mut self, desc: Desc, access: Access) -> (u64, usize) {
        let translator = &mut self.translator;
        let (len, count) = chain::table(self.mem, translator, desc, access, self.scratch);
        self.queue.set_guess(self.translator.place());
        self.budget.charge(count);
        (len, count)
    }

    /// Takes the next chains that were read ahead, as long as each is one buffer
    /// that may be written, where the last one was, until they hold the `left`
    /// bytes of the packet in hand, which takes `extent` so far; `max` at most.
    /// Answers how many.
    ///
    /// 0 is no answer, ask [`Run::walk`].
    #[inline]
    pub(super) fn take_buffers(&mut self, extent: &mut Extent, max: u16, left: &mut u64) -> u16 {
        let Some(reach) = self.translator.reach(Access::Write) else {
            return 0;
        };
        let Extent { segments, descs } = *extent;
        let room = MAX_SEGMENTS.saturating_sub(segments.max(descs));
        let places = segments..segments.wrapping_add(room.min(max.into()));
        let num = self.queue.num();
        let mut rest = *left;

        let each = |desc: Desc, segment: &mut Segment| {
            if rest == 0 || !desc.is_alone_for(Access::Write) {
                return None;
            }
            *segment = reach.segment(desc.addr, desc.len)?;
            let used = segment.len.min(rest);
            rest = rest.wrapping_sub(used);
            // Not above a length of 32 bits: it fits.
            u32::try_from(used).ok()
        };
        let count = self.batch.take_while(self.scratch, num, places, each);
        *left = rest;
        extent.segments = extent.segments.wrapping_add(count.into());
        extent.descs = extent.descs.wrapping_add(count.into());
        self.budget.charge(count.into());
        count
    }

    /// Makes `segment` the packet in hand.
    #[inline]
    pub(super) fn hold(&mut self, segment: Segment) {
        let [first, ..] = &mut self.scratch.segments;
        *first = segment;
    }

    /// Adds the next chain to the packet in hand, which takes `extent` so far.
    /// Answers what it takes then.
    ///
    /// Descriptors are charged to the budget: a run may walk some thousands of
    /// them, not 1,024 for each of its packets.
    #[inline(never)]
    pub(super) fn walk(&mut self, extent: Extent) -> Result<(Chain, Extent)> {
        let head = self.head()?;
        let mut segments = Segments::new(&mut self.scratch.segments, extent);
        let [table, _, _] = self.queue.addresses();
        let mut walker = Walker {
            mem: self.mem,
            table,
            num: self.queue.num(),
            translator: &mut self.translator,
        };
        let chain = walker.walk(head.desc, &mut segments, &mut self.scratch.table);
        let total = segments.extent();
        self.queue.set_guess(self.translator.place());
        self.budget.charge(total.descs.wrapping_sub(extent.descs));
        Ok((self.check(chain)?, total))
    }

    /// The first `count` segments of the packet in hand.
    #[inline]
    pub(super) fn segments(&self, count: usize) -> &[Segment] {
        let segments = self.scratch.segments.get(..count);
        segments.unwrap_or_default()
    }

    /// Takes `bytes` off the packet in hand, which has `count` segments.
    /// Answers how many are left.
    #[inline(never)]
    pub(super) fn skip(&mut self, count: usize, bytes: usize) -> usize {
        let segments = self.scratch.segments.get_mut(..count);
        header::skip(segments.unwrap_or_default(), bytes)
    }

    /// Marks the chain shown by [`Run::head`] as taken, `len` bytes written.
    #[inline]
    pub(super) fn take(&mut self, head: Head, len: u32) {
        self.batch.take(self.scratch, head.id, len);
    }

    /// Lets one element return the last `chains` taken, see [`Batch::merge`].
    #[inline]
    pub(super) fn merge(&mut self, chains: u16) {
        self.batch.merge(self.scratch, chains);
    }

    /// Notes that a packet of `len` bytes is moved, which is counted when its
    /// chains are published.
    #[inline]
    pub(super) fn moved(&mut self, len: usize) {
        if !H::COUNTS {
            return;
        }
        let [packets, all_bytes] = &mut self.moved;
        *packets = packets.wrapping_add(1);
        *all_bytes = all_bytes.wrapping_add(bytes(len));
    }

    /// Counts what was moved since the last time.
    #[inline]
    fn count_moved(&mut self) {
        if H::COUNTS {
            let [packets, all_bytes] = mem::take(&mut self.moved);
            self.host.count(Counter::Packets, packets);
            self.host.count(Counter::Bytes, all_bytes);
        }
    }

    /// Whether enough chains are taken to be returned.
    #[inline]
    pub(super) fn is_batch_full(&self) -> bool {
        usize::from(self.batch.taken()) >= BATCH
    }

    /// Polls, everything being published. `None` if there is no window. Tell
    /// [`Run::polled`] what came of it.
    pub(super) fn poll(&mut self) -> Option<Window> {
        self.host.poll(self.queue)
    }

    /// Counts a window, after which this vring has something to do or not.
    pub(super) fn polled(&mut self, window: Window, found: bool) {
        let Window { end, ns } = window;
        if end == End::Turn {
            let time = if found {
                Counter::PollNsWon
            } else {
                Counter::PollNsLost
            };
            self.host.count(time, ns);
            return;
        }
        let (result, time) = match end {
            // A packet of the other vring saves its wake-up as well.
            End::Packet => (Counter::PollWon, Counter::PollNsWon),
            _ if found => (Counter::PollWon, Counter::PollNsWon),
            End::Work => (Counter::PollInterrupted, Counter::PollNsLost),
            _ => (Counter::PollLost, Counter::PollNsLost),
        };
        if let Some(counter) = end.counter() {
            self.host.bump(counter);
        }
        self.host.bump(result);
        self.host.count(time, ns);
    }

    /// Returns the taken chains and calls the driver if it wants that.
    pub(super) fn publish(&mut self) -> Result {
        self.count_moved();
        let wanted = self.batch.publish(self.queue, self.mem, self.scratch);
        match self.check(wanted)? {
            Some(true) => {
                self.host.bump(Counter::Calls);
                self.host.call();
            }
            Some(false) => self.host.bump(Counter::CallsSuppressed),
            None => {}
        }
        Ok(())
    }

    /// Everything is published and nothing is left to do, which counts as
    /// `why`: wait for a kick. `None` to go on, with what came meanwhile.
    #[inline(always)]
    pub(super) fn wait_kick(&mut self, why: Counter) -> Result<Option<Next>> {
        let news = self.queue.kicks_on(self.mem);
        if self.check(news)? {
            return self.more_came();
        }
        Ok(Some(self.end(why, Next::WaitKick)))
    }

    /// Chains came while kicks were turned on: turns them off again.
    #[inline(never)]
    fn more_came(&mut self) -> Result<Option<Next>> {
        self.kicks_off()?;
        Ok(self.look_again())
    }

    /// Counts a look that moved nothing: a driver that moves its index to and
    /// fro gets no more turns than one with packets.
    pub(super) fn look_again(&mut self) -> Option<Next> {
        self.budget
            .spend(0)
            .then(|| self.end(Counter::LeftWeight, Next::Requeue))
    }

    /// Ends the run, which counts as `why`.
    #[inline]
    pub(super) fn end(&mut self, why: Counter, next: Next) -> Next {
        self.host.bump(why);
        next
    }

    /// Ends the run at a chain that cannot be served, or not yet.
    #[cold]
    #[inline(never)]
    pub(super) fn broken(&mut self, error: Error) -> Outcome {
        let error = match error {
            Error::Unmapped { iova, access } if self.queue.has(features::ACCESS_PLATFORM) => {
                match self.publish() {
                    Ok(()) => {
                        self.host.bump(Counter::IotlbMisses);
                        self.queue.set_stuck(true);
                        return Outcome::Miss { iova, access };
                    }
                    Err(Stopped) => self.error,
                }
            }
            error => error,
        };
        self.host.bump(Counter::RingErrors);
        // The first error is the one to report: memory that failed may well
        // fail again here.
        let _ = self.publish();
        let _ = self.queue.kicks_on(self.mem);
        self.queue.set_stuck(true);
        Outcome::Broken(error)
    }
}

/// A length, to count with.
#[inline]
pub(super) fn bytes(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
