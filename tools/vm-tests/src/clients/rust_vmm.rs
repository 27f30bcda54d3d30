// SPDX-License-Identifier: GPL-2.0

//! A machine monitor built on rust-vmm's `vhost` crate.

use std::fs::File;
use std::os::fd::AsFd;

use anyhow::{anyhow, ensure, Context, Result};
use vhost::net::VhostNet;
use vhost::vhost_kern::net::Net;
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vhost_load::vring::{RX, TX};
use vhost_uapi::features::{EVENT_IDX, INDIRECT, MRG_RXBUF, VERSION_1};
use vhost_uapi::Tap;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap};
use vmm_sys_util::eventfd::{EventFd, EFD_NONBLOCK};

use super::guest::{Addresses, Guest};

const FEATURES: u64 = 1 << MRG_RXBUF | 1 << INDIRECT | 1 << EVENT_IDX | 1 << VERSION_1;
/// Bursts that go round before and after a stop.
const BURSTS: usize = 8;

/// The eventfds of a ring, as the crate wants them.
struct Events {
    kick: EventFd,
    call: EventFd,
    err: EventFd,
}

/// Sets up a device, has packets go round, stops it and starts it where it was.
pub(super) fn run(tap: &Tap) -> Result<()> {
    let mut guest = Guest::new(0, FEATURES, Addresses::Own)?;
    let tap = File::from(tap.as_fd().try_clone_to_owned()?);
    let memory = mapped(&guest)?;
    let net = Net::new(&memory).context("Net::new")?;
    let offered = net.get_features().context("get_features")?;
    ensure!(offered & FEATURES == FEATURES, "offered: {offered:x}");

    net.set_owner().context("set_owner")?;
    net.set_features(FEATURES).context("set_features")?;
    let regions: Result<Vec<_>, _> = memory
        .iter()
        .map(VhostUserMemoryRegionInfo::from_guest_region)
        .collect();
    net.set_mem_table(&regions.context("memory regions")?)
        .context("set_mem_table")?;
    let mut events = Vec::new();
    for index in [RX, TX] {
        events.push(set_ring(&net, &guest, index)?);
    }
    for round in 0..2 {
        start(&net, &guest, &tap)?;
        for _ in 0..BURSTS {
            burst(&mut guest, &events).with_context(|| format!("start {round}"))?;
        }
        stop(&net, &guest)?;
    }
    for (index, events) in events.iter().enumerate() {
        let calls = events.call.read().unwrap_or(0);
        ensure!(calls > 0, "ring {index}: no calls came");
        ensure!(
            events.err.read().is_err(),
            "ring {index}: an error was signalled"
        );
    }
    net.reset_owner().context("reset_owner")
}

/// The guest's memory once more, as the crate wants it.
fn mapped(guest: &Guest) -> Result<GuestMemoryMmap> {
    let memory = &guest.memory;
    let size = usize::try_from(memory.size())?;
    let range = (
        GuestAddress(memory.base().0),
        size,
        memory.file_offset().cloned(),
    );
    GuestMemoryMmap::from_ranges_with_files([range]).map_err(|err| anyhow!("map memory: {err}"))
}

fn set_ring(net: &impl VhostBackend, guest: &Guest, index: u32) -> Result<Events> {
    let ring = guest.vring(index).queue.layout();
    let config = VringConfigData {
        queue_max_size: ring.num,
        queue_size: ring.num,
        flags: 0,
        desc_table_addr: ring.desc.0,
        used_ring_addr: ring.used.0,
        avail_ring_addr: ring.avail.0,
        log_addr: None,
    };
    let event = || EventFd::new(EFD_NONBLOCK).context("eventfd");
    let (kick, call, err) = (event()?, event()?, event()?);
    let queue = index as usize; // CAST: 0 or 1.
    net.set_vring_num(queue, ring.num)
        .context("set_vring_num")?;
    net.set_vring_addr(queue, &config)
        .context("set_vring_addr")?;
    net.set_vring_call(queue, &call).context("set_vring_call")?;
    net.set_vring_kick(queue, &kick).context("set_vring_kick")?;
    net.set_vring_err(queue, &err).context("set_vring_err")?;
    Ok(Events { kick, call, err })
}

fn start(net: &impl VhostNet, guest: &Guest, tap: &File) -> Result<()> {
    for index in [RX, TX] {
        let (queue, base) = (index as usize, guest.vring(index).queue.next_used()); // CAST: 0 or 1.
        net.set_vring_base(queue, base).context("set_vring_base")?;
        net.set_backend(queue, Some(tap)).context("set_backend")?;
    }
    Ok(())
}

fn stop(net: &impl VhostNet, guest: &Guest) -> Result<()> {
    for index in [RX, TX] {
        let queue = index as usize; // CAST: 0 or 1.
        net.set_backend(queue, None).context("set_backend")?;
        let base = net.get_vring_base(queue).context("get_vring_base")?;
        let used = guest.vring(index).queue.next_used();
        ensure!(
            base == u32::from(used),
            "ring {index}: base {base}, used index {used}"
        );
    }
    Ok(())
}

/// Has packets go round. The guest's kicks are handed on; calls stay in the crate's eventfds.
fn burst(guest: &mut Guest, events: &[Events]) -> Result<()> {
    guest.post()?;
    let sent = guest.send()?;
    for (index, events) in (0..).zip(events) {
        if guest.vring(index).kick.take()? > 0 {
            events.kick.write(1)?;
        }
    }
    guest.sent()?;
    guest.receive(0, sent)
}
