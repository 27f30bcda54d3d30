// SPDX-License-Identifier: GPL-2.0

//! One run of a vring. C: `handle_tx()`, `handle_rx()`.

use super::{poll::Poller, Item, Net};
use crate::{
    engine::{
        host::{Host, Polled},
        net::{rx, tx, Env, Outcome},
        scratch::Scratch,
        split::SplitQueue,
    },
    kapi::{eventfd::EventFd, user_memory::OwnerMemory},
    kick::{self, Event},
    vring::{Backend, Io, State, Vring},
    worker::Worker,
};
use kernel::sync::ArcBorrow;

/// Runs `vring`, which is the vring `index`, once.
///
/// Nothing is done, and nothing is lost, while it has no backend or no ring:
/// attaching a backend wakes it.
pub(super) fn handle(
    item: ArcBorrow<'_, Item>,
    worker: &Worker<Net>,
    vring: &Vring<Net>,
    index: usize,
    scratch: &mut Scratch,
) {
    let mut state = vring.lock_for_run();
    let State {
        queue,
        table: Some(table),
        backend: Some(Backend { socket, poll, io }),
        call,
        counters,
        header,
        window,
        ..
    } = &mut *state
    else {
        return;
    };
    if !queue.is_set_up() {
        return;
    }

    poll.stop();
    let env = Env {
        mem: &OwnerMemory,
        map: table.map(),
        scratch,
        counters,
        header: *header,
    };
    let mut host = Surroundings {
        call: call.as_ref(),
        poller: Poller {
            item,
            worker,
            index,
            window: *window,
            socket,
        },
    };
    let outcome = match io {
        Io::Rx(io) => rx::run(queue, env, &mut host, io),
        Io::Tx(io) => {
            io.set_header(header.sock);
            tx::run(queue, env, &mut host, io)
        }
    };
    vring.publish(counters);

    match outcome {
        Outcome::WaitKick => (),
        Outcome::WaitSocket => {
            if poll.start().is_err() {
                state.signal_err();
            }
        }
        Outcome::Requeue => {
            worker.queue(item, kick::bit(index, Event::Kick));
        }
        Outcome::Broken(_) => state.signal_err(),
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
