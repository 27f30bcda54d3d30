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

    let outcome = serve(&turn, &mut state, vring, scratch);
    vring.stats.run_ends();
    let (again, alright) = match outcome {
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
#[inline]
fn serve(
    turn: &Turn<'_>,
    state: &mut State<Net>,
    vring: &Vring<Net>,
    scratch: &mut Scratch,
) -> Outcome {
    if state.iotlb.is_some() || !state.log.what(&state.queue).is_nothing() {
        return serve_mapped(turn, state, vring, scratch);
    }
    match &state.backend {
        None => Outcome::WaitKick,
        Some(Backend { io: Io::Rx(_), .. }) => serve_rx(turn, state, vring, scratch),
        Some(Backend { zerocopy: None, .. }) => serve_tx(turn, state, vring, scratch),
        Some(_) => serve_in_place(turn, state, vring, scratch),
    }
}

/// [`serve`] of an rx vring. As each kind of run on a stack of its own, with few
/// arguments: the rest is where it is needed at once.
#[inline(never)]
fn serve_rx(
    turn: &Turn<'_>,
    state: &mut State<Net>,
    vring: &Vring<Net>,
    scratch: &mut Scratch,
) -> Outcome {
    let Some((ring, run)) = split(turn, state, vring, scratch) else {
        return Outcome::WaitKick;
    };
    let Io::Rx(io) = ring.io else {
        return Outcome::WaitKick;
    };
    let memory = &turn.memory;
    ring.poll.stop();
    vring.stats.run_begins();
    let (env, mut host) = run.parts(memory, ring.table.map());
    rx::run_here(ring.queue, env, &mut host, &mut io.for_run(*memory))
}

/// [`serve`] of a tx vring.
#[inline(never)]
fn serve_tx(
    turn: &Turn<'_>,
    state: &mut State<Net>,
    vring: &Vring<Net>,
    scratch: &mut Scratch,
) -> Outcome {
    let Some((ring, run)) = split(turn, state, vring, scratch) else {
        return Outcome::WaitKick;
    };
    let Io::Tx(io) = ring.io else {
        return Outcome::WaitKick;
    };
    let (memory, sock) = (&turn.memory, run.header.sock);
    ring.poll.stop();
    vring.stats.run_begins();
    let (env, mut host) = run.parts(memory, ring.table.map());
    tx::run_here(ring.queue, env, &mut host, &mut io.for_run(sock, *memory))
}

/// [`serve`] of a tx vring whose frames may be sent from the owner's memory.
#[inline(never)]
fn serve_in_place(
    turn: &Turn<'_>,
    state: &mut State<Net>,
    vring: &Vring<Net>,
    scratch: &mut Scratch,
) -> Outcome {
    let Some((ring, mut run)) = split(turn, state, vring, scratch) else {
        return Outcome::WaitKick;
    };
    let (Io::Tx(io), Some(zerocopy)) = (ring.io, run.zerocopy.take()) else {
        return Outcome::WaitKick;
    };
    let (memory, sock) = (&turn.memory, run.header.sock);
    ring.poll.stop();
    vring.stats.run_begins();
    let (env, mut host) = run.parts(memory, ring.table.map());
    let (mut io, in_flight) = zerocopy.for_run(io.for_run(sock, *memory));
    tx_zerocopy::run(ring.queue, env, &mut host, &mut io, in_flight)
}

/// [`serve`] with an IOTLB or a dirty log, on a stack of its own: few runs need
/// that.
#[inline(never)]
fn serve_mapped(
    turn: &Turn<'_>,
    state: &mut State<Net>,
    vring: &Vring<Net>,
    scratch: &mut Scratch,
) -> Outcome {
    let Some((ring, run)) = split(turn, state, vring, scratch) else {
        return Outcome::WaitKick;
    };
    let memory = &turn.memory;

    let mapped = match access::mapped(memory, ring.iotlb, ring.queue) {
        Ok(mapped) => mapped,
        Err(Error::Unmapped { iova, access }) => return Outcome::Miss { iova, access },
        Err(error @ Error::BadRing) => {
            vring.stats.count(Counter::RingErrors, 1);
            return Outcome::Broken(error);
        }
        // The owner knows what it does not allow; C asks for nothing either.
        Err(_) => return Outcome::WaitKick,
    };
    ring.poll.stop();
    let mem = ring.log.memory(&mapped, ring.queue, Some(ring.table));
    let map = mapped.iotlb().unwrap_or(ring.table.map());
    let outcome = run.with(&mem, map, ring.queue, ring.io);
    vring.stats.count(Counter::LogErrors, mem.failed());
    outcome
}

/// The parts of a vring that a run works on.
struct Ring<'a> {
    queue: &'a mut SplitQueue,
    table: &'a Arc<MemTable>,
    poll: &'a mut PollEntry<Waker<Net>>,
    io: &'a mut Io,
    log: &'a Log,
    iotlb: &'a Option<VringIotlb>,
}

/// Takes the state of a vring apart, if it has a backend and rings. What is not
/// used of it is not even made.
#[inline(always)]
fn split<'a>(
    turn: &'a Turn<'a>,
    state: &'a mut State<Net>,
    vring: &'a Vring<Net>,
    scratch: &'a mut Scratch,
) -> Option<(Ring<'a>, Run<'a>)> {
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
        return None;
    };
    if !queue.is_set_up() {
        return None;
    }

    let Backend {
        socket,
        poll,
        io,
        zerocopy,
    } = backend;
    let run = Run {
        scratch,
        vring,
        header: *header,
        call: call.as_ref(),
        turn,
        socket,
        zerocopy: zerocopy.as_mut(),
    };
    let ring = Ring {
        queue,
        table,
        poll,
        io,
        log,
        iotlb,
    };
    Some((ring, run))
}

/// A run, but for the memory that it works on.
struct Run<'a> {
    scratch: &'a mut Scratch,
    vring: &'a Vring<Net>,
    header: HeaderLen,
    call: Option<&'a EventFd>,
    turn: &'a Turn<'a>,
    socket: &'a NetSocket,
    zerocopy: Option<&'a mut ZeroCopy<Waker<Net>>>,
}

impl<'a> Run<'a> {
    /// Runs on `mem`. Each kind of memory has loops of its own.
    #[inline(never)]
    fn with<M: GuestMemory>(
        mut self,
        mem: &'a M,
        map: AddressMap<'a>,
        queue: &mut SplitQueue,
        io: &mut Io,
    ) -> Outcome {
        let (memory, sock) = (self.turn.memory, self.header.sock);
        self.vring.stats.run_begins();
        match (io, self.zerocopy.take()) {
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
        }
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
            call: self.call,
            mem,
            poller: Poller {
                turn: self.turn,
                vring: self.vring,
                socket: self.socket,
            },
        };
        (env, host)
    }
}

/// The surroundings of a run.
struct Surroundings<'a, M> {
    call: Option<&'a EventFd>,
    mem: &'a M,
    poller: Poller<'a>,
}

impl<M: GuestMemory> Host for Surroundings<'_, M> {
    const COUNTS: bool = number::COUNTS;

    #[inline(always)]
    fn count(&mut self, counter: Counter, n: u64) {
        self.poller.vring.stats.count(counter, n);
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
        self.poller.vring.stats.show_indices(queue);
        self.poller.poll(queue, self.mem)
    }
}
