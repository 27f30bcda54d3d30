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
        param,
        socket::{NetSocket, SocketName},
        tap::{RxQueue, TxQueue},
        wait::{Direction, PollEntry},
        zerocopy::ZeroCopy,
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
/// polled, as a tap without an interface; `EINTR` if the caller is killed while
/// packets are in flight.
#[inline(never)]
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
        if detach(vring, Some(memory)) {
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
    let waker = || Waker::new(item.into(), worker.clone(), index, Event::Socket);
    let name = socket.name();
    let mut new = build(socket, index, waker)?;

    state = land_first(vring, state, memory)?;
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
        dispose(vring, old, Some(memory));
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
/// The worker finds none from now on. C: `vhost_net_stop_vq()`. `memory` is the
/// owner's, if the caller has it.
pub(super) fn detach(vring: &Vring<Net>, memory: Option<OwnerMemory>) -> bool {
    let mut state = vring.lock();
    let old = state.backend.take();
    vring.set_backend_name(SocketName::NONE);
    drop(state);
    let had = old.is_some();

    dispose(vring, old, memory);
    had
}

/// Gives packets that were not delivered back to the socket, waits for those
/// that it has, and lets it go.
fn dispose(vring: &Vring<Net>, old: Option<Backend<Net>>, memory: Option<OwnerMemory>) {
    let Some(mut old) = old else {
        return;
    };
    // It fails for a caller that ends.
    let _ = land(vring, &mut old, memory);
    if let Io::Rx(mut queue) = old.io {
        // CAST: a count of at most one batch.
        let lost = queue.put_back() as u64;
        if lost != 0 {
            vring.lock().stats.count(Counter::DropStop, lost);
        }
    }
}

/// Waits for packets in flight while the vring of `state` still has its backend,
/// but sends nothing: chains of the next one would overtake them.
///
/// # Errors
///
/// As [`land`]; there is no backend any more.
#[inline(never)]
fn land_first<'a>(
    vring: &'a Vring<Net>,
    mut state: Locked<'a, Net>,
    memory: OwnerMemory,
) -> Result<Locked<'a, Net>> {
    let Some(mut old) = state.backend.take_if(|old| old.zerocopy.is_some()) else {
        return Ok(state);
    };
    drop(state);
    old.poll.stop();
    if let Err(err) = land(vring, &mut old, Some(memory)) {
        vring.set_backend_name(SocketName::NONE);
        return Err(err);
    }

    let mut state = vring.lock();
    state.backend = Some(old);
    Ok(state)
}

/// Waits until the socket reads the owner's memory no more, and returns the
/// chains there. C: `vhost_net_ubuf_put_and_wait()`.
///
/// No run has `old`, and nobody holds the vring's lock.
///
/// # Errors
///
/// `EINTR` if the caller is killed, or ends: it is not to wait for a receiver
/// that may take for ever. The chains are lost with it.
#[inline(never)]
fn land(vring: &Vring<Net>, old: &mut Backend<Net>, memory: Option<OwnerMemory>) -> Result {
    let Some(zerocopy) = &mut old.zerocopy else {
        return Ok(());
    };
    let waited = zerocopy.wait();
    let Some(memory) = memory else {
        return waited;
    };
    let mut state = vring.lock();
    let returned = state.with_ring(memory, |queue, mem| {
        zerocopy.return_done(queue, mem, |counter| vring.stats.count(counter, 1))
    });
    match returned {
        Ok(Ok(call)) => state.returned(call),
        Ok(Err(_)) | Err(_) => state.signal_err(),
    }
    vring.stats.show_indices(&state.queue);
    waited
}

#[inline(never)]
fn build(
    socket: NetSocket,
    index: VringIndex,
    waker: impl Fn() -> Waker<Net>,
) -> Result<Backend<Net>> {
    let rx = index.get() == RX;
    let (direction, io) = if rx {
        (Direction::In, Io::Rx(RxQueue::new(&socket)?))
    } else {
        (Direction::Out, Io::Tx(TxQueue::new(&socket)?))
    };
    let poll = PollEntry::for_socket(&socket, direction, waker())?;
    let zerocopy = if !rx && param::zerocopytx() && socket.zerocopies() {
        Some(ZeroCopy::new(waker())?)
    } else {
        None
    };

    Ok(Backend {
        socket,
        poll,
        io,
        zerocopy,
    })
}
