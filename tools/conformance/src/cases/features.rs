// SPDX-License-Identifier: GPL-2.0

//! Feature words, feature arrays, backend features.

use vhost_uapi::{numbers, Place};

use super::{nr, Table};
use crate::call::Arg;
use crate::state::State;

/// The device adds the header, and is of virtio 1: what all states have that set features.
const USUAL: u64 = 1 << 27 | 1 << 32;

/// Feature words.
pub(super) fn words() -> Table {
    let mut table = Table::new("features");
    let (get, set) = (nr(numbers::GET_FEATURES), nr(numbers::SET_FEATURES));
    for bit in 0..64 {
        table.ioctl(
            State::Fresh,
            set,
            format!("bit {bit}"),
            Arg::longs(&[1 << bit]),
        );
        let arg = Arg::longs(&[USUAL | 1 << bit]);
        table.ioctl(State::Ready, set, format!("usual and bit {bit}"), arg);
    }
    let known = [15, 24, 26, 27, 28, 29, 32, 33, 35, 40];
    for state in [State::Running, State::IotlbRunning, State::TxOnly] {
        for bit in known {
            let arg = Arg::longs(&[USUAL | 1 << bit]);
            table.ioctl(state, set, format!("usual and bit {bit}"), arg);
        }
        for (what, word) in [
            ("none", 0),
            ("header only", 1 << 27),
            ("header and MRG", 1 << 27 | 1 << 15),
            ("without header", 1 << 32),
            ("usual and one that is not offered", USUAL | 1 << 34),
            ("all ones", u64::MAX),
        ] {
            table.ioctl(state, set, what, Arg::longs(&[word]));
        }
    }
    let all = known.iter().fold(0, |word, bit| word | 1 << bit);
    table.ioctl(State::Fresh, set, "all that C has", Arg::longs(&[all]));
    for state in [State::Fresh, State::Owned, State::Running, State::Dead] {
        table.ioctl(
            state,
            get,
            "in memory",
            Arg::longs(&[0x5555_5555_5555_5555]),
        );
        for at in [Place::ReadOnly, Place::Straddle(4), Place::Cut(7)] {
            table.ioctl(state, get, format!("at {at:?}"), Arg::longs(&[0]).at(at));
        }
        table.ioctl(state, set, "at Cut(7)", Arg::longs(&[0]).at(Place::Cut(7)));
    }
    table
}

/// What an argument has where a feature word is to be written.
const DIRT: u64 = 0x5555_5555_5555_5555;

fn array(count: u64, words: &[u64]) -> Arg {
    Arg::longs(&[&[count], words].concat())
}

/// Feature arrays.
pub(super) fn arrays() -> Table {
    let mut table = Table::new("feature arrays");
    let (get, set) = (
        nr(numbers::GET_FEATURES_ARRAY),
        nr(numbers::SET_FEATURES_ARRAY),
    );
    for bit in 0..192u32 {
        let mut words = [USUAL, 0, 0];
        words[(bit / 64) as usize] |= 1 << (bit % 64); // CAST: 0 to 2.
        let what = format!("usual and bit {bit}");
        table.ioctl(State::Ready, set, what, array(3, &words));
    }
    for count in [0, 1, 2, 3, 5, 64, 100] {
        for room in [0, 1, 2, 3, 5, 64, 100] {
            let words = vec![DIRT; room];
            let what = format!("of {count} in the room of {room}");
            table.ioctl(State::Fresh, get, what, array(count, &words));
            let words = vec![0; room];
            let what = format!("of {count} words, {room} to read");
            table.ioctl(State::Ready, set, what, array(count, &words));
        }
    }
    for count in [1 << 32, u64::MAX / 8, 1 << 61, u64::MAX - 1, u64::MAX] {
        let what = format!("of {count:#x} in the room of 4");
        table.ioctl(State::Fresh, get, what, array(count, &[DIRT; 4]));
        let what = format!("of {count:#x} words, 4 to read");
        table.ioctl(State::Fresh, set, what, array(count, &[0; 4]));
    }
    for (what, words) in [
        ("third is not 0", [USUAL, 0, 1, 0]),
        ("fourth is not 0", [USUAL, 0, 0, 1 << 63]),
        ("first and third are bad", [1 << 34, 0, 1, 0]),
        ("first is bad", [1 << 34, 0, 0, 0]),
        ("second is bad", [USUAL, 1, 0, 0]),
    ] {
        for count in [1, 2, 3, 4, 5] {
            let what = format!("of {count}, {what}");
            table.ioctl(State::Ready, set, what, array(count, &words));
        }
    }
    array_places(&mut table, get, set);
    table
}

fn array_places(table: &mut Table, get: u32, set: u32) {
    for at in [
        Place::ReadOnly,
        Place::Straddle(8),
        Place::Straddle(12),
        Place::Straddle(20),
        Place::Cut(7),
        Place::Cut(15),
        Place::Cut(20),
        Place::Cut(31),
    ] {
        let what = format!("of 4 at {at:?}");
        let arg = |word| array(4, &[word; 4]).at(at);
        table.ioctl(State::Fresh, get, &what, arg(DIRT));
        if matches!(at, Place::Cut(_)) {
            table.ioctl(State::Ready, set, &what, arg(0));
        }
    }
}

/// Backend features.
pub(super) fn backend() -> Table {
    let mut table = Table::new("backend features");
    let (get, set) = (
        nr(numbers::GET_BACKEND_FEATURES),
        nr(numbers::SET_BACKEND_FEATURES),
    );
    for bit in 0..64 {
        table.ioctl(
            State::Fresh,
            set,
            format!("bit {bit}"),
            Arg::longs(&[1 << bit]),
        );
    }
    for state in [
        State::Owned,
        State::Running,
        State::Iotlb,
        State::IotlbRunning,
    ] {
        for word in [0, 2, 3, u64::MAX] {
            table.ioctl(state, set, format!("{word:#x}"), Arg::longs(&[word]));
        }
        table.ioctl(
            state,
            get,
            "in memory",
            Arg::longs(&[0x5555_5555_5555_5555]),
        );
    }
    table
}
