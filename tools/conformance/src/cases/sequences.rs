// SPDX-License-Identifier: GPL-2.0

//! Calls after calls: what is kept, what is forgotten, what a refused call leaves.

use vhost_uapi::{numbers, Address, Place};

use super::{name_of, nr, Table};
use crate::call::{Arg, Call};
use crate::limit::KERNEL;
use crate::message::{Message, UPDATE};
use crate::objects::Kind;
use crate::state::State;

fn words(request: u64, words: &[u32]) -> Call {
    Call::Ioctl(nr(request), Arg::words(words))
}

fn longs(request: u64, longs: &[u64]) -> Call {
    Call::Ioctl(nr(request), Arg::longs(longs))
}

fn file(request: u64, index: u32, kind: Kind) -> Call {
    Call::Ioctl(nr(request), Arg::file(index, kind))
}

fn plain(request: u64) -> Call {
    Call::Ioctl(nr(request), Arg::Wild(Address::Null))
}

/// All of them.
pub(super) fn all() -> Table {
    let mut table = Table::new("sequences");
    refused(&mut table);
    owners(&mut table);
    forgotten(&mut table);
    eventfds(&mut table);
    backends(&mut table);
    stopped_rings(&mut table);
    iotlb(&mut table);
    table
}

/// A refused call after a good one of the same kind.
fn refused(table: &mut Table) {
    const FAR: u64 = 0x20_0000;
    let pairs = [
        (numbers::SET_VRING_NUM, vec![1, 8], vec![1, 3]),
        (numbers::SET_VRING_BASE, vec![1, 10], vec![1, 0x1_0000]),
        (numbers::SET_VRING_BUSYLOOP_TIMEOUT, vec![1, 0], vec![2, 5]),
    ];
    for (request, good, bad) in pairs {
        let before = vec![words(request, &good)];
        let what = format!("{} refused after one that was not", name_of(nr(request)));
        table.add_after(State::Ready, what, before.clone(), words(request, &bad));
        let what = format!("{} cut off after one that was not", name_of(nr(request)));
        let cut = Call::Ioctl(nr(request), Arg::words(&bad[..1]).at(Place::Edge));
        table.add_after(State::Ready, what, before, cut);
    }
    // Each field is good but one.
    let addr = |flags: u64, rest: [u64; 4]| {
        let [desc, used, avail, log] = rest;
        longs(
            numbers::SET_VRING_ADDR,
            &[flags << 32 | 1, desc, used, avail, log],
        )
    };
    for state in [State::Ready, State::Running, State::Logging] {
        for (what, call) in [
            ("flags", addr(2, [FAR; 4])),
            ("used", addr(0, [FAR, FAR + 2, FAR, FAR])),
            ("avail", addr(0, [FAR, FAR, FAR + 1, FAR])),
            ("log", addr(1, [FAR, FAR, FAR, FAR + 1])),
            (
                "log in the kernel's half",
                addr(1, [FAR, FAR, FAR, KERNEL << 15]),
            ),
        ] {
            table.add(
                state,
                format!("VHOST_SET_VRING_ADDR refused for its {what}"),
                call,
            );
        }
        let table_with_bad_end = [2, 0x10_0000, 0x1000, FAR, 0, 0x20_0000, 0, FAR, 0];
        let call = longs(numbers::SET_MEM_TABLE, &table_with_bad_end);
        table.add(
            state,
            "VHOST_SET_MEM_TABLE whose second region is bad",
            call,
        );
        let bits = [1 << 32, 1 << 34, 1 << 27 | 1 << 34];
        for word in bits {
            let what = format!("VHOST_SET_FEATURES refused: {word:#x}");
            table.add(state, what, longs(numbers::SET_FEATURES, &[word | 1 << 63]));
            let what = format!("VHOST_SET_FEATURES_ARRAY refused: {word:#x}");
            let array = [3, word & 1 << 32, 0, 1];
            table.add(state, what, longs(numbers::SET_FEATURES_ARRAY, &array));
        }
    }
}

/// What an owner leaves to the next one.
fn owners(table: &mut Table) {
    let (set, reset) = (plain(numbers::SET_OWNER), plain(numbers::RESET_OWNER));
    for state in [
        State::Fresh,
        State::Owned,
        State::Running,
        State::Kthread,
        State::Iotlb,
    ] {
        table.add(state, "VHOST_SET_OWNER", set.clone());
        table.add(state, "VHOST_RESET_OWNER", reset.clone());
        let again = vec![reset.clone()];
        table.add_after(
            state,
            "VHOST_RESET_OWNER again",
            again.clone(),
            reset.clone(),
        );
        table.add_after(
            state,
            "VHOST_SET_OWNER after VHOST_RESET_OWNER",
            again.clone(),
            set.clone(),
        );
        let both = vec![reset.clone(), set.clone()];
        for (what, call) in [
            (
                "VHOST_NET_SET_BACKEND -1",
                file(numbers::NET_SET_BACKEND, 0, Kind::Number(-1)),
            ),
            (
                "VHOST_NET_SET_BACKEND tap",
                file(numbers::NET_SET_BACKEND, 0, Kind::Tap(1)),
            ),
            (
                "VHOST_GET_VRING_BASE",
                words(numbers::GET_VRING_BASE, &[1, 0x5555_5555]),
            ),
            (
                "VHOST_SET_VRING_NUM",
                words(numbers::SET_VRING_NUM, &[1, 64]),
            ),
        ] {
            let what = format!("{what} of an owner again");
            table.add_after(state, what, both.clone(), call);
        }
    }
}

/// What is set without an owner, and forgotten with one.
fn forgotten(table: &mut Table) {
    let (set, reset) = (plain(numbers::SET_OWNER), plain(numbers::RESET_OWNER));
    let kthread = Call::Ioctl(nr(numbers::SET_FORK_FROM_OWNER), Arg::bytes([0]));
    let before = vec![kthread.clone(), set.clone()];
    table.add_after(
        State::Fresh,
        "VHOST_RESET_OWNER of a kthread's",
        before,
        reset.clone(),
    );
    table.add_after(
        State::Fresh,
        "VHOST_SET_OWNER for a kthread",
        vec![kthread],
        set.clone(),
    );
    let before = vec![words(numbers::SET_VRING_BUSYLOOP_TIMEOUT, &[1, 9]), reset];
    table.add_after(State::Owned, "VHOST_SET_OWNER after a window", before, set);
}

/// Eventfds that come and go.
fn eventfds(table: &mut Table) {
    for request in [
        numbers::SET_VRING_KICK,
        numbers::SET_VRING_CALL,
        numbers::SET_VRING_ERR,
    ] {
        let name = name_of(nr(request));
        let set = |kind| file(request, 1, kind);
        let (one, other, none) = (
            set(Kind::Event(1)),
            set(Kind::Event(2)),
            set(Kind::Number(-1)),
        );
        for (what, before, call) in [
            ("the same again", vec![one.clone()], one.clone()),
            ("another", vec![one.clone()], other.clone()),
            ("-1", vec![one.clone()], none.clone()),
            ("-1 again", vec![none.clone()], none.clone()),
            ("one after -1", vec![none.clone()], one.clone()),
            ("refused", vec![one.clone()], set(Kind::Null)),
            (
                "with a count",
                vec![none.clone()],
                set(Kind::EventWithCount),
            ),
            (
                "with a count, again",
                vec![set(Kind::EventWithCount)],
                set(Kind::EventWithCount),
            ),
        ] {
            for state in [State::Ready, State::Running] {
                table.add_after(
                    state,
                    format!("{name}: {what}"),
                    before.clone(),
                    call.clone(),
                );
            }
        }
    }
}

/// Backends that come and go.
fn backends(table: &mut Table) {
    let set = |kind| file(numbers::NET_SET_BACKEND, 0, kind);
    for (what, first, second) in [
        ("-1 twice", Kind::Number(-1), Kind::Number(-1)),
        ("the same tap", Kind::Tap(1), Kind::Tap(1)),
        ("another tap", Kind::Tap(1), Kind::Tap(2)),
        (
            "a tap in place of a packet socket",
            Kind::PacketRaw,
            Kind::Tap(1),
        ),
        (
            "a packet socket in place of a tap",
            Kind::Tap(1),
            Kind::PacketRaw,
        ),
        ("refused in place of a tap", Kind::Tap(1), Kind::Udp),
        (
            "a deleted tap in place of a tap",
            Kind::Tap(1),
            Kind::TapGone,
        ),
        (
            "one without interface in place of a tap",
            Kind::Tap(1),
            Kind::TunUnset,
        ),
    ] {
        for state in [State::Ready, State::Running] {
            let what = format!("VHOST_NET_SET_BACKEND: {what}");
            table.add_after(state, what, vec![set(first)], set(second));
        }
    }
}

/// Rings that were stopped, and rings that are not there.
fn stopped_rings(table: &mut Table) {
    let set = |kind| file(numbers::NET_SET_BACKEND, 1, kind);
    let stop = vec![set(Kind::Number(-1))];
    for (what, call) in [
        (
            "VHOST_SET_VRING_NUM",
            words(numbers::SET_VRING_NUM, &[1, 16]),
        ),
        (
            "VHOST_SET_VRING_BASE",
            words(numbers::SET_VRING_BASE, &[1, 10]),
        ),
        (
            "VHOST_GET_VRING_BASE",
            words(numbers::GET_VRING_BASE, &[1, 0x5555_5555]),
        ),
    ] {
        table.add_after(
            State::Running,
            format!("{what} of a stopped ring"),
            stop.clone(),
            call,
        );
    }
    // A used ring that is not there: nothing is attached then, and what was before stays.
    let addr = |used| longs(numbers::SET_VRING_ADDR, &[1, 0x20_0000, used, 0x20_0000, 0]);
    for state in [State::Ready, State::Running] {
        let before = vec![addr(0x1000)];
        table.add_after(
            state,
            "VHOST_NET_SET_BACKEND with no used ring",
            before.clone(),
            set(Kind::Tap(1)),
        );
        table.add_after(
            state,
            "VHOST_NET_SET_BACKEND -1 with no used ring",
            before,
            set(Kind::Number(-1)),
        );
    }
}

/// The device IOTLB comes and goes.
fn iotlb(table: &mut Table) {
    for state in [
        State::Ready,
        State::Running,
        State::Iotlb,
        State::IotlbRunning,
    ] {
        for (what, mut calls) in iotlb_orders() {
            if let Some(last) = calls.pop() {
                table.add_after(state, format!("IOTLB: {what}"), calls, last);
            }
        }
    }
}

fn iotlb_orders() -> Vec<(&'static str, Vec<Call>)> {
    const USUAL: u64 = 1 << 27 | 1 << 32;
    let set = |more: u64| longs(numbers::SET_FEATURES, &[USUAL | more]);
    let (on, off) = (|| set(1 << 33), || set(0));
    let page = Message {
        iova: 0x10_0000,
        size: 0x1_0000,
        uaddr: 0x20_0000,
        perm: 3,
        kind: UPDATE,
    };
    let update = || Call::Write(Arg::bytes(page.version_2()), None);
    let attach = || file(numbers::NET_SET_BACKEND, 1, Kind::Tap(1));
    let detach = file(numbers::NET_SET_BACKEND, 1, Kind::Number(-1));
    let read = || Call::Read(72, Arg::zeroes(72));
    let reset = plain(numbers::RESET_OWNER);
    vec![
        ("on", vec![on()]),
        ("on, on", vec![on(), on()]),
        ("on, off", vec![on(), off()]),
        ("off", vec![off()]),
        ("off, attach", vec![off(), attach()]),
        ("on, update", vec![on(), update()]),
        ("on, update, twice", vec![on(), update(), on(), update()]),
        ("miss, off, read", vec![attach(), off(), read()]),
        ("miss, on again, read", vec![attach(), on(), read()]),
        ("miss, -1, read", vec![attach(), detach, read()]),
        ("miss, read, read", vec![attach(), read(), read()]),
        (
            "miss, read, update, attach",
            vec![attach(), read(), update(), attach()],
        ),
        ("miss, RESET_OWNER, read", vec![attach(), reset, read()]),
    ]
}
