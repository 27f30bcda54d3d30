// SPDX-License-Identifier: GPL-2.0

//! What is done to a device. Most of it can be refused; what counts is what becomes of the device.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use vhost_load::vring::{RX, TX};
use vhost_uapi::iotlb::What;
use vhost_uapi::{features, MemoryRegion, Result, VringAddr};

use super::field::{at, Field, PAGE, RING};
use super::Action;
use crate::dice::Dice;

/// A window that nothing here can wait for.
pub(super) const LONG_WINDOW: u32 = 1_000_000_000;
/// Where no process has memory.
const FAR: u64 = 0x3000_0000_0000;

/// Does something to the device and, in most cases, undoes it. Answers what the first call did.
pub(super) fn act(field: &Field, action: Action, dice: &mut Dice) -> Result {
    let index = if dice.coin() { TX } else { RX };
    let vhost = &field.vhost;
    match action {
        Action::SetBackend => backend(field, index, dice),
        Action::SetVringNum => {
            let num = dice.pick(RING, &[16, 64]);
            detached(field, index, dice, || vhost.set_vring_num(index, num))
        }
        Action::SetVringBase => {
            let base = vhost.vring_base(index)?;
            let base = dice.pick(base, &[0, 0xffff, 12345]);
            detached(field, index, dice, || vhost.set_vring_base(index, base))
        }
        Action::SetVringAddr => {
            let good = field.address(index);
            let (desc, log) = (FAR, !3);
            let (far, unlogged) = (VringAddr { desc, ..good }, VringAddr { log, ..good });
            let some = dice.pick(good, &[good, far, unlogged]);
            let result = vhost.set_vring_addr(index, &some);
            pause(dice);
            result.and(vhost.set_vring_addr(index, &good))
        }
        Action::SetVringKick | Action::SetVringCall | Action::SetVringErr => {
            eventfd(field, action, index, dice)
        }
        Action::SetVringBusyloopTimeout => {
            let window = dice.pick(0, &[50, 5000, LONG_WINDOW]);
            vhost.set_vring_busyloop_timeout(index, window)?;
            vhost.vring_busyloop_timeout(index).map(|_| ())
        }
        Action::SetVringEndian => vhost.set_vring_endian(index, dice.roll(2) as u32), // CAST: 0 or 1.
        Action::SetMemTable => mem_table(field, dice),
        Action::SetFeatures => set_features(field, dice),
        Action::SetLogBase => {
            let result = vhost.set_log_base(dice.pick(field.log_base(), &[FAR, 0]));
            pause(dice);
            result.and(vhost.set_log_base(field.log_base()))
        }
        Action::SetLogFd => {
            let other = at(&field.events, index).other.as_fd();
            vhost.set_log_fd(dice.coin().then_some(other))
        }
        Action::IotlbUpdate => message(field, What::Update, dice),
        Action::IotlbInvalidate => message(field, What::Invalidate, dice),
        Action::ResetOwner => {
            let result = vhost.reset_owner();
            // Another thread may do the same.
            let _ = field.set_up();
            result
        }
        Action::Close => vhost.close_early(),
        // These come from outside.
        Action::Kill | Action::TapDeleted | Action::Rmmod => {
            pause(dice);
            Ok(())
        }
    }
}

/// Gives the worker time to use what was set, or none.
fn pause(dice: &mut Dice) {
    let micros = dice.roll(4) * 100;
    if micros > 0 {
        std::thread::sleep(Duration::from_micros(micros));
    }
}

fn backend(field: &Field, index: u32, dice: &mut Dice) -> Result {
    let both = dice.coin();
    let vhost = &field.vhost;
    let result = vhost.set_backend(index, None);
    if both {
        let _ = vhost.set_backend(RX + TX - index, None);
    }
    pause(dice);
    if both {
        let _ = field.attach(RX + TX - index);
    }
    let result = result.and(field.attach(index));
    pause(dice);
    result
}

/// A call that may be made without a backend only; now and then there is one all the same.
fn detached(field: &Field, index: u32, dice: &mut Dice, call: impl FnOnce() -> Result) -> Result {
    let stop = dice.roll(4) > 0;
    if stop {
        field.vhost.set_backend(index, None)?;
    }
    let result = call();
    if stop {
        pause(dice);
        field.attach(index)?;
    }
    result
}

fn eventfd(field: &Field, action: Action, index: u32, dice: &mut Dice) -> Result {
    let events = at(&field.events, index);
    type Set = fn(&Field, u32, Option<BorrowedFd<'_>>) -> Result;
    let (own, set): (_, Set) = match action {
        Action::SetVringKick => (&events.kick, |field, index, fd| {
            field.vhost.set_vring_kick(index, fd)
        }),
        Action::SetVringCall => (&events.call, |field, index, fd| {
            field.vhost.set_vring_call(index, fd)
        }),
        _ => (&events.err, |field, index, fd| {
            field.vhost.set_vring_err(index, fd)
        }),
    };
    let result = set(field, index, dice.coin().then_some(events.other.as_fd()));
    pause(dice);
    result.and(set(field, index, Some(own.as_fd())))
}

fn mem_table(field: &Field, dice: &mut Dice) -> Result {
    let whole = field.whole();
    let part = |start: u64, size: u64| MemoryRegion {
        guest_phys_addr: whole.guest_phys_addr + start,
        memory_size: size,
        userspace_addr: whole.userspace_addr + start,
    };
    // Below and above the edge lie rings, buffers, or both.
    let edge = (1 + dice.roll(whole.memory_size / PAGE - 1)) * PAGE;
    let (low, high) = (part(0, edge), part(edge, whole.memory_size - edge));
    let table = match dice.roll(5) {
        0 => vec![],
        1 => vec![low],
        2 => vec![high],
        3 => vec![whole],
        _ => vec![low, high],
    };
    let result = field.vhost.set_mem_table(&table);
    pause(dice);
    result.and(field.vhost.set_mem_table(&[whole]))
}

fn set_features(field: &Field, dice: &mut Dice) -> Result {
    let some = field.offered & dice.bits();
    let bits = field.bits();
    let result = field.vhost.set_features(some);
    pause(dice);
    let result = result.and(field.vhost.set_features(bits));
    // A map of addresses that comes or goes takes the rings' addresses along.
    if (some ^ bits) & 1 << features::ACCESS_PLATFORM != 0 {
        for index in [RX, TX] {
            let _ = field.vhost.set_vring_addr(index, &field.address(index));
        }
    }
    if field.setup.platform() {
        let _ = field.map_all();
    }
    result
}

fn message(field: &Field, what: What, dice: &mut Dice) -> Result {
    let pages = field.memory.size() / PAGE;
    let page = dice.roll(pages);
    let mut message = field.message(what, page, 1 + dice.roll(pages - page));
    if dice.roll(8) == 0 {
        message.size = 0;
    }
    let result = field.vhost.send_message(&message);
    pause(dice);
    result
}
