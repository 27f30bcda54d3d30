// SPDX-License-Identifier: GPL-2.0

//! Attaches and detaches the socket behind a vring.

use super::{Item, Net, RX};
use crate::{
    device::Device,
    engine::{self, counters::Counter},
    ioctl::FileArg,
    kapi::{
        index::VringIndex,
        owner::OwnerMemory,
        socket::{NetSocket, SocketName},
        tap::{RxQueue, TxQueue},
        wait::{Direction, PollEntry},
    },
    kick::{Event, Waker},
    vring::{Backend, Io, Locked, Vring, VRINGS},
};
use kernel::{prelude::*, sync::ArcBorrow};

/// Serves `VHOST_NET_SET_BACKEND`. C: `vhost_net_set_backend()`.
///
/// When it returns, the old socket is not used any more. A failure leaves the
/// old one in place.
///
/// # Errors
///
/// `EPERM`; `ENOBUFS` if there is no such vring; `EFAULT` if rings or memory
/// table are not set up, or a used ring cannot be written; `ENOTSOCK` if the
/// file is none that packets go through; `ENOMEM`; `EINVAL` if it cannot be
/// polled, as a tap without an interface.
pub(super) fn set(item: ArcBorrow<'_, Item>, index: u32, file: FileArg) -> Result {
    let device = &item.device;
    let control = device.lock();
    let (worker, memory) = device.check_owner()?;
    // CAST: a constant.
    let index = VringIndex::new(index, VRINGS as u32).ok_or(ENOBUFS)?;
    let vring = device.vring(index);

    if matches!(file, FileArg::Unbind) {
        // Those of both vrings, and even if this fails, as in C. But a vring that
        // goes on asks again: kicks may be off, and nothing else would wake it.
        control.look_again(item, device.channel().clear());
    }
    let mut state = vring.lock();
    if !state.access_ok() {
        return Err(EFAULT);
    }
    let FileArg::Bind(fd) = file else {
        drop(state);
        if detach(vring) {
            control.flush();
        }
        // What it asked meanwhile would be in the way of the next backend's.
        device.channel().forget(index.get());
        return Ok(());
    };

    let socket = NetSocket::from_fd(fd)?;
    if let Some(old) = &state.backend {
        if old.socket.same_socket(&socket) {
            return Ok(());
        }
    }
    let waker = Waker::new(item.into(), worker, index, Event::Socket);
    let name = socket.name();
    let mut new = build(socket, index, waker)?;

    if let Some(old) = &mut state.backend {
        old.poll.stop();
    }
    let started = start(device, &mut state, index, memory).and_then(|()| new.poll.start());
    if let Err(err) = started {
        if let Some(old) = &mut state.backend {
            // It was polled before; if it fails now, the next kick tells.
            let _ = old.poll.start();
        }
        return Err(err);
    }
    let old = state.backend.replace(new);
    vring.set_backend_name(name);
    state.show_setup();
    drop(state);

    if old.is_some() {
        control.flush();
        dispose(vring, old);
    }
    Ok(())
}

/// Starts the virtqueue of the vring `index`.
///
/// # Errors
///
/// `EFAULT`; if the IOTLB does not have its used ring, the owner is asked.
fn start(
    device: &Device<Net>,
    state: &mut Locked<'_, Net>,
    index: VringIndex,
    memory: OwnerMemory,
) -> Result {
    let Err(err) = state.start(memory) else {
        return Ok(());
    };
    if state.iotlb.is_some() {
        if let engine::error::Error::Unmapped { iova, access } = err {
            device.channel().ask(index.get(), state.miss(iova, access));
        }
        state.signal_err();
    }
    Err(err.into())
}

/// Takes the backend of `vring` away; answers whether there was one.
///
/// The worker finds none from now on. C: `vhost_net_stop_vq()`.
pub(super) fn detach(vring: &Vring<Net>) -> bool {
    let mut state = vring.lock();
    let old = state.backend.take();
    vring.set_backend_name(SocketName::NONE);
    drop(state);
    let had = old.is_some();

    dispose(vring, old);
    had
}

/// Gives packets that were not delivered back to the socket, and lets it go.
fn dispose(vring: &Vring<Net>, old: Option<Backend<Net>>) {
    if let Some(Backend {
        io: Io::Rx(mut queue),
        ..
    }) = old
    {
        // CAST: a count of at most one batch.
        let lost = queue.put_back() as u64;
        if lost != 0 {
            vring.lock().stats.count(Counter::DropStop, lost);
        }
    }
}

fn build(socket: NetSocket, index: VringIndex, waker: Waker<Net>) -> Result<Backend<Net>> {
    let (direction, io) = if index.get() == RX {
        (Direction::In, Io::Rx(RxQueue::new(&socket)?))
    } else {
        (Direction::Out, Io::Tx(TxQueue::new(&socket)?))
    };
    let poll = PollEntry::for_socket(&socket, direction, waker)?;

    Ok(Backend { socket, poll, io })
}
