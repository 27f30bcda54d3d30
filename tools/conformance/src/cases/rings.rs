// SPDX-License-Identifier: GPL-2.0

//! Sizes, bases, addresses, windows and byte order of rings.

use vhost_uapi::{numbers, Address};

use super::{nr, Table};
use crate::call::{Arg, Call};
use crate::limit::{end_of_user_memory, KERNEL};
use crate::state::State;

/// Sizes of a ring.
pub(super) fn sizes() -> Table {
    let mut table = Table::new("ring sizes");
    let request = nr(numbers::SET_VRING_NUM);
    let sizes = [
        0,
        1,
        2,
        3,
        4,
        8,
        15,
        16,
        17,
        255,
        256,
        1024,
        4096,
        16384,
        32767,
        32768,
        32769,
        65535,
        65536,
        65537,
        0x1_0008,
        0x8000_0000,
        u32::MAX,
    ];
    for state in [State::Owned, State::Ready, State::TxOnly, State::Stopped] {
        for index in [0, 1] {
            for size in sizes {
                let what = format!("ring {index} to {size}");
                table.ioctl(state, request, what, Arg::words(&[index, size]));
            }
        }
    }
    for (index, size) in [(0, 16), (1, 16), (1, 0), (2, 16), (u32::MAX, 16)] {
        let what = format!("ring {} to {size}", index as i32); // CAST: For reading.
        table.ioctl(State::Running, request, what, Arg::words(&[index, size]));
    }
    table
}

/// Where a ring goes on.
pub(super) fn bases() -> Table {
    let mut table = Table::new("ring bases");
    let (set, get) = (nr(numbers::SET_VRING_BASE), nr(numbers::GET_VRING_BASE));
    let bases = [
        0,
        1,
        10,
        0x7fff,
        0x8000,
        0xffff,
        0x1_0000,
        0x8000_8000,
        u32::MAX,
    ];
    for state in [State::Owned, State::Ready, State::TxOnly, State::Stopped] {
        for index in [0, 1] {
            for base in bases {
                let what = format!("ring {index} to {base:#x}");
                table.ioctl(state, set, what, Arg::words(&[index, base]));
            }
        }
    }
    for state in [
        State::Owned,
        State::Ready,
        State::Running,
        State::Stopped,
        State::Reowned,
    ] {
        for index in [0, 1, 2, 0x8000_0000, u32::MAX] {
            let what = format!("ring {}", index as i32); // CAST: For reading.
            table.ioctl(state, get, what, Arg::words(&[index, 0xdddd_dddd]));
        }
    }
    table
}

/// desc, used, avail, log.
type Places = [u64; 4];

fn vring_addr(index: u32, flags: u32, [desc, used, avail, log]: Places) -> Arg {
    let first = u64::from(flags) << 32 | u64::from(index);
    Arg::longs(&[first, desc, used, avail, log])
}

/// Places that are refused for themselves, and some that are not.
fn odd_places() -> Vec<(String, u32, Places)> {
    const HERE: u64 = 0x20_0000;
    let mut places = vec![
        ("everything at 0".to_owned(), 0, [0; 4]),
        ("everything in the kernel's half".to_owned(), 0, [KERNEL; 4]),
        (
            "everything at the end of all".to_owned(),
            0,
            [u64::MAX & !3; 4],
        ),
    ];
    for (field, name) in ["desc", "used", "avail", "log"].into_iter().enumerate() {
        for offset in 1..5 {
            let mut at = [HERE; 4];
            at[field] += offset;
            places.push((format!("{name} + {offset}"), 0, at));
        }
        for (what, address) in [("at 0", 0), ("in the kernel's half", KERNEL)] {
            let mut at = [HERE; 4];
            at[field] = address;
            places.push((format!("{name} {what}"), 0, at));
        }
    }
    for flags in [1, 2, 3, 0x8000_0000, u32::MAX] {
        let odd = [HERE, HERE, HERE + 1, HERE];
        places.push((format!("flags {flags:#x}"), flags, [HERE; 4]));
        places.push((format!("flags {flags:#x}, avail + 1"), flags, odd));
    }
    places
}

/// Sizes of the parts of a ring of 16 entries, without event indices.
const PARTS: [(&str, usize, u64); 3] = [("desc", 0, 256), ("used", 1, 132), ("avail", 2, 36)];

/// Where a ring lies.
pub(super) fn addresses() -> Table {
    let mut table = Table::new("ring addresses");
    let request = nr(numbers::SET_VRING_ADDR);
    for state in [State::Ready, State::EventIdx, State::Running, State::Iotlb] {
        for (what, flags, at) in odd_places() {
            table.ioctl(
                state,
                request,
                format!("ring 1: {what}"),
                vring_addr(1, flags, at),
            );
        }
        for (name, field, size) in PARTS {
            for over in [0i64, -4, 1, 4] {
                let mut at = [0x20_0000; 4];
                // The used part must be aligned: its odd places are refused for that.
                at[field] = (end_of_user_memory() - size).wrapping_add_signed(over);
                let what = format!("ring 1: {name} ends at the end of user memory {over:+}");
                table.ioctl(state, request, what, vring_addr(1, 0, at));
            }
        }
    }
    for state in [State::Owned, State::Running] {
        for index in [0, 2, u32::MAX] {
            let what = format!("ring {}: everything at 0", index as i32); // CAST: For reading.
            table.ioctl(state, request, what, vring_addr(index, 0, [0; 4]));
        }
    }
    table
}

/// Busy-poll windows.
pub(super) fn windows() -> Table {
    let mut table = Table::new("windows");
    let set = nr(numbers::SET_VRING_BUSYLOOP_TIMEOUT);
    let get = nr(numbers::GET_VRING_BUSYLOOP_TIMEOUT);
    // In the running state nothing longer: the worker would poll on.
    for (state, windows) in [
        (
            State::Owned,
            &[0, 1, 50, 0x7fff_ffff, 0x8000_0000, u32::MAX][..],
        ),
        (State::Running, &[0, 1][..]),
    ] {
        for index in [0, 1] {
            for window in windows {
                let what = format!("ring {index} to {window}");
                table.ioctl(state, set, what, Arg::words(&[index, *window]));
                let before = vec![Call::Ioctl(set, Arg::words(&[index, *window]))];
                let name = format!("VHOST_GET_VRING_BUSYLOOP_TIMEOUT ring {index} of {window}");
                let call = Call::Ioctl(get, Arg::words(&[index, 0xdddd_dddd]));
                table.add_after(state, name, before, call);
            }
        }
    }
    table
}

/// Byte order of a ring.
pub(super) fn endian() -> Table {
    let mut table = Table::new("byte order");
    for state in [State::Owned, State::Running] {
        for index in [0, 1, 2] {
            for order in [0, 1, 2, u32::MAX] {
                let what = format!("ring {index} to {}", order as i32); // CAST: For reading.
                let arg = Arg::words(&[index, order]);
                table.ioctl(state, nr(numbers::SET_VRING_ENDIAN), what, arg);
            }
            let arg = Arg::words(&[index, 0xdddd_dddd]);
            table.ioctl(
                state,
                nr(numbers::GET_VRING_ENDIAN),
                format!("ring {index}"),
                arg,
            );
        }
        let arg = Arg::Wild(Address::Small(64));
        table.ioctl(state, nr(numbers::SET_VRING_ENDIAN), "at 64", arg);
    }
    table
}
