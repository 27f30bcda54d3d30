// SPDX-License-Identifier: GPL-2.0

//! Calls that concern memory, rings, eventfds and backends.

use std::fs::File;
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd};

use anyhow::Result;
use vhost_driver::{Gpa, GuestMemory, RingLayout};
use vhost_uapi::{
    features, numbers, EventFd, MemoryRegion, Offload, RawArg, Tap, TapOptions, TunFlags, VhostNet,
    VringAddr,
};

use crate::rig::region;
use crate::script::Script;

/// A region at an address in the kernel's half.
const KERNEL: u64 = 0xffff_8880_0000_0000;

/// Memory tables.
pub(super) fn mem_table(script: &mut Script) -> Result<()> {
    let vhost = script.owned()?;
    tables(script, &vhost, "without a backend")
}

fn tables(script: &mut Script, vhost: &VhostNet, when: &str) -> Result<()> {
    let at = |guest_phys_addr, memory_size, userspace_addr| MemoryRegion {
        guest_phys_addr,
        memory_size,
        userspace_addr,
    };
    let here = 0x10_0000;
    let many = |count| vec![at(0, 0x1000, here); count];
    let cases: Vec<(&str, Vec<MemoryRegion>)> = vec![
        ("no region", vec![]),
        ("64 regions", many(64)),
        ("65 regions", many(65)),
        (
            "overlap",
            vec![at(0, 0x2000, here), at(0x1000, 0x2000, here)],
        ),
        ("odd addresses", vec![at(0x123, 0x457, 0x789a)]),
        ("no bytes at 0", vec![at(0, 0, here)]),
        ("no bytes elsewhere", vec![at(0x1000, 0, here)]),
        ("last byte", vec![at(u64::MAX, 1, here)]),
        ("wraps by one", vec![at(u64::MAX, 2, here)]),
        ("wraps", vec![at(0x1000, u64::MAX, here)]),
        ("all but one byte", vec![at(0, u64::MAX, 0)]),
        ("kernel's half", vec![at(0, 0x1000, KERNEL)]),
        (
            "second is bad",
            vec![at(0, 0x1000, here), at(0x1000, 0, here)],
        ),
    ];
    for (what, table) in cases {
        script.note(
            format!("{when}: table: {what}"),
            vhost.set_mem_table(&table),
        );
    }
    for (what, words, bytes) in [
        ("padding", [0, 1], 8),
        ("padding and too many", [65, 1], 8),
        ("too many, not readable", [65, 0], 8),
        ("one region, not readable", [1, 0], 8),
        ("one region, readable in part", [1, 0], 39),
        ("header readable in part", [0, 0], 7),
    ] {
        let mut arg = vec![0; bytes.max(8)];
        for (place, word) in arg.chunks_mut(4).zip(words) {
            place.copy_from_slice(&u32::to_ne_bytes(word));
        }
        arg.truncate(bytes);
        let outcome = vhost.raw_ioctl(numbers::SET_MEM_TABLE, RawArg::Bytes(&mut arg));
        script.note(format!("{when}: table: {what}"), outcome);
    }
    Ok(())
}

/// Sizes and bases.
pub(super) fn ring_numbers(script: &mut Script) -> Result<()> {
    let vhost = script.owned()?;
    for num in [
        0,
        1,
        2,
        3,
        255,
        256,
        1024,
        32768,
        65535,
        65536,
        0x10000 + 8,
        u32::MAX,
    ] {
        script.note(format!("num {num}"), vhost.set_vring_num(0, num));
    }
    for base in [0, 1, 0x7fff, 0x8000, 0xffff, 0x10000, 0x8000_8000, u32::MAX] {
        script.note(format!("base {base}"), vhost.set_vring_base(1, base));
        script.note(format!("base {base} back"), vhost.vring_base(1));
    }
    Ok(())
}

fn address(desc: u64, avail: u64, used: u64) -> VringAddr {
    VringAddr {
        flags: 0,
        desc,
        used,
        avail,
        log: 0,
    }
}

/// Where the parts of a ring may be.
pub(super) fn ring_addresses(script: &mut Script) -> Result<()> {
    let vhost = script.owned()?;
    addresses(script, &vhost, "without a backend");
    Ok(())
}

fn addresses(script: &mut Script, vhost: &VhostNet, when: &str) {
    let good = 0x10_0000;
    for offset in 0..5 {
        let [desc, avail, used] = [
            address(good + offset, good, good),
            address(good, good + offset, good),
            address(good, good, good + offset),
        ];
        script.note(
            format!("{when}: desc + {offset}"),
            vhost.set_vring_addr(0, &desc),
        );
        script.note(
            format!("{when}: avail + {offset}"),
            vhost.set_vring_addr(0, &avail),
        );
        script.note(
            format!("{when}: used + {offset}"),
            vhost.set_vring_addr(0, &used),
        );
        let log = VringAddr {
            log: offset,
            ..address(good, good, good)
        };
        script.note(
            format!("{when}: log {offset}"),
            vhost.set_vring_addr(0, &log),
        );
    }
    for flags in [1, 2, 3, u32::MAX] {
        let addr = VringAddr {
            flags,
            ..address(good, good + 1, good)
        };
        script.note(
            format!("{when}: flags {flags}, avail + 1"),
            vhost.set_vring_addr(0, &addr),
        );
    }
    for (what, addr) in [
        ("desc", address(KERNEL, good, good)),
        ("avail", address(good, KERNEL, good)),
        ("used", address(good, good, KERNEL)),
        ("desc at the end of all", address(u64::MAX - 15, good, good)),
        ("all null", address(0, 0, 0)),
    ] {
        script.note(
            format!("{when}: {what} in the kernel's half"),
            vhost.set_vring_addr(0, &addr),
        );
    }
    script.note(
        format!("{when}: ring 2"),
        vhost.set_vring_addr(2, &address(1, 1, 1)),
    );
}

/// Kick, call and error eventfds.
pub(super) fn eventfds(script: &mut Script) -> Result<()> {
    let vhost = script.owned()?;
    let (one, other) = (EventFd::new()?, EventFd::new()?);
    let null = File::open("/dev/null")?;
    for request in [
        numbers::SET_VRING_KICK,
        numbers::SET_VRING_CALL,
        numbers::SET_VRING_ERR,
    ] {
        let name = numbers::name(request);
        // CAST: The bits of an int.
        let fd = |fd: &dyn AsFd| fd.as_fd().as_raw_fd() as u32;
        let minus = |number: u32| 0u32.wrapping_sub(number);
        for (what, fd) in [
            ("-1 at first", minus(1)),
            ("an eventfd", fd(&one)),
            ("the same", fd(&one)),
            ("another", fd(&other)),
            ("-2", minus(2)),
            ("not open", 9999),
            ("/dev/null", fd(&null)),
            ("the device", fd(&vhost.as_fd())),
            ("the first again", fd(&one)),
            ("-1", minus(1)),
            ("-1 again", minus(1)),
        ] {
            let mut bytes: Vec<u8> = [1, fd]
                .iter()
                .flat_map(|word: &u32| word.to_ne_bytes())
                .collect();
            let outcome = vhost.raw_ioctl(request, RawArg::Bytes(&mut bytes));
            script.note(format!("{name}: {what}"), outcome);
        }
    }
    // The device only watches: the count stays.
    for _ in 0..5 {
        one.signal()?;
    }
    script.note(
        "kick with a count",
        vhost.set_vring_kick(0, Some(one.as_fd())),
    );
    script.note(
        "kick with a count, the same again",
        vhost.set_vring_kick(0, Some(one.as_fd())),
    );
    script.note("count afterwards", one.take());
    Ok(())
}

/// A device with memory, and where its rings would be.
fn prepared(script: &Script) -> Result<(VhostNet, GuestMemory, RingLayout)> {
    let vhost = script.owned()?;
    let memory = GuestMemory::new(&[64 << 10], Some(Gpa(0x10_0000)))?;
    let table: Vec<MemoryRegion> = memory.regions().iter().map(region).collect();
    vhost.set_features(1 << features::VERSION_1)?;
    vhost.set_mem_table(&table)?;
    let ring = RingLayout::new(16, memory.base())?;
    Ok((vhost, memory, ring))
}

fn ring_of(memory: &GuestMemory, ring: &RingLayout) -> VringAddr {
    let uva = |gpa| memory.uva(gpa, 1).unwrap_or_default();
    address(uva(ring.desc), uva(ring.avail), uva(ring.used))
}

/// Attaching and detaching.
pub(super) fn backends(script: &mut Script) -> Result<()> {
    let (vhost, memory, ring) = prepared(script)?;
    let (first, second) = (tap(i32::MAX)?, tap(1 << 20)?);
    script.note("-1 before rings", vhost.set_backend(0, None));
    script.note(
        "tap before rings",
        vhost.set_backend(0, Some(first.as_fd())),
    );
    vhost.set_vring_num(0, 16)?;
    vhost.set_vring_addr(0, &ring_of(&memory, &ring))?;

    let (udp, null, event) = (
        UdpSocket::bind("127.0.0.1:0")?,
        File::open("/dev/null")?,
        EventFd::new()?,
    );
    let unnamed = File::options()
        .read(true)
        .write(true)
        .open("/dev/net/tun")?;
    for (what, fd) in [
        ("a UDP socket", udp.as_fd()),
        ("/dev/null", null.as_fd()),
        ("an eventfd", event.as_fd()),
        ("the device", vhost.as_fd()),
        ("a tap without an interface", unnamed.as_fd()),
        ("a tap", first.as_fd()),
        ("the same tap", first.as_fd()),
        (
            "the same tap by another fd",
            first.as_fd().try_clone_to_owned()?.as_fd(),
        ),
        ("another tap", second.as_fd()),
        ("a UDP socket in its place", udp.as_fd()),
    ] {
        script.note(what, vhost.set_backend(0, Some(fd)));
    }
    for (what, words) in [
        ("fd -2", [0, u32::MAX - 1]),
        ("not open", [0, 9999]),
        ("ring 2", [2, u32::MAX]),
        ("ring 2, bad fd", [2, 9999]),
    ] {
        script.words(what, &vhost, numbers::NET_SET_BACKEND, &words);
    }
    script.note("-1", vhost.set_backend(0, None));
    script.note("-1 again", vhost.set_backend(0, None));
    script.note(
        "the other ring, no addresses",
        vhost.set_backend(1, Some(first.as_fd())),
    );
    script.note("the other ring, -1", vhost.set_backend(1, None));
    Ok(())
}

/// A tap that goes with [`prepared`].
pub(super) fn tap(sndbuf: i32) -> vhost_uapi::Result<Tap> {
    let options = TapOptions {
        flags: TunFlags::default(),
        vnet_hdr_size: Some(12),
        sndbuf,
        offload: Offload::None,
    };
    Tap::create("", &options)
}

/// Attaching to rings at addresses that cannot be used.
pub(super) fn bad_rings(script: &mut Script) -> Result<()> {
    let (vhost, memory, ring) = prepared(script)?;
    let tap = tap(i32::MAX)?;
    vhost.set_vring_num(0, 16)?;
    let good = ring_of(&memory, &ring);
    for (place_name, addr) in [("not mapped", 0x1000), ("in the kernel's half", KERNEL)] {
        let places = [
            ("desc", address(addr, good.avail, good.used)),
            ("avail", address(good.desc, addr, good.used)),
            ("used", address(good.desc, good.avail, addr)),
        ];
        for (part, place) in places {
            vhost.set_vring_addr(0, &place)?;
            let attached = vhost.set_backend(0, Some(tap.as_fd()));
            script.note(format!("tap, {part} {place_name}"), attached);
            script.note(
                format!("-1, {part} {place_name}"),
                vhost.set_backend(0, None),
            );
        }
    }
    Ok(())
}

/// Calls while a backend is attached.
pub(super) fn running(script: &mut Script) -> Result<()> {
    let (vhost, memory, ring) = prepared(script)?;
    let tap = tap(i32::MAX)?;
    vhost.set_vring_num(0, 16)?;
    vhost.set_vring_addr(0, &ring_of(&memory, &ring))?;
    script.note("attach", vhost.set_backend(0, Some(tap.as_fd())));
    for request in [
        numbers::SET_VRING_NUM,
        numbers::SET_VRING_BASE,
        numbers::GET_VRING_BASE,
        numbers::SET_VRING_BUSYLOOP_TIMEOUT,
        numbers::SET_VRING_CALL,
        numbers::SET_VRING_ENDIAN,
    ] {
        let name = numbers::name(request);
        for index in [0, 1, 2] {
            script.words("running", &vhost, request, &[index, 16]);
        }
        // Busy comes before a bad pointer.
        for index in [0u32, 1] {
            let mut bytes = index.to_ne_bytes();
            let outcome = vhost.raw_ioctl(request, RawArg::Bytes(&mut bytes));
            script.note(
                format!("running: {name} of ring {index}, pointer bad"),
                outcome,
            );
        }
    }
    addresses(script, &vhost, "running");
    tables(script, &vhost, "running")?;
    script.note(
        "running: features",
        vhost.set_features(1 << features::EVENT_IDX),
    );
    script.note("running: SET_OWNER", vhost.set_owner());
    script.note("running: detach", vhost.set_backend(0, None));
    script.note("num afterwards", vhost.set_vring_num(0, 16));
    Ok(())
}
