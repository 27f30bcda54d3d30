// SPDX-License-Identifier: GPL-2.0

//! One run of a vring. C: `handle_tx()`, `handle_rx()`.

use super::{
    poll::{Poller, Turn},
    Net,
};
use crate::{
    access,
    dirty_log::Log,
    engine::{
        counters::Counter,
        error::Error,
        features::HeaderLen,
        host::{Host, Window},
        iotlb::AddressMap,
        memory::GuestMemory,
        net::{rx, tx, tx_zerocopy, Env, Outcome},
        scratch::Scratch,
        split::SplitQueue,
    },
    iotlb::VringIotlb,
    kapi::{eventfd::EventFd, number, socket::NetSocket, wait::PollEntry, zerocopy::ZeroCopy},
    kick::{self, Event, Waker},
    stats::Stats,
    table::MemTable,
    vring::{Backend, Io, State, Vring, Waits},
};
use kernel::sync::Arc;

/// Runs `vring`, whose turn it is, once.
pub(super) fn handle(turn: Turn<'_>, vring: &Vring<Net>, scratch: &mut Scratch) {
    let mut state = vring.lock_for_run();
    if let Some(ns) = turn.worker.stopwatch.runs() {
        vring.stats.woken_after(ns);
    }

    let (again, alright) = match serve(turn, &mut state, &vring.stats, scratch) {
        Outcome::WaitKick | Outcome::WaitCompletion => (false, true),
        Outcome::WaitSocket => match state.wait_for_socket(turn.memory) {
            Waits::Yes => (false, true),
            Waits::No => (false, false),
            Waits::NoButNews => (true, false),
        },
        Outcome::Requeue => (true, true),
        Outcome::Miss { iova, access } => {
            let miss = state.miss(iova, access);
            turn.item.device.channel().ask(turn.index, miss);
            (false, true)
        }
        Outcome::Broken(_) => (false, false),
    };
    if again {
        let bit = kick::bit(turn.index, Event::Kick);
        turn.worker.queue(turn.item, bit);
    }
    if !alright {
        state.signal_err();
    }
    vring.stats.show_indices(&state.queue);
}

/// Lets the engine serve the rings.
///
/// Nothing is done, and nothing is lost, while there is no backend or no ring:
/// attaching a backend wakes the vring.
fn serve(turn: Turn<'_>, state: &mut State<Net>, stats: &Stats, scratch: &mut Scratch) -> Outcome {
    let State {
        queue,
        table: Some(table),
        backend: Some(backend),
        call,
        header,
        log,
        iotlb,
        ..
    } = state
    else {
        return Outcome::WaitKick;
    };
    if !queue.is_set_up() {
        return Outcome::WaitKick;
    }

    let Backend {
        socket,
        poll,
        io,
        zerocopy,
    } = backend;
    let memory = &turn.memory;
    let run = Run {
        scratch,
        stats,
        header: *header,
        call: call.as_ref(),
        turn,
        socket,
        zerocopy: zerocopy.as_mut(),
    };
    if iotlb.is_none() && log.what(queue).is_nothing() {
        poll.stop();
        return run.with(memory, table.map(), queue, io);
    }
    let ring = Ring {
        queue,
        table,
        poll,
        io,
        log,
        iotlb,
    };
    serve_mapped(run, ring)
}

/// The parts of a vring that a run with an IOTLB or a dirty log works on.
struct Ring<'a> {
    queue: &'a mut SplitQueue,
    table: &'a Arc<MemTable>,
    poll: &'a mut PollEntry<Waker<Net>>,
    io: &'a mut Io,
    log: &'a Log,
    iotlb: &'a Option<VringIotlb>,
}

/// [`serve`] with an IOTLB or a dirty log, on a stack of its own: few runs need
/// that.
#[inline(never)]
fn serve_mapped(run: Run<'_>, ring: Ring<'_>) -> Outcome {
    let Ring {
        queue,
        table,
        poll,
        io,
        log,
        iotlb,
    } = ring;
    let (memory, stats) = (run.turn.memory, run.stats);
    let memory = &memory;

    let mapped = match access::mapped(memory, iotlb, queue) {
        Ok(mapped) => mapped,
        Err(Error::Unmapped { iova, access }) => return Outcome::Miss { iova, access },
        Err(error @ Error::BadRing) => {
            stats.count(Counter::RingErrors, 1);
            return Outcome::Broken(error);
        }
        // The owner knows what it does not allow; C asks for nothing either.
        Err(_) => return Outcome::WaitKick,
    };
    poll.stop();
    let mem = log.memory(&mapped, queue, Some(table));
    let map = mapped.iotlb().unwrap_or(table.map());
    let outcome = run.apart(&mem, map, queue, io);
    stats.count(Counter::LogErrors, mem.failed());
    outcome
}

/// A run, but for the memory that it works on.
struct Run<'a> {
    scratch: &'a mut Scratch,
    stats: &'a Stats,
    header: HeaderLen,
    call: Option<&'a EventFd>,
    turn: Turn<'a>,
    socket: &'a NetSocket,
    zerocopy: Option<&'a mut ZeroCopy<Waker<Net>>>,
}

impl<'a> Run<'a> {
    /// Runs on `mem`. What is not needed of it costs nothing: each kind of
    /// memory has loops of its own.
    #[inline(always)]
    fn with<M: GuestMemory>(
        mut self,
        mem: &'a M,
        map: AddressMap<'a>,
        queue: &mut SplitQueue,
        io: &mut Io,
    ) -> Outcome {
        let (stats, memory, sock) = (self.stats, self.turn.memory, self.header.sock);
        stats.run_begins();
        let outcome = match (io, self.zerocopy.take()) {
            (Io::Rx(io), _) => {
                let (env, mut host) = self.parts(mem, map);
                rx::run(queue, env, &mut host, &mut io.for_run(memory))
            }
            (Io::Tx(io), None) => {
                let (env, mut host) = self.parts(mem, map);
                tx::run(queue, env, &mut host, &mut io.for_run(sock, memory))
            }
            (Io::Tx(io), Some(zerocopy)) => {
                let (env, mut host) = self.parts(mem, map);
                let (mut io, in_flight) = zerocopy.for_run(io.for_run(sock, memory));
                tx_zerocopy::run(queue, env, &mut host, &mut io, in_flight)
            }
        };
        stats.run_ends();
        outcome
    }

    /// [`Run::with`] on a stack of its own.
    #[inline(never)]
    fn apart<M: GuestMemory>(
        self,
        mem: &'a M,
        map: AddressMap<'a>,
        queue: &mut SplitQueue,
        io: &mut Io,
    ) -> Outcome {
        self.with(mem, map, queue, io)
    }

    /// What the engine gets of it. By each kind of run for itself: what one of
    /// them does not need is not even made then.
    #[inline(always)]
    fn parts<M>(self, mem: &'a M, map: AddressMap<'a>) -> (Env<'a, M>, Surroundings<'a, M>) {
        let env = Env {
            mem,
            map,
            scratch: self.scratch,
            header: self.header,
        };
        let host = Surroundings {
            stats: self.stats,
            call: self.call,
            mem,
            poller: Poller {
                turn: self.turn,
                socket: self.socket,
            },
        };
        (env, host)
    }
}

/// The surroundings of a run.
struct Surroundings<'a, M> {
    stats: &'a Stats,
    call: Option<&'a EventFd>,
    mem: &'a M,
    poller: Poller<'a>,
}

impl<M: GuestMemory> Host for Surroundings<'_, M> {
    const COUNTS: bool = number::COUNTS;

    #[inline(always)]
    fn count(&mut self, counter: Counter, n: u64) {
        self.stats.count(counter, n);
    }

    #[inline]
    fn call(&mut self) {
        if let Some(call) = self.call {
            call.signal();
        }
    }

    #[inline]
    fn poll(&mut self, queue: &SplitQueue) -> Option<Window> {
        if self.poller.is_off() {
            return None;
        }
        self.stats.show_indices(queue);
        self.poller.poll(queue, self.mem)
    }
}
