// SPDX-License-Identifier: GPL-2.0

//! The tx loop for a socket that may send from the guest's memory. C:
//! `handle_tx_zerocopy()`.
//!
//! What becomes of a chain that is no frame, and of a frame that is refused, is
//! as in [`super::tx`]. Otherwise:
//!
//! - Chains are stepped over when they are sent and returned when they are done:
//!   short packets and copies at once, those in flight when the socket is done.
//!   With `VIRTIO_F_IN_ORDER` all wait for those before them, which C forgets.
//! - A run looks itself for packets that are done, and only at its end has them
//!   wake the vring. Most are done when the socket returns, and would else cut
//!   short a window of busy polling that follows, and run the ring once more for
//!   nothing.

use super::super::batch::Head;
use super::super::counters::Counter;
use super::super::host::End;
use super::super::host::Host;
use super::super::memory::GuestMemory;
use super::super::scratch::BATCH;
use super::super::split::SplitQueue;
use super::backend::Listen;
use super::backend::SendError;
use super::backend::ZeroCopyBackend;
use super::in_flight;
use super::in_flight::InFlight;
use super::run::bytes;
use super::run::Next;
use super::run::Result;
use super::run::Run;
use super::run::Stopped;
use super::tx;
use super::tx::Found;
use super::Env;
use super::Outcome;

struct Tx<'r, 'a, M, H, B> {
    run: Run<'r, 'a, M, H>,
    backend: &'r mut B,
    in_flight: &'r mut InFlight,
    /// Bytes of the shortest frame taken.
    min_len: usize,
    /// Chains to return; so many of `Scratch::used` count.
    done: usize,
    in_order: bool,
}

/// Serves the tx ring of `queue` until it is empty, broken, or had its turn.
///
/// Context: process context under the vring's lock; may sleep.
#[inline(never)]
pub fn run<M: GuestMemory, H: Host, B: ZeroCopyBackend>(
    queue: &mut SplitQueue,
    env: Env<'_, M>,
    host: &mut H,
    backend: &mut B,
    in_flight: &mut InFlight,
) -> Outcome {
    let min_len = tx::min_len(env.header);
    let in_order = in_flight::in_order(queue);
    let mut tx = Tx {
        run: Run::new(queue, env, host, BATCH),
        backend,
        in_flight,
        min_len,
        done: 0,
        in_order,
    };
    tx.backend.listen(Listen::Never);
    match tx.turn() {
        Ok(next) => next.into(),
        Err(Stopped) => {
            // The first error is the one to report.
            let error = tx.run.error();
            let _ = tx.flush();
            let outcome = tx.run.broken(error);
            let _ = tx.listen(Listen::Sometimes);
            outcome
        }
    }
}

impl<M: GuestMemory, H: Host, B: ZeroCopyBackend> Tx<'_, '_, M, H, B> {
    /// A whole run.
    fn turn(&mut self) -> Result<Next> {
        let next = self.serve()?;
        self.rest(next)?;
        Ok(next)
    }

    /// The loop.
    fn serve(&mut self) -> Result<Next> {
        self.run.kicks_off()?;

        loop {
            self.collect();
            if self.done >= BATCH {
                self.flush()?;
            }
            if !self.run.ready()? {
                match self.idle()? {
                    Some(next) => return Ok(next),
                    None => continue,
                }
            }
            if self.in_flight.is_full() {
                match self.full()? {
                    Some(next) => return Ok(next),
                    None => continue,
                }
            }

            let head = self.run.head()?;
            let Some(len) = self.chain(head)? else {
                return Ok(self.run.end(Counter::LeftFull, Next::WaitSocket));
            };
            if self.run.budget.spend(bytes(len)) {
                return Ok(self.run.end(Counter::LeftWeight, Next::Requeue));
            }
        }
    }

    /// The ring is empty: publish, poll, look again. `None` to go on.
    fn idle(&mut self) -> Result<Option<Next>> {
        // From here on completions are work like other work.
        self.listen(Listen::Sometimes)?;

        let next = self.look()?;
        if next.is_none() {
            self.backend.listen(Listen::Never);
        }
        Ok(next)
    }

    /// Polls and looks again, everything being published. `None` to go on.
    fn look(&mut self) -> Result<Option<Next>> {
        if let Some(window) = self.run.poll() {
            let found = self.run.ready();
            self.run.polled(window, matches!(found, Ok(true)));
            if found? {
                return Ok(None);
            }
            if window.end == End::Work {
                return Ok(Some(self.run.end(Counter::LeftWork, Next::Requeue)));
            }
        }
        self.run.wait_kick(Counter::LeftEmpty)
    }

    /// No chain can be taken before one is returned. `None` to go on.
    fn full(&mut self) -> Result<Option<Next>> {
        self.listen(Listen::Always)?;
        if self.in_flight.is_full() {
            // Chains that wait are no reason for the other ring to end its
            // window.
            self.run.queue.set_stuck(true);
            let next = Next::WaitCompletion;
            return Ok(Some(self.run.end(Counter::LeftInFlight, next)));
        }
        self.backend.listen(Listen::Never);
        Ok(self.run.look_again())
    }

    /// Leaves what is in flight to completions.
    fn rest(&mut self, next: Next) -> Result {
        self.listen(if next == Next::WaitCompletion {
            Listen::Always
        } else {
            Listen::Sometimes
        })
    }

    /// Lets completions wake the vring, and returns what was done before.
    fn listen(&mut self, listen: Listen) -> Result {
        self.backend.listen(listen);
        self.collect();
        self.flush()
    }

    /// Sends the frame in the chain that `head` begins, and steps over it.
    /// Answers its bytes; `None` if the socket takes no more.
    fn chain(&mut self, head: Head) -> Result<Option<usize>> {
        let (len, in_place) = match tx::look(&mut self.run, head, self.min_len)? {
            Found::Dropped(len) => (len, false),
            Found::Frame { count, len } => match self.send(count, len) {
                Some(in_place) => (len, in_place),
                None => return Ok(None),
            },
        };
        self.run.batch.step_over(self.run.queue);
        if in_place || (self.in_order && !self.in_flight.is_empty()) {
            self.in_flight.push(head.id, in_place);
        } else {
            self.give(head.id);
        }
        Ok(Some(len))
    }

    /// Sends one frame of `len` bytes in `count` segments. Answers whether the
    /// socket has it now; `None` if it takes no more.
    fn send(&mut self, count: usize, len: usize) -> Option<bool> {
        let num = self.run.queue.num();
        let long = len >= in_flight::MIN_LEN;
        let in_place = long && self.in_flight.select(num);
        let more = self.more(len, in_place);
        let slot = in_place.then(|| self.in_flight.slot());

        let sent = self.backend.send(self.run.segments(count), len, more, slot);
        let host = &mut *self.run.host;
        match sent {
            Ok(()) => {
                let packet = bytes(len).wrapping_sub(bytes(self.run.header.sock));
                host.bump(Counter::Packets);
                host.count(Counter::Bytes, packet);
                if in_place {
                    host.bump(Counter::ZerocopySent);
                } else if long {
                    host.bump(Counter::ZerocopyCopied);
                }
            }
            Err(SendError::Refused) => host.bump(Counter::DropRefused),
            Err(SendError::Full) => return None,
        }
        self.in_flight.sent();
        Some(in_place && sent.is_ok())
    }

    /// Whether to tell the socket that more follows. C: `tx_can_batch()`.
    ///
    /// It may keep what it has till then. So not if the run waits for that
    /// before it sends another.
    fn more(&mut self, len: usize, in_place: bool) -> bool {
        let run = &mut self.run;
        run.budget.allows_more(bytes(len))
            && !self
                .in_flight
                .exceeds_pending(run.queue.num(), in_place.into())
            && !self.in_flight.is_full_after(1)
            && (run.batch.has_two() || matches!(run.queue.available(run.mem, 1), Ok(1..)))
    }

    /// Collects the chains that are done.
    fn collect(&mut self) {
        while let Some((head, completion)) = self.in_flight.pop(self.backend) {
            if let Some(completion) = completion {
                in_flight::count(completion, |counter| self.run.host.bump(counter));
            }
            self.give(head);
        }
    }

    /// Has a chain returned with the next ones. There is room: a run publishes
    /// when it has [`BATCH`] of them, and no more than are in flight come at
    /// once.
    fn give(&mut self, head: u16) {
        if let Some(elem) = self.run.scratch.used.get_mut(self.done) {
            *elem = in_flight::used(head);
            self.done = self.done.wrapping_add(1);
        }
    }

    /// Returns what is done, and calls the driver if it wants that.
    fn flush(&mut self) -> Result {
        let done = core::mem::take(&mut self.done);
        let run = &mut self.run;
        let elems = run.scratch.used.get(..done).unwrap_or_default();
        if elems.is_empty() {
            return Ok(());
        }
        let wanted = in_flight::give_back(run.queue, run.mem, elems);
        if run.check(wanted)? {
            run.host.bump(Counter::Calls);
            run.host.call();
        } else {
            run.host.bump(Counter::CallsSuppressed);
        }
        Ok(())
    }
}
