// SPDX-License-Identifier: GPL-2.0

//! One run of a vring. C: `handle_tx()`, `handle_rx()`.

use super::{
    poll::{Poller, Turn},
    Net,
};
use crate::{
    engine::{
        counters::Counters,
        features::HeaderLen,
        host::{Host, Polled},
        iotlb::AddressMap,
        memory::GuestMemory,
        net::{rx, tx, Env, Outcome},
        scratch::Scratch,
        split::SplitQueue,
    },
    kapi::{eventfd::EventFd, socket::NetSocket},
    kick::{self, Event},
    vring::{Backend, Io, State, Vring, Waits},
};

/// Runs `vring`, whose turn it is, once.
pub(super) fn handle(turn: Turn<'_>, vring: &Vring<Net>, scratch: &mut Scratch) {
    let mut state = vring.lock_for_run();

    let (again, alright) = match serve(turn, &mut state, scratch) {
        Outcome::WaitKick => (false, true),
        Outcome::WaitSocket => match state.wait_for_socket(turn.memory) {
            Waits::Yes => (false, true),
            Waits::No => (false, false),
            Waits::NoButNews => (true, false),
        },
        Outcome::Requeue => (true, true),
        Outcome::Broken(_) => (false, false),
    };
    if again {
        let bit = kick::bit(turn.index, Event::Kick);
        turn.worker.queue(turn.item, bit);
    }
    if !alright {
        state.signal_err();
    }
    vring.publish(&state.counters);
}

/// Lets the engine serve the rings.
///
/// Nothing is done, and nothing is lost, while there is no backend or no ring:
/// attaching a backend wakes the vring.
fn serve(turn: Turn<'_>, state: &mut State<Net>, scratch: &mut Scratch) -> Outcome {
    let State {
        queue,
        table: Some(table),
        backend: Some(Backend { socket, poll, io }),
        call,
        counters,
        header,
        log,
        ..
    } = state
    else {
        return Outcome::WaitKick;
    };
    if !queue.is_set_up() {
        return Outcome::WaitKick;
    }

    poll.stop();
    let run = Run {
        map: table.map(),
        scratch,
        counters,
        header: *header,
        call: call.as_ref(),
        turn,
        socket,
    };
    if log.what(queue).is_nothing() {
        return run.with(&turn.memory, queue, io);
    }
    let mem = log.memory(&turn.memory, queue, Some(table));
    let outcome = run.with(&mem, queue, io);
    counters.not_logged(mem.failed());
    outcome
}

/// A run, but for the memory that it works on.
struct Run<'a> {
    map: AddressMap<'a>,
    scratch: &'a mut Scratch,
    counters: &'a mut Counters,
    header: HeaderLen,
    call: Option<&'a EventFd>,
    turn: Turn<'a>,
    socket: &'a NetSocket,
}

impl<'a> Run<'a> {
    /// Runs on `mem`. What is not needed of it costs nothing: each kind of
    /// memory has loops of its own.
    fn with<M: GuestMemory>(self, mem: &'a M, queue: &mut SplitQueue, io: &mut Io) -> Outcome {
        let env = Env {
            mem,
            map: self.map,
            scratch: self.scratch,
            counters: self.counters,
            header: self.header,
        };
        let mut host = Surroundings {
            call: self.call,
            mem,
            poller: Poller {
                turn: self.turn,
                socket: self.socket,
            },
        };
        match io {
            Io::Rx(io) => rx::run(queue, env, &mut host, &mut io.for_run(self.turn.memory)),
            Io::Tx(io) => {
                let mut io = io.for_run(self.header.sock, self.turn.memory);
                tx::run(queue, env, &mut host, &mut io)
            }
        }
    }
}

/// The surroundings of a run.
struct Surroundings<'a, M> {
    call: Option<&'a EventFd>,
    mem: &'a M,
    poller: Poller<'a>,
}

impl<M: GuestMemory> Host for Surroundings<'_, M> {
    #[inline]
    fn call(&mut self) {
        if let Some(call) = self.call {
            call.signal();
        }
    }

    fn poll(&mut self, queue: &SplitQueue) -> Polled {
        self.poller.poll(queue, self.mem)
    }
}
