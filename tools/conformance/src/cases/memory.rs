// SPDX-License-Identifier: GPL-2.0

//! Memory tables and dirty logs.

use vhost_uapi::{numbers, Place};

use super::{nr, Table};
use crate::call::{Arg, Call};
use crate::limit::{end_of_user_memory, KERNEL};
use crate::objects::{Kind, KINDS};
use crate::state::State;

/// A region: where for the driver, bytes, where for the owner, and what should be 0.
type Region = [u64; 4];

const HERE: u64 = 0x20_0000;

fn table_of(count: u32, padding: u32, regions: &[Region]) -> Arg {
    let mut longs = vec![u64::from(padding) << 32 | u64::from(count)];
    longs.extend(regions.iter().flatten());
    Arg::longs(&longs)
}

/// Single regions.
fn regions() -> Vec<(String, Region)> {
    let end = end_of_user_memory();
    let mut regions: Vec<(String, Region)> = [
        ("a page", [0, 0x1000, HERE, 0]),
        ("a page with padding that is not 0", [0, 0x1000, HERE, 7]),
        ("odd", [0x123, 0x457, 0x789a, 0]),
        ("nothing at 0", [0, 0, HERE, 0]),
        ("nothing elsewhere", [0x1000, 0, HERE, 0]),
        ("one byte at 0", [0, 1, HERE, 0]),
        ("the last byte", [u64::MAX, 1, HERE, 0]),
        ("wraps by one", [u64::MAX, 2, HERE, 0]),
        ("wraps", [0x1000, u64::MAX, HERE, 0]),
        ("all but one byte", [0, u64::MAX, 0, 0]),
        ("all but one byte elsewhere", [1, u64::MAX, 0, 0]),
        ("nothing at the end", [u64::MAX, 0, HERE, 0]),
        ("kernel's half", [0, 0x1000, KERNEL, 0]),
        ("at the very end", [0, 0x1000, u64::MAX - 0xfff, 0]),
        ("over the very end", [0, 0x1001, u64::MAX - 0xfff, 0]),
        ("one byte in the kernel's half", [0, 1, KERNEL, 0]),
        ("nothing in the kernel's half", [0, 0, KERNEL, 0]),
        ("a page at 0", [0, 0x1000, 0, 0]),
    ]
    .into_iter()
    .map(|(name, region)| (name.to_owned(), region))
    .collect();
    for over in [-1i64, 0, 1, 2, 4096] {
        let at = (end - 0x1000).wrapping_add_signed(over);
        let name = format!("ends at the end of user memory {over:+}");
        regions.push((name, [0, 0x1000, at, 0]));
        let name = format!("as large as user memory {over:+}");
        regions.push((name, [0, end.wrapping_add_signed(over), 0, 0]));
    }
    regions
}

/// Tables of several regions.
fn several() -> Vec<(&'static str, Arg)> {
    let page = |at: u64| [at * 0x1000, 0x1000, HERE, 0];
    let pages = |count: u64| (0..count).map(page).collect::<Vec<_>>();
    let good = page(0);
    vec![
        ("no region", table_of(0, 0, &[])),
        ("two regions", table_of(2, 0, &pages(2))),
        ("64 regions", table_of(64, 0, &pages(64))),
        ("the same 64 times", table_of(64, 0, &[good; 64])),
        ("65 regions", table_of(65, 0, &pages(65))),
        (
            "overlap",
            table_of(2, 0, &[[0, 0x2000, HERE, 0], [0x1000, 0x2000, HERE, 0]]),
        ),
        (
            "overlap the other way",
            table_of(2, 0, &[[0x1000, 0x2000, HERE, 0], [0, 0x2000, HERE, 0]]),
        ),
        (
            "second is bad",
            table_of(2, 0, &[good, [0x1000, 0, HERE, 0]]),
        ),
        (
            "second in the kernel's half",
            table_of(2, 0, &[good, [0x1000, 0x1000, KERNEL, 0]]),
        ),
        ("65 regions, nothing to read", table_of(65, 0, &[])),
        ("2^32-1 regions", table_of(u32::MAX, 0, &[])),
        ("padding 1", table_of(1, 1, &[good])),
        ("padding 2^32-1", table_of(1, u32::MAX, &[good])),
        ("padding, and 65 regions", table_of(65, 1, &[])),
        ("one region, nothing to read", table_of(1, 0, &[])),
        (
            "one region, 31 bytes to read",
            table_of(1, 0, &[good]).at(Place::Cut(39)),
        ),
        ("two regions, one to read", table_of(2, 0, &[good])),
        ("64 regions, one to read", table_of(64, 0, &[good])),
        ("half of the header", table_of(0, 0, &[]).at(Place::Cut(4))),
        (
            "7 bytes of the header",
            table_of(0, 0, &[]).at(Place::Cut(7)),
        ),
        (
            "where it can only be read",
            table_of(1, 0, &[good]).at(Place::ReadOnly),
        ),
    ]
}

/// Memory tables.
pub(super) fn tables() -> Table {
    let mut table = Table::new("memory tables");
    let request = nr(numbers::SET_MEM_TABLE);
    for state in [State::Owned, State::Ready, State::Running, State::TxOnly] {
        for (what, region) in regions() {
            table.ioctl(state, request, what, table_of(1, 0, &[region]));
        }
        for (what, arg) in several() {
            table.ioctl(state, request, what, arg);
        }
    }
    for (what, region) in regions() {
        table.ioctl(State::Logging, request, what, table_of(1, 0, &[region]));
    }
    table
}

/// Where writes are logged, and how that is told.
pub(super) fn logs() -> Table {
    let mut table = Table::new("dirty log");
    let (base, file) = (nr(numbers::SET_LOG_BASE), nr(numbers::SET_LOG_FD));
    let end = end_of_user_memory();
    for state in [
        State::Fresh,
        State::Owned,
        State::Ready,
        State::Running,
        State::Logging,
    ] {
        for (what, at) in [
            ("at 0", 0),
            ("at 3", 3),
            ("in the kernel's half", KERNEL),
            ("at the very end", u64::MAX),
            // The memory begins at 1 MiB: byte 32 of the bitmap is the first.
            ("at the end of user memory - 34", end - 34),
            ("at the end of user memory - 33", end - 33),
            ("at the end of user memory - 32", end - 32),
            ("at the end of user memory", end),
        ] {
            table.ioctl(state, base, format!("of a log {what}"), Arg::longs(&[at]));
        }
        table.ioctl(
            state,
            base,
            "cut off after 7 bytes",
            Arg::longs(&[0]).at(Place::Cut(7)),
        );
        for (what, kind) in KINDS {
            let simple = [
                Kind::Number(-1),
                Kind::Number(9999),
                Kind::Event(0),
                Kind::Null,
            ];
            if state == State::Ready || simple.contains(kind) {
                let arg = Arg::words(&[0]).with_file(0, *kind);
                table.ioctl(state, file, what, arg);
            }
        }
        table.ioctl(
            state,
            file,
            "cut off after 3 bytes",
            Arg::words(&[0]).at(Place::Cut(3)),
        );
    }
    logs_after_calls(&mut table);
    table
}

/// Logs of devices that have come further.
fn logs_after_calls(table: &mut Table) {
    let base = nr(numbers::SET_LOG_BASE);
    // The vring that may have it is as before if the other one may not.
    let detach = Call::Ioctl(nr(numbers::NET_SET_BACKEND), Arg::words(&[0, u32::MAX]));
    table.add_after(
        State::Logging,
        "rx detached, a log in the kernel's half",
        vec![detach],
        Call::Ioctl(base, Arg::longs(&[KERNEL])),
    );
    let log_all = |more: u64| Call::Ioctl(nr(numbers::SET_FEATURES), Arg::longs(&[more | 1 << 26]));
    for state in [State::Ready, State::Running] {
        for (what, at) in [("at 0", 0), ("in the kernel's half", KERNEL)] {
            let before = vec![Call::Ioctl(base, Arg::longs(&[at]))];
            let what = format!("LOG_ALL with a log {what}");
            table.add_after(state, what, before, log_all(1 << 27 | 1 << 32));
        }
    }
}
