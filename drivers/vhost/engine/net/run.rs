// SPDX-License-Identifier: GPL-2.0

//! What the tx and the rx loop have in common.

use super::super::batch::Batch;
use super::super::batch::Head;
use super::super::budget::Budget;
use super::super::chain::Chain;
use super::super::chain::Walker;
use super::super::counters::bump;
use super::super::desc::Desc;
use super::super::error::Error;
use super::super::error::Result;
use super::super::host::Host;
use super::super::host::Polled;
use super::super::memory::GuestMemory;
use super::super::scratch::Segments;
use super::super::scratch::BATCH;
use super::super::split::SplitQueue;
use super::super::translate::Translator;
use super::Env;
use super::Outcome;

/// One run of one vring.
pub(super) struct Run<'r, 'a, M, H> {
    pub(super) queue: &'r mut SplitQueue,
    pub(super) env: Env<'a, M>,
    pub(super) host: &'r mut H,
    pub(super) batch: Batch,
    pub(super) budget: Budget,
    walker: Walker<'a, M>,
}

impl<'r, 'a, M: GuestMemory, H: Host> Run<'r, 'a, M, H> {
    /// Begins a run that reads `ahead` chains at first.
    pub(super) fn new(
        queue: &'r mut SplitQueue,
        env: Env<'a, M>,
        host: &'r mut H,
        ahead: usize,
    ) -> Self {
        bump(&mut env.counters.runs);
        queue.set_stuck(false);
        let [table, _, _] = queue.addresses();
        let walker = Walker {
            mem: env.mem,
            table,
            num: queue.num(),
            translator: Translator::new(env.map),
        };
        Self {
            queue,
            env,
            host,
            batch: Batch::new(ahead),
            budget: Budget::new(),
            walker,
        }
    }

    /// The next chain, see [`Batch::peek`].
    #[inline]
    pub(super) fn peek(&mut self) -> Result<Option<Head>> {
        self.batch.peek(self.queue, self.env.mem, self.env.scratch)
    }

    /// Reads chains ahead, see [`Batch::fetch`].
    pub(super) fn fetch(&mut self) -> Result<bool> {
        self.batch.fetch(self.queue, self.env.mem, self.env.scratch)
    }

    /// Puts the segments of the chain that `first` begins behind the `count`
    /// that there are. Answers how many there are then.
    #[inline]
    pub(super) fn walk(&mut self, first: Desc, count: usize) -> Result<(Chain, usize)> {
        let scratch = &mut *self.env.scratch;
        let mut segments = Segments::new(&mut scratch.segments, count);
        let chain = self.walker.walk(first, &mut segments, &mut scratch.table)?;
        Ok((chain, segments.count()))
    }

    /// Marks the chain shown by [`Run::peek`] as taken, `len` bytes written.
    #[inline]
    pub(super) fn take(&mut self, head: Head, len: u32) {
        self.batch.take(self.env.scratch, head.id, len);
    }

    /// Whether enough chains are taken to be returned.
    #[inline]
    pub(super) fn is_batch_full(&self) -> bool {
        usize::from(self.batch.taken()) >= BATCH
    }

    /// Polls, everything being published.
    pub(super) fn poll(&mut self) -> Polled {
        let polled = self.host.poll(self.queue);
        let counters = &mut *self.env.counters;
        match polled {
            Polled::Off => {}
            Polled::Done => bump(&mut counters.polls),
            Polled::Interrupted => {
                bump(&mut counters.polls);
                bump(&mut counters.poll_interrupted);
            }
        }
        polled
    }

    /// Returns the taken chains and calls the driver if it wants that.
    pub(super) fn publish(&mut self) -> Result {
        let wanted = self
            .batch
            .publish(self.queue, self.env.mem, self.env.scratch)?;
        match wanted {
            Some(true) => {
                bump(&mut self.env.counters.calls);
                self.host.call();
            }
            Some(false) => bump(&mut self.env.counters.calls_suppressed),
            None => {}
        }
        Ok(())
    }

    /// Everything is published and nothing is left to do: wait for a kick.
    /// `None` to go on, with what came meanwhile.
    pub(super) fn wait_kick(&mut self) -> Result<Option<Outcome>> {
        if !self.queue.kicks_on(self.env.mem)? {
            return Ok(Some(Outcome::WaitKick));
        }
        self.queue.kicks_off(self.env.mem)?;
        Ok(self.look_again())
    }

    /// Counts a look that moved nothing: a driver that moves its index to and
    /// fro gets no more turns than one with packets.
    pub(super) fn look_again(&mut self) -> Option<Outcome> {
        self.budget.spend(0).then(|| self.requeue())
    }

    /// Ends the run in the queue of the worker.
    pub(super) fn requeue(&mut self) -> Outcome {
        bump(&mut self.env.counters.requeues);
        Outcome::Requeue
    }

    /// Ends the run at a chain that cannot be served.
    #[cold]
    #[inline(never)]
    pub(super) fn broken(&mut self, error: Error) -> Outcome {
        bump(&mut self.env.counters.ring_errors);
        // The first error is the one to report: memory that failed may well
        // fail again here.
        let _ = self.publish();
        let _ = self.queue.kicks_on(self.env.mem);
        self.queue.set_stuck(true);
        Outcome::Broken(error)
    }
}

/// A length, to count with.
#[inline]
pub(super) fn bytes(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}
