// SPDX-License-Identifier: GPL-2.0

//! Messages of the device IOTLB, and what turns it on and off.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, Result};
use vhost_driver::{Gpa, GuestMemory};
use vhost_uapi::iotlb::{Kind, Message, What, MSG_SIZE, READ, WRITE};
use vhost_uapi::{features, wait_readable, EventFd, MemoryRegion, VhostNet, VringAddr};

use super::vrings::tap;
use crate::script::Script;

const PLATFORM: u64 = 1 << features::ACCESS_PLATFORM;
/// Where no user memory may be.
const KERNEL: u64 = 0xffff_8880_0000_0000;

fn message(what: What, iova: u64, size: u64, uva: u64, access: u8) -> Message {
    Message {
        kind: Kind::V2,
        what,
        iova,
        size,
        uva,
        access,
    }
}

/// Messages good and bad, without and with an IOTLB.
pub(super) fn messages(script: &mut Script) -> Result<()> {
    let vhost = script.open()?;
    for on in [false, true] {
        vhost.set_features(if on { PLATFORM } else { 0 })?;
        let when = if on { "with" } else { "without" };
        lengths_and_kinds(script, &vhost, when);
        updates(script, &vhost, when);
        let ready = wait_readable(&[vhost.as_fd()], Duration::ZERO);
        script.note(format!("poll {when} an IOTLB"), ready);
        for len in [0, 1, MSG_SIZE - 1] {
            let read = vhost.read_bytes(&mut vec![0; len]);
            script.note(format!("read of {len} bytes {when} an IOTLB"), read);
        }
    }
    vhost.set_features(0)?;
    let read = vhost.read_bytes(&mut [0; MSG_SIZE]);
    script.note("read after the IOTLB", read);
    Ok(())
}

fn lengths_and_kinds(script: &mut Script, vhost: &VhostNet, when: &str) {
    let good = message(What::Update, 0x1000, 0x1000, 0x10_0000, READ).bytes();
    for len in [0, 1, 3, 4, 8, 33, 34, 39, 40, 41, 71, 72] {
        let wrote = vhost.write_bytes(&good[..len]);
        script.note(format!("{len} bytes {when} an IOTLB"), wrote);
    }
    for kind in [0, 1, 2, 3, 255] {
        let mut bytes = good;
        bytes[0] = kind;
        // The hole, or an address space that is not asked for.
        bytes[4] = 7;
        let wrote = vhost.write_bytes(&bytes);
        script.note(format!("kind {kind} {when} an IOTLB"), wrote);
    }
    for what in 0..8 {
        let mut bytes = good;
        bytes[33] = what;
        let wrote = vhost.write_bytes(&bytes);
        script.note(format!("message {what} {when} an IOTLB"), wrote);
    }
}

fn updates(script: &mut Script, vhost: &VhostNet, when: &str) {
    let page = 0x1000;
    for (iova, size, uva, access) in [
        (0, page, 0x10_0000, READ),
        (0, 0, 0x10_0000, READ),
        (0, 0, 0, 0),
        (1, 1, 1, WRITE),
        (u64::MAX, 1, 0x10_0000, READ),
        (u64::MAX, 2, 0x10_0000, READ),
        (1, u64::MAX, 0x10_0000, 0),
        (0, u64::MAX, 0, 0),
        (0, u64::MAX, 1, 0),
        (0, u64::MAX, 2, 0),
        (0, u64::MAX, 0, READ),
        (page, page, KERNEL, READ),
        (page, page, KERNEL, WRITE),
        (page, page, KERNEL, 0),
        (page, page, KERNEL, 0xf0),
        (page, page, u64::MAX - 10, 0),
        (page, page, u64::MAX - 0xffe, 0),
        (page, page, 0x10_0000, 0xff),
        (KERNEL, page, 0x10_0000, READ | WRITE),
    ] {
        for what in [What::Update, What::Invalidate] {
            let sent = vhost.send_message(&message(what, iova, size, uva, access));
            let text = format!("{what:?} {iova:x} {size:x} {uva:x} {access} {when} an IOTLB");
            script.note(text, sent);
        }
    }
}

/// Addresses of a ring that is logged.
fn addr(desc: u64, avail: u64, used: u64) -> VringAddr {
    VringAddr {
        flags: 1,
        desc,
        used,
        avail,
        log: 0x1_0000,
    }
}

/// What becomes of rings when the meaning of their addresses changes.
pub(super) fn platform(script: &mut Script) -> Result<()> {
    let vhost = script.owned()?;
    let tap = tap(i32::MAX)?;
    let memory = GuestMemory::new(&[0x8000], Some(Gpa(0x1_0000)))?;
    let base = memory.uva(Gpa(0x1_0000), 1).context("memory")?;
    vhost.set_mem_table(&[MemoryRegion {
        guest_phys_addr: 0x1_0000,
        memory_size: 0x8000,
        userspace_addr: base,
    }])?;
    vhost.set_vring_num(1, 16)?;
    let err = EventFd::new()?;
    vhost.set_vring_err(1, Some(err.as_fd()))?;
    let attach = || vhost.set_backend(1, Some(tap.as_fd()));
    let mut step = |what: &str, addr: Option<VringAddr>, bits: Option<u64>| {
        if let Some(bits) = bits {
            script.note(format!("{what}: SET_FEATURES"), vhost.set_features(bits));
        }
        if let Some(addr) = addr {
            script.note(
                format!("{what}: SET_VRING_ADDR"),
                vhost.set_vring_addr(1, &addr),
            );
        }
        script.note(format!("{what}: SET_BACKEND"), attach());
        let errors = err.take();
        script.note(format!("{what}: errors"), errors.map(|count| count > 0));
        let miss = vhost.next_miss(Duration::from_millis(20));
        script.note(format!("{what}: miss"), miss);
        script.note(
            format!("{what}: SET_BACKEND(-1)"),
            vhost.set_backend(1, None),
        );
    };
    let own = addr(base, base + 0x1000, base + 0x2000);
    step("plain", Some(own), Some(0));
    step("an IOTLB comes", None, Some(PLATFORM));
    step(
        "nothing is mapped",
        Some(addr(0x5000, 0x6000, 0x7000)),
        None,
    );
    step("kernel addresses", Some(addr(KERNEL, KERNEL, KERNEL)), None);
    let mapped = message(What::Update, 0x5000, 0x3000, base, READ | WRITE);
    vhost.send_message(&mapped)?;
    step("mapped", Some(addr(0x5000, 0x6000, 0x7000)), None);
    step("zero is an address", Some(addr(0, 0, 0x7000)), None);
    step("another IOTLB comes", None, Some(PLATFORM));
    vhost.send_message(&mapped)?;
    vhost.set_backend_features(2)?;
    step("mapped again", None, None);
    step(
        "beside what is mapped",
        Some(addr(0x5000, 0x6000, 0x8000)),
        None,
    );
    step("the IOTLB goes", None, Some(0));
    step("own addresses", Some(own), None);
    Ok(())
}
