// SPDX-License-Identifier: GPL-2.0

//! Every ioctl in every state, with arguments that know nothing of it.

use vhost_uapi::{numbers, Address, Place};

use super::{nr, Table};
use crate::call::{Arg, Call};
use crate::helper::Caller;
use crate::state::State;

/// Known numbers, and some that are of other devices.
const REQUESTS: &[(&str, u32)] = &[
    ("VHOST_GET_FEATURES", nr(numbers::GET_FEATURES)),
    ("VHOST_SET_FEATURES", nr(numbers::SET_FEATURES)),
    ("VHOST_SET_OWNER", nr(numbers::SET_OWNER)),
    ("VHOST_RESET_OWNER", nr(numbers::RESET_OWNER)),
    ("VHOST_SET_MEM_TABLE", nr(numbers::SET_MEM_TABLE)),
    ("VHOST_SET_LOG_BASE", nr(numbers::SET_LOG_BASE)),
    ("VHOST_SET_LOG_FD", nr(numbers::SET_LOG_FD)),
    ("VHOST_NEW_WORKER", nr(numbers::NEW_WORKER)),
    ("VHOST_FREE_WORKER", nr(numbers::FREE_WORKER)),
    ("VHOST_SET_VRING_NUM", nr(numbers::SET_VRING_NUM)),
    ("VHOST_SET_VRING_ADDR", nr(numbers::SET_VRING_ADDR)),
    ("VHOST_SET_VRING_BASE", nr(numbers::SET_VRING_BASE)),
    ("VHOST_GET_VRING_BASE", nr(numbers::GET_VRING_BASE)),
    ("VHOST_SET_VRING_ENDIAN", nr(numbers::SET_VRING_ENDIAN)),
    ("VHOST_GET_VRING_ENDIAN", nr(numbers::GET_VRING_ENDIAN)),
    (
        "VHOST_ATTACH_VRING_WORKER",
        nr(numbers::ATTACH_VRING_WORKER),
    ),
    ("VHOST_GET_VRING_WORKER", nr(numbers::GET_VRING_WORKER)),
    ("VHOST_SET_VRING_KICK", nr(numbers::SET_VRING_KICK)),
    ("VHOST_SET_VRING_CALL", nr(numbers::SET_VRING_CALL)),
    ("VHOST_SET_VRING_ERR", nr(numbers::SET_VRING_ERR)),
    (
        "VHOST_SET_VRING_BUSYLOOP_TIMEOUT",
        nr(numbers::SET_VRING_BUSYLOOP_TIMEOUT),
    ),
    (
        "VHOST_GET_VRING_BUSYLOOP_TIMEOUT",
        nr(numbers::GET_VRING_BUSYLOOP_TIMEOUT),
    ),
    (
        "VHOST_SET_BACKEND_FEATURES",
        nr(numbers::SET_BACKEND_FEATURES),
    ),
    (
        "VHOST_GET_BACKEND_FEATURES",
        nr(numbers::GET_BACKEND_FEATURES),
    ),
    ("VHOST_NET_SET_BACKEND", nr(numbers::NET_SET_BACKEND)),
    ("VHOST_GET_FEATURES_ARRAY", nr(numbers::GET_FEATURES_ARRAY)),
    ("VHOST_SET_FEATURES_ARRAY", nr(numbers::SET_FEATURES_ARRAY)),
    (
        "VHOST_SET_FORK_FROM_OWNER",
        nr(numbers::SET_FORK_FROM_OWNER),
    ),
    (
        "VHOST_GET_FORK_FROM_OWNER",
        nr(numbers::GET_FORK_FROM_OWNER),
    ),
    ("VHOST_SCSI_SET_ENDPOINT", 0x40E8_AF40),
    ("VHOST_VSOCK_SET_RUNNING", 0x4004_AF61),
    ("VHOST_VDPA_GET_DEVICE_ID", 0x8004_AF70),
    ("TCGETS", 0x5401),
    ("FIONREAD", 0x541B),
    ("FIOASYNC", 0x5452),
    ("FIONBIO", 0x5421),
    ("FIOQSIZE", 0x5460),
    ("FIBMAP", 0x0001),
    ("0", 0),
    ("all ones", u32::MAX),
];

/// Arguments that fit no call in particular: name, and the argument.
fn arguments() -> Vec<(&'static str, Arg)> {
    let index = |index| {
        let mut words = [0; 16];
        words[0] = index;
        Arg::words(&words)
    };
    vec![
        ("of zeroes", Arg::zeroes(64)),
        ("of index 1", index(1)),
        ("of index 2", index(2)),
        ("of index 2^32-1", index(u32::MAX)),
        ("at 0", Arg::Wild(Address::Null)),
        ("at 1", Arg::Wild(Address::Small(1))),
        ("in a hole", Arg::Wild(Address::Hole)),
        ("in the kernel's half", Arg::Wild(Address::Kernel)),
        ("that can only be read", Arg::zeroes(64).at(Place::ReadOnly)),
        ("of 1 byte", Arg::zeroes(64).at(Place::Cut(1))),
        ("of 3 bytes", Arg::zeroes(64).at(Place::Cut(3))),
        ("of 4 bytes", Arg::zeroes(64).at(Place::Cut(4))),
        ("of 7 bytes", Arg::zeroes(64).at(Place::Cut(7))),
        ("of 8 bytes", Arg::zeroes(64).at(Place::Cut(8))),
        ("of 39 bytes", Arg::zeroes(64).at(Place::Cut(39))),
        (
            "that can be written for 4 bytes",
            Arg::zeroes(64).at(Place::Straddle(4)),
        ),
        (
            "that can be written for 8 bytes",
            Arg::zeroes(64).at(Place::Straddle(8)),
        ),
    ]
}

/// A few of them, for where the state is all that matters.
const FEW: [&str; 3] = ["of zeroes", "of index 2", "in a hole"];

/// Every call, as the owner or as nobody yet.
pub(super) fn every_call() -> Table {
    let mut table = Table::new("every call");
    for (state, all) in [
        (State::Fresh, false),
        (State::Owned, true),
        (State::Running, false),
        (State::Reset, false),
    ] {
        for (name, request) in REQUESTS {
            for (what, arg) in arguments() {
                if all || FEW.contains(&what) {
                    table.add(state, format!("{name} {what}"), Call::Ioctl(*request, arg));
                }
            }
        }
    }
    table
}

/// Every call on a device of another process.
pub(super) fn callers() -> Table {
    let mut table = Table::new("other processes");
    for caller in [Caller::Root, Caller::Nobody] {
        for (name, request) in REQUESTS {
            for (what, arg) in arguments() {
                if FEW.contains(&what) {
                    let call = Call::Ioctl(*request, arg);
                    table.add_by(caller, State::Owned, &format!("{name} {what}"), call);
                }
            }
            let call = Call::Ioctl(*request, Arg::zeroes(64));
            table.add_by(caller, State::Running, &format!("{name} of zeroes"), call);
        }
    }
    let set = nr(numbers::SET_VRING_BUSYLOOP_TIMEOUT);
    let get = nr(numbers::GET_VRING_BUSYLOOP_TIMEOUT);
    for caller in [Caller::Root, Caller::Nobody, Caller::Namespace] {
        for state in [State::Fresh, State::Owned, State::Running, State::Reset] {
            let call = Call::Ioctl(set, Arg::words(&[1, 77]));
            table.add_by(
                caller,
                state,
                "VHOST_SET_VRING_BUSYLOOP_TIMEOUT of 77",
                call,
            );
            let call = Call::Ioctl(get, Arg::words(&[1, 0xffff_ffff]));
            table.add_by(
                caller,
                state,
                "VHOST_GET_VRING_BUSYLOOP_TIMEOUT of ring 1",
                call,
            );
        }
    }
    // Whoever opened it, whoever may become the owner.
    for caller in [
        Caller::Root,
        Caller::Nobody,
        Caller::Namespace,
        Caller::Starved,
    ] {
        for state in [State::Fresh, State::Owned, State::Reset] {
            let call = Call::Ioctl(nr(numbers::SET_OWNER), Arg::Wild(Address::Null));
            table.add_by(caller, state, "VHOST_SET_OWNER", call);
        }
    }
    table
}

/// A device that outlives its owner.
pub(super) fn owner_gone() -> Table {
    let mut table = Table::new("owner gone");
    for (name, request) in REQUESTS {
        let call = Call::Ioctl(*request, Arg::zeroes(64));
        table.add(State::Dead, format!("{name} of zeroes"), call);
    }
    table
}

/// Numbers that are almost right.
pub(super) fn numbers() -> Table {
    const SIZE: u32 = 0x3fff << 16;
    const DIRECTION: u32 = 3 << 30;
    let mut table = Table::new("wrong numbers");
    let known = REQUESTS
        .iter()
        .filter(|(_, request)| request >> 8 & 0xff == 0xaf);
    for (name, request) in known {
        let size = request >> 16 & 0x3fff;
        let sized = |size: u32| request & !SIZE | size << 16 & SIZE;
        let mut wrong: Vec<(String, u32)> = [0, 1, 4, 8, 16, 0x3fff]
            .into_iter()
            .filter(|other| *other != size)
            .map(|size| (format!("with size {size}"), sized(size)))
            .collect();
        for direction in (0..4).filter(|direction| direction << 30 != request & DIRECTION) {
            let number = request & !DIRECTION | direction << 30;
            // A getter's number may be a setter's.
            if !REQUESTS.iter().any(|(_, other)| *other == number) {
                wrong.push((format!("with direction {direction}"), number));
            }
        }
        for kind in [0xae, 0xb0] {
            wrong.push((
                format!("with type {kind:#x}"),
                request & !0xff00 | kind << 8,
            ));
        }
        for (what, number) in wrong {
            let call = Call::Ioctl(number, Arg::zeroes(64));
            table.add(State::Owned, format!("{name} {what}"), call);
        }
    }
    // Every number of the type byte that has no name.
    let named = |nr: &u32| REQUESTS.iter().any(|(_, request)| request & 0xff == *nr);
    for nr in (0..=0xff).filter(|nr| !named(nr)) {
        let call = Call::Ioctl(0x4008_af00 | nr, Arg::zeroes(64));
        table.add(State::Owned, format!("number {nr:#04x}"), call);
    }
    table
}
