// SPDX-License-Identifier: GPL-2.0

//! One run of a vring. C: `handle_tx()`, `handle_rx()`.

use super::{
    poll::{Poller, Turn},
    Net,
};
use crate::{
    engine::{
        host::{Host, Polled},
        net::{rx, tx, Env, Outcome},
        scratch::Scratch,
        split::SplitQueue,
    },
    kapi::eventfd::EventFd,
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
        ..
    } = state
    else {
        return Outcome::WaitKick;
    };
    if !queue.is_set_up() {
        return Outcome::WaitKick;
    }

    poll.stop();
    let env = Env {
        mem: &turn.memory,
        map: table.map(),
        scratch,
        counters,
        header: *header,
    };
    let mut host = Surroundings {
        call: call.as_ref(),
        poller: Poller { turn, socket },
    };
    match io {
        Io::Rx(io) => rx::run(queue, env, &mut host, &mut io.for_run(turn.memory)),
        Io::Tx(io) => {
            let mut io = io.for_run(header.sock, turn.memory);
            tx::run(queue, env, &mut host, &mut io)
        }
    }
}

/// The surroundings of a run.
struct Surroundings<'a> {
    call: Option<&'a EventFd>,
    poller: Poller<'a>,
}

impl Host for Surroundings<'_> {
    #[inline]
    fn call(&mut self) {
        if let Some(call) = self.call {
            call.signal();
        }
    }

    fn poll(&mut self, queue: &SplitQueue) -> Polled {
        self.poller.poll(queue)
    }
}
