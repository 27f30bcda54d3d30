// SPDX-License-Identifier: GPL-2.0

//! What can be seen of a device after a call: what was half done would show.

use std::os::fd::AsFd;

use anyhow::Result;
use vhost_uapi::{numbers, Arena, Gate, Place, VhostNet};

use crate::call::{poll_now, text};
use crate::ground::{hex, Ground, RX, TX};
use crate::message::{Message, INVALIDATE, SIZE};
use crate::objects::set_nonblocking;
use crate::state::{Device, State};

/// A name, and what was seen.
pub type Field = (&'static str, String);

/// Looks at a device. Attaches the tap to rings that are ready for it, and has them carry a packet.
///
/// # Errors
///
/// The machine fails, not the device.
pub fn observe(
    arena: &mut Arena,
    ground: &Ground,
    device: &Device,
    state: State,
) -> Result<Vec<Field>> {
    let vhost = &device.vhost;
    set_nonblocking(vhost.as_fd())?;
    let mut fields = passive(arena, ground, vhost)?;
    if state.is_owned() {
        traffic(ground, device, &mut fields)?;
    }
    if state == State::Logging {
        let signals = ground.log.take()?;
        let told = if signals == 0 { "" } else { ", signalled" };
        fields.push(("log", format!("{:?}{told}", ground.dirty())));
    }
    fields.push(("message", message(vhost)?));
    Ok(fields)
}

/// What can be asked for without changing anything.
fn passive(arena: &mut Arena, ground: &Ground, vhost: &VhostNet) -> Result<Vec<Field>> {
    let mut fields = vec![
        ("poll", format!("{:#x}", poll_now(vhost.as_fd())?)),
        ("fork", value(vhost.fork_from_owner())),
        ("iotlb", invalidate_nothing(vhost)),
    ];
    let names = [
        ["left0", "window0", "backend0", "access0"],
        ["left1", "window1", "backend1", "access1"],
    ];
    for (index, [base, window, backend, access]) in (0..).zip(names) {
        // How many buffers the device has not taken, so that the same call is the same on a device that was in use.
        let avail = ground.avail(index as usize); // CAST: 0 or 1.
        let left = |base| i64::from(avail) - i64::from(base);
        fields.push((base, value(vhost.vring_base(index).map(left))));
        fields.push((window, value(vhost.vring_busyloop_timeout(index))));
        fields.push((backend, busy(arena, vhost, index)?));
        // No backend is looked for unless rings and table may be used.
        let words = [index, -2i32 as u32].map(u32::to_ne_bytes).concat(); // CAST: The bits of an int.
        let at = arena.put(Place::Edge, &words)?;
        let request = numbers::NET_SET_BACKEND as u32; // CAST: ioctl numbers have 32 bits.
        let result = arena.ioctl(Gate::Syscall, vhost.as_fd(), request, at);
        fields.push((access, text(result)));
    }
    Ok(fields)
}

fn value<T: std::fmt::Display>(result: vhost_uapi::Result<T>) -> String {
    match result {
        Ok(value) => value.to_string(),
        Err(err) => format!("{:?}", err.errno),
    }
}

/// `EBUSY` if a ring has a backend: that is looked at before the argument, of which half is missing.
fn busy(arena: &mut Arena, vhost: &VhostNet, index: u32) -> Result<String> {
    let mut words = [0; 8];
    words[..4].copy_from_slice(&index.to_ne_bytes());
    let at = arena.put(Place::Cut(4), &words)?;
    let request = numbers::SET_VRING_BASE as u32; // CAST: ioctl numbers have 32 bits.
    Ok(text(arena.ioctl(Gate::Syscall, vhost.as_fd(), request, at)))
}

/// Takes an address out of the device IOTLB that nobody puts there: only says whether there is one.
fn invalidate_nothing(vhost: &VhostNet) -> String {
    let message = Message {
        iova: 0x7777_0000_0000,
        size: 1,
        kind: INVALIDATE,
        ..Message::default()
    };
    match nix::unistd::write(vhost, &message.version_2()) {
        Ok(count) => count.to_string(),
        Err(errno) => format!("{errno:?}"),
    }
}

/// The message that can be read, if one can.
fn message(vhost: &VhostNet) -> Result<String> {
    let mut bytes = [0xee; SIZE];
    Ok(match nix::unistd::read(vhost, &mut bytes) {
        Ok(count) => hex(&bytes[..count]),
        Err(errno) => format!("{errno:?}"),
    })
}

/// Attaches the tap, and carries a packet each way.
fn traffic(ground: &Ground, device: &Device, fields: &mut Vec<Field>) -> Result<()> {
    let vhost = &device.vhost;
    let sent = ground.sent_bytes()?;
    let used = [RX, TX].map(|ring| ground.used(ring));
    let mut attach = |index, name| {
        let result = vhost.set_backend(index, Some(ground.tap()));
        let attached = result.is_ok();
        fields.push((name, value(result.map(|()| 0))));
        attached
    };
    let attached = [attach(0, "attach0"), attach(1, "attach1")];
    // A ring is looked at when it is attached: that must be over before there is something in it.
    flush(vhost);
    if attached[TX] {
        ground.offer(TX)?;
        // Of two kicks at once, either may be served first.
        flush(vhost);
    }
    if attached[RX] {
        ground.offer(RX)?;
        // The kick must not come with the packet on one day and before it on another.
        flush(vhost);
        ground.send()?;
    }
    flush(vhost);
    let [rx, tx] = [RX, TX].map(|ring| ground.returned(ring, used[ring]));
    let bytes = ground.sent_bytes()? - sent;
    fields.push(("rx", rx?));
    fields.push(("tx", format!("{}, {bytes} bytes", tx?)));
    Ok(())
}

/// Waits for the worker: a memory table that cannot be read changes nothing, and all before it is done.
pub fn flush(vhost: &VhostNet) {
    let _ = vhost.raw_ioctl(numbers::SET_MEM_TABLE, 0);
}
