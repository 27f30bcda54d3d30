// SPDX-License-Identifier: GPL-2.0

//! Files of all kinds where some kind is wanted, and kinds of workers.

use vhost_uapi::numbers;

use super::{nr, Table};
use crate::call::Arg;
use crate::objects::KINDS;
use crate::state::State;

/// Every kind of file for every ioctl that takes one.
pub(super) fn kinds() -> Table {
    let mut table = Table::new("files");
    let backend = nr(numbers::NET_SET_BACKEND);
    let events = [
        nr(numbers::SET_VRING_KICK),
        nr(numbers::SET_VRING_CALL),
        nr(numbers::SET_VRING_ERR),
    ];
    for state in [State::Ready, State::Running] {
        for request in [events[0], events[1], events[2], backend] {
            for (what, kind) in KINDS {
                let ring = if request == backend { 0 } else { 1 };
                let what = format!("ring {ring}: {what}");
                table.ioctl(state, request, what, Arg::file(ring, *kind));
            }
        }
        for (what, kind) in KINDS {
            let what = format!("ring 1: {what}");
            table.ioctl(state, backend, what, Arg::file(1, *kind));
        }
    }
    for state in [
        State::Fresh,
        State::Owned,
        State::Sized,
        State::TxOnly,
        State::Iotlb,
        State::Logging,
    ] {
        for (what, kind) in KINDS {
            for ring in [0, 1, 2] {
                if ring == 0 || ["-1", "not open", "a tap"].contains(what) {
                    let what = format!("ring {ring}: {what}");
                    table.ioctl(state, backend, what, Arg::file(ring, *kind));
                }
            }
        }
    }
    table
}

/// Which kind of worker there is to be.
pub(super) fn workers() -> Table {
    let mut table = Table::new("workers");
    let (set, get) = (
        nr(numbers::SET_FORK_FROM_OWNER),
        nr(numbers::GET_FORK_FROM_OWNER),
    );
    let states = [
        State::Fresh,
        State::Owned,
        State::Running,
        State::Kthread,
        State::Reset,
        State::Reowned,
        State::Dead,
    ];
    for state in states {
        for value in [0, 1, 2, 0x7f, 0x80, 0xff] {
            table.ioctl(state, set, format!("to {value}"), Arg::bytes([value]));
        }
        table.ioctl(state, get, "in memory", Arg::bytes([0x55]));
        let only_read = Arg::bytes([0x55]).at(vhost_uapi::Place::ReadOnly);
        table.ioctl(state, get, "where it can only be read", only_read);
        let nothing = Arg::bytes([0x55]).at(vhost_uapi::Place::Cut(0));
        table.ioctl(state, set, "of no byte", nothing);
    }
    // vhost-net has no ioctls for workers: these read a ring's index.
    for request in [
        nr(numbers::NEW_WORKER),
        nr(numbers::FREE_WORKER),
        nr(numbers::ATTACH_VRING_WORKER),
        nr(numbers::GET_VRING_WORKER),
    ] {
        for state in [State::Ready, State::Kthread] {
            for words in [[0, 0], [1, 1], [1, u32::MAX], [2, 0]] {
                table.ioctl(state, request, format!("{words:x?}"), Arg::words(&words));
            }
        }
    }
    table
}
