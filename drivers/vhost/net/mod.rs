// SPDX-License-Identifier: GPL-2.0

//! The net device: what an open `/dev/vhost-net` is.

mod backend;
mod fdinfo;
mod poll;
mod run;

use poll::Turn;

use crate::{
    access::IOTLB_MSG_V2,
    device::Device,
    engine::{features, scratch::Scratch},
    ioctl,
    kapi::{
        chrdev::{CharDevice, Poll},
        clock,
        iter::{Dest, Source},
        owner::OwnerMemory,
        user_memory::access_ok,
        work::WorkItem,
    },
    kick::{self, Event},
    message,
    table::MemTable,
    worker::{Work, Worker},
};
use kernel::{
    current,
    prelude::*,
    seq_file::SeqFile,
    sync::{Arc, ArcBorrow},
};

/// The vring that the guest receives from (C: `VHOST_NET_VQ_RX`).
const RX: usize = 0;
/// The vring that the guest transmits to (C: `VHOST_NET_VQ_TX`).
const TX: usize = 1;

/// Backend features.
const BACKEND_FEATURES: u64 = IOTLB_MSG_V2;

/// Words of a feature array (C: `VIRTIO_FEATURES_U64S`).
const FEATURE_WORDS: usize = features::OFFERED.len();

/// An open file.
#[pin_data]
pub(crate) struct Net {
    #[pin]
    device: Device<Net>,
}

/// An open file, as the worker keeps it.
type Item = WorkItem<Net>;

impl Work for Net {
    fn run(
        item: ArcBorrow<'_, Item>,
        worker: &Worker<Self>,
        bit: u32,
        memory: OwnerMemory,
        scratch: &mut Scratch,
    ) {
        const RX_WORK: u32 = kick::bit(RX, Event::Kick) | kick::bit(RX, Event::Socket);

        let [rx, tx] = item.device.vrings();
        let (vring, index) = if bit & RX_WORK != 0 {
            (rx, RX)
        } else {
            (tx, TX)
        };
        let slept = worker.has_slept();
        for vring in [rx, tx] {
            vring.polling.woken(slept, &vring.stats);
        }
        let turn = Turn {
            item,
            worker,
            index,
            memory,
        };
        run::handle(turn, vring, scratch);
    }

    // A wake-up by a socket saves no registers for this.
    #[inline(never)]
    fn kicked(&self, bit: u32) {
        let [rx, tx] = self.device.vrings();
        let vring = if bit == kick::bit(RX, Event::Kick) {
            rx
        } else {
            tx
        };
        vring.kicked();
    }
}

impl CharDevice for Net {
    type Data = Item;

    fn open() -> Result<Arc<Item>> {
        Arc::pin_init(
            WorkItem::new(try_pin_init!(Self {
                device <- Device::new(),
            })),
            GFP_KERNEL,
        )
    }

    fn release(item: Arc<Item>) {
        let item = item.as_arc_borrow();
        let mut control = item.device.lock();

        Self::stop(item);
        item.device.drop_owner(&mut control);
    }

    fn ioctl(item: ArcBorrow<'_, Item>, cmd: u32, arg: usize) -> Result<isize> {
        match cmd {
            ioctl::NET_SET_BACKEND => {
                let (index, file) = ioctl::read_indexed_file(arg)?;
                backend::set(item, index, file)?;
            }
            ioctl::GET_FEATURES => {
                let [word, _] = features::OFFERED;
                ioctl::write(arg, &word)?;
            }
            ioctl::SET_FEATURES => item.set_features([ioctl::read(arg)?, 0])?,
            ioctl::GET_FEATURES_ARRAY => get_features_array(arg)?,
            ioctl::SET_FEATURES_ARRAY => item.set_features(read_features_array(arg)?)?,
            ioctl::GET_BACKEND_FEATURES => ioctl::write(arg, &BACKEND_FEATURES)?,
            ioctl::SET_BACKEND_FEATURES => {
                let features = ioctl::read::<u64>(arg)?;
                if features & !BACKEND_FEATURES != 0 {
                    return Err(EOPNOTSUPP);
                }
                let _control = item.device.lock();
                for vring in item.device.vrings() {
                    let mut state = vring.lock();
                    state.backend_features = features;
                    state.stats.show_backend_features(features);
                }
            }
            ioctl::SET_FORK_FROM_OWNER => item.device.set_fork_from_owner(arg)?,
            ioctl::GET_FORK_FROM_OWNER => ioctl::write_kind(arg, item.device.kind())?,
            ioctl::SET_OWNER => item.device.set_owner()?,
            ioctl::RESET_OWNER => Self::reset_owner(item)?,
            _ => item.device.ioctl(item, cmd, arg)?,
        }
        Ok(0)
    }

    fn read(item: ArcBorrow<'_, Item>, to: &mut Dest<'_>, wait: bool) -> Result<usize> {
        item.device.channel().read(to, wait)
    }

    fn write(item: ArcBorrow<'_, Item>, from: &mut Source<'_>) -> Result<usize> {
        message::write(&item.device, item, from)
    }

    fn poll(item: ArcBorrow<'_, Item>, poll: &Poll<'_>) -> bool {
        item.device.channel().poll(poll)
    }

    fn show_fdinfo(item: ArcBorrow<'_, Item>, file: &SeqFile) {
        fdinfo::show(&item.device, file);
    }
}

impl Net {
    /// Takes both backends away. C: `vhost_net_stop()`.
    fn stop(item: ArcBorrow<'_, Item>) {
        // Who closes the device may be anybody.
        let memory = item.device.check_owner().ok().map(|(_, memory)| memory);

        for vring in item.device.vrings() {
            backend::detach(vring, memory);
        }
    }

    /// C: `vhost_net_reset_owner()`.
    fn reset_owner(item: ArcBorrow<'_, Item>) -> Result {
        let mut control = item.device.lock();
        item.device.check_owner()?;
        // Before anything is lost.
        let table = MemTable::empty()?;

        Self::stop(item);
        item.device.drop_owner(&mut control);
        item.device.set_table(&mut control, table);
        Ok(())
    }

    /// C: `vhost_net_set_features()`. Needs no owner.
    fn set_features(&self, features: [u64; FEATURE_WORDS]) -> Result {
        if features
            .iter()
            .zip(&features::OFFERED)
            .any(|(wanted, offered)| wanted & !offered != 0)
        {
            return Err(EOPNOTSUPP);
        }

        let control = self.device.lock();
        if features::has(&features, features::LOG_ALL) && !self.device.log_ok(&control) {
            return Err(EFAULT);
        }
        let platform = features::has(&features, features::ACCESS_PLATFORM);
        self.device.set_iotlb(&control, platform)?;
        for vring in self.device.vrings() {
            let mut state = vring.lock();
            state.set_features(features);
            state.show_setup();
        }
        Ok(())
    }
}

/// Serves `VHOST_GET_FEATURES_ARRAY`: the words that fit, then zeroes.
fn get_features_array(arg: usize) -> Result {
    let count = ioctl::read::<u64>(arg)?;
    let mut at = arg;
    let mut words = features::OFFERED.iter();
    // An array that leaves user space gets no zeroes, as in C.
    // CAST: to 64 bits, as an address is.
    let inside = access_ok(arg as u64, count.saturating_add(1).saturating_mul(8));

    for index in 0..count {
        at = at.wrapping_add(size_of::<u64>());
        match words.next() {
            Some(word) => ioctl::write(at, word)?,
            None if inside => ioctl::write(at, &0_u64)?,
            None => return Err(EFAULT),
        }
        breathe(index)?;
    }
    Ok(())
}

/// Gives way before the word `index`, of which the caller may name any number.
///
/// # Errors
///
/// `EINTR` if a signal waits; only looked at where no true array reaches.
fn breathe(index: u64) -> Result {
    const PAGE_OF_WORDS: u64 = 512;

    if index & (PAGE_OF_WORDS - 1) != PAGE_OF_WORDS - 1 {
        return Ok(());
    }
    clock::cond_resched();
    if current!().signal_pending() {
        return Err(EINTR);
    }
    Ok(())
}

/// Reads the argument of `VHOST_SET_FEATURES_ARRAY`.
fn read_features_array(arg: usize) -> Result<[u64; FEATURE_WORDS]> {
    let count = ioctl::read::<u64>(arg)?;
    let mut features = [0; FEATURE_WORDS];
    let mut at = arg;
    let mut words = features.iter_mut();

    for index in 0..count {
        at = at.wrapping_add(size_of::<u64>());
        breathe(index)?;
        let word = ioctl::read::<u64>(at)?;

        match words.next() {
            Some(slot) => *slot = word,
            None if word != 0 => return Err(EOPNOTSUPP),
            None => (),
        }
    }
    Ok(features)
}
