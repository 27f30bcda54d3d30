// SPDX-License-Identifier: GPL-2.0

//! read(2), write(2) and poll(2): messages of the device IOTLB. And what a file can do besides.

use vhost_uapi::{numbers, Address, Place};

use super::{nr, Table};
use crate::call::{Arg, Call};
use crate::limit::{end_of_user_memory, KERNEL};
use crate::message::{Message, INVALIDATE, UPDATE};
use crate::objects::Kind;
use crate::state::State;

/// A page that a driver could use.
const PAGE: Message = Message {
    iova: 0x10_0000,
    size: 0x1000,
    uaddr: 0x20_0000,
    perm: 3,
    kind: UPDATE,
};

/// Messages, by what is odd about each.
fn messages() -> Vec<(String, Message)> {
    let named = |(what, message): (&str, _)| (what.to_owned(), message);
    let mut messages: Vec<_> = ranges().into_iter().map(named).collect();
    for perm in [0, 1, 2, 4, 7, 0xff] {
        messages.push((format!("permission {perm}"), Message { perm, ..PAGE }));
    }
    for kind in [0, 1, 4, 5, 6, 7, 0xff] {
        messages.push((format!("kind {kind}"), Message { kind, ..PAGE }));
        let empty = Message {
            kind,
            size: 0,
            ..PAGE
        };
        messages.push((format!("kind {kind}, no bytes"), empty));
    }
    messages
}

fn ranges() -> Vec<(&'static str, Message)> {
    let end = end_of_user_memory();
    let update = |iova, size, uaddr, perm| Message {
        iova,
        size,
        uaddr,
        perm,
        kind: UPDATE,
    };
    let invalidate = |iova, size| Message {
        iova,
        size,
        kind: INVALIDATE,
        ..Message::default()
    };
    vec![
        ("update", PAGE),
        ("update of nothing", update(0x1000, 0, 0x20_0000, 3)),
        ("update of nothing at 0", update(0, 0, 0, 3)),
        ("update that wraps", update(u64::MAX, 2, 0x20_0000, 3)),
        ("update of the last byte", update(u64::MAX, 1, 0x20_0000, 3)),
        ("update of all", update(0, u64::MAX, 0, 3)),
        (
            "update in the kernel's half",
            update(0x1000, 0x1000, KERNEL, 3),
        ),
        (
            "update in the kernel's half, no permission",
            update(0x1000, 0x1000, KERNEL, 0),
        ),
        (
            "update up to the end",
            update(0x1000, 0x1000, end - 0x1000, 3),
        ),
        (
            "update past the end",
            update(0x1000, 0x1001, end - 0x1000, 3),
        ),
        ("invalidate", invalidate(0x10_0000, 0x1000)),
        ("invalidate all", invalidate(0, u64::MAX)),
        ("invalidate nothing", invalidate(0x10_0000, 0)),
        ("invalidate the last byte", invalidate(u64::MAX, 1)),
        ("invalidate what wraps", invalidate(u64::MAX, 2)),
    ]
}

/// Messages to the device.
pub(super) fn writes() -> Table {
    let mut table = Table::new("messages to the device");
    for state in [State::Iotlb, State::IotlbRunning, State::Owned] {
        for (what, message) in messages() {
            for version in [1, 2] {
                let arg = Arg::bytes(message.of_type(version));
                let what = format!("write version {version}: {what}");
                table.add(state, what, Call::Write(arg, None));
            }
        }
        for kind in [0, 3, 4, 0x100, u32::MAX] {
            let arg = Arg::bytes(PAGE.of_type(kind));
            table.add(
                state,
                format!("write of type {kind:#x}"),
                Call::Write(arg, None),
            );
        }
    }
    for state in [State::Iotlb, State::Fresh] {
        for version in [1, 2] {
            for len in [0, 1, 3, 4, 7, 8, 39, 40, 41, 47, 48, 71, 72, 73, 200, 1000] {
                let mut bytes = PAGE.of_type(version);
                bytes.resize(len, 0);
                let what = format!("write version {version}, {len} bytes");
                table.add(state, what, Call::Write(Arg::bytes(bytes), None));
            }
            for there in [0, 3, 4, 8, 39, 40, 71] {
                let arg = Arg::bytes(PAGE.of_type(version)).at(Place::Cut(there));
                let what = format!("write version {version}, {there} of 72 bytes are there");
                table.add(state, what, Call::Write(arg, Some(72)));
            }
        }
        for (what, address) in [
            ("0", Address::Null),
            ("a hole", Address::Hole),
            ("the kernel's half", Address::Kernel),
        ] {
            let call = Call::Write(Arg::Wild(address), Some(72));
            table.add(state, format!("write at {what}"), call);
        }
    }
    table
}

/// Messages from the device, and other things to do with a file.
pub(super) fn reads() -> Table {
    let mut table = Table::new("messages from the device");
    let attach = Call::Ioctl(nr(numbers::NET_SET_BACKEND), Arg::file(1, Kind::Tap(1)));
    let version_2 = Call::Ioctl(nr(numbers::SET_BACKEND_FEATURES), Arg::longs(&[2]));
    for state in [
        State::Fresh,
        State::Owned,
        State::Running,
        State::Iotlb,
        State::Dead,
    ] {
        for len in [0, 1, 71, 72, 73, 144] {
            let call = Call::Read(len, Arg::zeroes(len));
            table.add(state, format!("read of {len} bytes"), call.clone());
            if state != State::Iotlb {
                continue;
            }
            // Rings that are not in the IOTLB make a miss.
            let before = vec![attach.clone()];
            table.add_after(
                state,
                format!("read of {len} bytes after a miss"),
                before,
                call.clone(),
            );
            let before = vec![version_2.clone(), attach.clone()];
            let what = format!("read of {len} bytes after a miss of version 2");
            table.add_after(state, what, before, call);
        }
        for at in [
            Place::Cut(0),
            Place::Cut(40),
            Place::ReadOnly,
            Place::Straddle(40),
        ] {
            let call = Call::Read(72, Arg::zeroes(72).at(at));
            let what = format!("read at {at:?} after a miss");
            table.add_after(state, what, vec![attach.clone()], call);
        }
        table.add(state, "poll", Call::Poll);
        table.add_after(state, "poll after a miss", vec![attach.clone()], Call::Poll);
        table.add(state, "lseek", Call::Seek);
        table.add(state, "mmap", Call::Map);
    }
    // A read that waits ends at once where there is no IOTLB.
    let wait = Call::Ioctl(0x5421, Arg::words(&[0]));
    for state in [State::Fresh, State::Owned, State::Running, State::Reset] {
        for len in [71, 72] {
            let call = Call::Read(len, Arg::zeroes(len));
            table.add_after(
                state,
                format!("read of {len} bytes that waits"),
                vec![wait.clone()],
                call,
            );
        }
    }
    table
}
