// SPDX-License-Identifier: GPL-2.0

//! Chains that no driver should make, and what a device should do about each.

use crate::raw_ring::{Desc, INDIRECT, NEXT, WRITE};
use crate::rig::{Rig, BUFFER, HEADER, OUTSIDE, PACKET, UNMAPPED};
use vhost_driver::Gpa;
use vhost_load::vring::{RX, TX};

/// What a device does about a chain.
#[derive(Clone, Copy, Debug)]
pub enum Expect {
    /// The ring is broken: an error is signalled, the chain stays where it is, kicks are wanted.
    Broken,
    /// The packet is dropped and counted, its head returned, the next one served. Names of the counters: for packets that
    /// go to the socket in batches, and one by one.
    Dropped(&'static str, &'static str),
    /// The packet is dropped, counted or not; its head is returned.
    DroppedUncounted,
    /// Packets from the socket that meet the chain are dropped and counted; the chain stays where it is.
    Kept(&'static str),
}

/// A chain that no driver should make.
#[derive(Clone, Copy, Debug)]
pub struct Poison {
    /// What is wrong with it.
    pub name: &'static str,
    /// What is to happen.
    pub expect: Expect,
    /// Makes it in descriptors 1 to 7 of a ring, as the chain for avail index 1.
    pub plant: fn(&Rig, u32),
}

/// First descriptor of the poisoned chain.
const HEAD: u16 = 1;
/// Buffer that holds indirect tables.
const TABLE: u16 = 14;
/// A buffer of this many bytes is of valid memory, and larger than any packet.
const HUGE: u32 = 200 << 10;

/// Makes the chain of descriptors 1, 2, ...
fn chain(rig: &Rig, index: u32, descs: &[Desc]) {
    for (position, desc) in (HEAD..).zip(descs) {
        rig.ring(index).desc(position, *desc);
    }
    rig.ring(index).avail(1, HEAD);
}

/// Makes a chain of one descriptor that refers to an indirect table of `len` bytes with these entries.
fn indirect(rig: &Rig, index: u32, len: u32, entries: &[Desc]) {
    let table = rig.buffer(index, TABLE);
    for (position, entry) in (0..).zip(entries) {
        rig.ring(index).desc_at(table, position, *entry);
    }
    chain(rig, index, &[desc(table, len, INDIRECT, 0)]);
}

fn desc(addr: Gpa, len: u32, flags: u16, next: u16) -> Desc {
    Desc {
        addr,
        len,
        flags,
        next,
    }
}

/// A descriptor as a good packet of the ring has it.
fn good(rig: &Rig, index: u32) -> Desc {
    if index == TX {
        rig.fill(HEAD, 1);
    }
    rig.whole(index, HEAD)
}

fn linked(desc: Desc, next: u16) -> Desc {
    Desc {
        flags: desc.flags | NEXT,
        next,
        ..desc
    }
}

/// A tx packet whose header has these first ten bytes.
fn with_header(rig: &Rig, header: [u8; 10]) {
    let whole = good(rig, TX);
    rig.session.memory.write(whole.addr, &header);
    chain(rig, TX, &[whole]);
}

/// Chains that are wrong in themselves, whatever the ring is for.
pub const STRUCTURE: &[Poison] = &[
    Poison {
        name: "head just past the ring",
        expect: Expect::Broken,
        plant: |rig, index| rig.ring(index).avail(1, rig.ring(index).num()),
    },
    Poison {
        name: "head far past the ring",
        expect: Expect::Broken,
        plant: |rig, index| rig.ring(index).avail(1, u16::MAX),
    },
    Poison {
        name: "next past the ring",
        expect: Expect::Broken,
        plant: |rig, index| {
            chain(
                rig,
                index,
                &[linked(good(rig, index), rig.ring(index).num())],
            )
        },
    },
    Poison {
        name: "chain that loops",
        expect: Expect::Broken,
        plant: |rig, index| {
            let good = good(rig, index);
            chain(rig, index, &[linked(good, 2), linked(good, 1)]);
        },
    },
    Poison {
        name: "chain that loops without bytes",
        expect: Expect::Broken,
        plant: |rig, index| {
            let empty = Desc {
                len: 0,
                ..good(rig, index)
            };
            chain(rig, index, &[linked(empty, 1)]);
        },
    },
    Poison {
        name: "address outside the memory table",
        expect: Expect::Broken,
        plant: |rig, index| {
            let addr = OUTSIDE;
            chain(
                rig,
                index,
                &[Desc {
                    addr,
                    ..good(rig, index)
                }],
            );
        },
    },
    Poison {
        name: "buffer that ends outside the memory table",
        expect: Expect::Broken,
        plant: |rig, index| {
            let memory = &rig.session.memory;
            let addr = memory.base() + (memory.size() - 8);
            chain(
                rig,
                index,
                &[Desc {
                    addr,
                    ..good(rig, index)
                }],
            );
        },
    },
    Poison {
        name: "address that wraps",
        expect: Expect::Broken,
        plant: |rig, index| {
            let addr = Gpa(u64::MAX - 7);
            chain(
                rig,
                index,
                &[Desc {
                    addr,
                    ..good(rig, index)
                }],
            );
        },
    },
    Poison {
        name: "length that lies",
        expect: Expect::Broken,
        plant: |rig, index| {
            let len = u32::MAX;
            chain(
                rig,
                index,
                &[Desc {
                    len,
                    ..good(rig, index)
                }],
            );
        },
    },
    Poison {
        name: "readable behind writable",
        expect: Expect::Broken,
        plant: |rig, index| {
            let good = good(rig, index);
            let first = desc(good.addr, 32, WRITE | NEXT, 2);
            chain(rig, index, &[first, desc(good.addr + 32, 44, 0, 0)]);
        },
    },
    Poison {
        name: "indirect table without bytes",
        expect: Expect::Broken,
        plant: |rig, index| indirect(rig, index, 0, &[good(rig, index)]),
    },
    Poison {
        name: "indirect table of one and a half entries",
        expect: Expect::Broken,
        plant: |rig, index| indirect(rig, index, 24, &[good(rig, index)]),
    },
    Poison {
        name: "indirect table of 4 GiB",
        expect: Expect::Broken,
        plant: |rig, index| indirect(rig, index, 0xffff_fff0, &[good(rig, index)]),
    },
    Poison {
        name: "indirect table in an indirect table",
        expect: Expect::Broken,
        plant: |rig, index| {
            let inner = desc(rig.buffer(index, TABLE), 16, INDIRECT, 0);
            indirect(rig, index, 16, &[inner]);
        },
    },
    Poison {
        name: "indirect table that goes on",
        expect: Expect::Broken,
        plant: |rig, index| {
            rig.ring(index)
                .desc_at(rig.buffer(index, TABLE), 0, good(rig, index));
            let table = desc(rig.buffer(index, TABLE), 16, INDIRECT | NEXT, 2);
            chain(rig, index, &[table, good(rig, index)]);
        },
    },
    Poison {
        name: "indirect next past the table",
        expect: Expect::Broken,
        plant: |rig, index| {
            indirect(
                rig,
                index,
                32,
                &[linked(good(rig, index), 2), linked(good(rig, index), 2)],
            )
        },
    },
    Poison {
        name: "indirect table that loops",
        expect: Expect::Broken,
        plant: |rig, index| {
            let good = good(rig, index);
            indirect(rig, index, 32, &[linked(good, 1), linked(good, 0)]);
        },
    },
    Poison {
        name: "indirect table outside the memory table",
        expect: Expect::Broken,
        plant: |rig, index| chain(rig, index, &[desc(OUTSIDE, 16, INDIRECT, 0)]),
    },
    Poison {
        name: "indirect table that is not mapped",
        expect: Expect::Broken,
        plant: |rig, index| chain(rig, index, &[desc(UNMAPPED, 16, INDIRECT, 0)]),
    },
];

/// Packets of the tx ring that can never be sent.
pub const TX_PACKETS: &[Poison] = &[
    Poison {
        name: "buffer for writing",
        expect: Expect::Dropped("drop-direction", "drop-direction"),
        plant: |rig, index| chain(rig, index, &[desc(good(rig, index).addr, PACKET, WRITE, 0)]),
    },
    Poison {
        name: "buffer for writing behind a packet",
        expect: Expect::Dropped("drop-direction", "drop-direction"),
        plant: |rig, index| {
            let good = good(rig, index);
            let second = desc(good.addr + 256, 64, WRITE, 0);
            chain(rig, index, &[linked(good, 2), second]);
        },
    },
    Poison {
        name: "no bytes",
        expect: Expect::Dropped("drop-length", "drop-length"),
        plant: |rig, index| chain(rig, index, &[desc(good(rig, index).addr, 0, 0, 0)]),
    },
    Poison {
        name: "three times no bytes",
        expect: Expect::Dropped("drop-length", "drop-length"),
        plant: |rig, index| {
            let addr = good(rig, index).addr;
            chain(
                rig,
                index,
                &[
                    desc(addr, 0, NEXT, 2),
                    desc(addr, 0, NEXT, 3),
                    desc(addr, 0, 0, 0),
                ],
            );
        },
    },
    Poison {
        name: "shorter than its header",
        expect: Expect::Dropped("drop-header", "drop-header"),
        plant: |rig, index| chain(rig, index, &[desc(good(rig, index).addr, HEADER - 1, 0, 0)]),
    },
    Poison {
        name: "header alone",
        expect: Expect::DroppedUncounted,
        plant: |rig, index| chain(rig, index, &[desc(good(rig, index).addr, HEADER, 0, 0)]),
    },
    Poison {
        name: "shorter than an Ethernet header",
        expect: Expect::DroppedUncounted,
        plant: |rig, index| {
            chain(
                rig,
                index,
                &[desc(good(rig, index).addr, HEADER + 13, 0, 0)],
            )
        },
    },
    Poison {
        name: "checksum just past the end",
        expect: Expect::DroppedUncounted,
        plant: |rig, _| with_header(rig, [1, 0, 0, 0, 0, 0, 63, 0, 0, 0]),
    },
    Poison {
        name: "checksum past the end",
        expect: Expect::Dropped("drop-header", "drop-refused"),
        plant: |rig, _| with_header(rig, [1, 0, 0, 0, 0, 0, 64, 0, 64, 0]),
    },
    Poison {
        name: "checksum far past the end",
        expect: Expect::Dropped("drop-header", "drop-refused"),
        plant: |rig, _| with_header(rig, [1, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]),
    },
    Poison {
        name: "buffer that is not mapped",
        expect: Expect::Dropped("drop-memory", "drop-refused"),
        plant: |rig, index| chain(rig, index, &[desc(UNMAPPED, PACKET, 0, 0)]),
    },
    Poison {
        name: "frame that is not mapped",
        expect: Expect::Dropped("drop-memory", "drop-refused"),
        plant: |rig, index| {
            let header = desc(good(rig, index).addr, HEADER, NEXT, 2);
            chain(rig, index, &[header, desc(UNMAPPED, PACKET - HEADER, 0, 0)]);
        },
    },
    Poison {
        name: "larger than any packet",
        expect: Expect::Dropped("drop-oversize", "drop-oversize"),
        plant: |rig, index| chain(rig, index, &[desc(good(rig, index).addr, HUGE, 0, 0)]),
    },
];

/// Buffers of the rx ring that no packet can be put into.
pub const RX_BUFFERS: &[Poison] = &[
    Poison {
        name: "buffer for reading",
        expect: Expect::Broken,
        plant: |rig, _| chain(rig, RX, &[desc(rig.buffer(RX, HEAD), 2048, 0, 0)]),
    },
    Poison {
        name: "buffer for reading in front",
        expect: Expect::Broken,
        plant: |rig, _| {
            let first = desc(rig.buffer(RX, HEAD), HEADER, NEXT, 2);
            chain(rig, RX, &[first, desc(first.addr + 64, 1024, WRITE, 0)]);
        },
    },
    Poison {
        name: "no bytes",
        expect: Expect::Broken,
        plant: |rig, _| chain(rig, RX, &[desc(rig.buffer(RX, HEAD), 0, WRITE, 0)]),
    },
    Poison {
        name: "shorter than the packet",
        expect: Expect::Kept("drop-oversize"),
        plant: |rig, _| chain(rig, RX, &[desc(rig.buffer(RX, HEAD), PACKET - 1, WRITE, 0)]),
    },
    Poison {
        name: "shorter than the header",
        expect: Expect::Kept("drop-oversize"),
        plant: |rig, _| chain(rig, RX, &[desc(rig.buffer(RX, HEAD), 1, WRITE, 0)]),
    },
    Poison {
        name: "buffer that is not mapped",
        expect: Expect::Kept("drop-truncated"),
        plant: |rig, _| chain(rig, RX, &[desc(UNMAPPED, 2048, WRITE, 0)]),
    },
    Poison {
        name: "header that is mapped in part",
        expect: Expect::Kept("drop-truncated"),
        plant: |rig, _| {
            let first = desc(rig.buffer(RX, HEAD), 4, WRITE | NEXT, 2);
            chain(rig, RX, &[first, desc(UNMAPPED, 2048, WRITE, 0)]);
        },
    },
    Poison {
        // tun_put_user() does not look at what skb_copy_datagram_iter() returns.
        name: "frame that is mapped in part",
        expect: Expect::Kept("drop-truncated"),
        plant: |rig, _| {
            let first = desc(rig.buffer(RX, HEAD), 32, WRITE | NEXT, 2);
            chain(rig, RX, &[first, desc(UNMAPPED, 2048, WRITE, 0)]);
        },
    },
];

const _: () = assert!((HUGE as u64) < 128 * BUFFER);
