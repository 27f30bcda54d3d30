// SPDX-License-Identifier: GPL-2.0

//! Packet sockets: what goes into and comes out of an interface, as whole Ethernet frames.

use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, MsgFlags, SockFlag, SockType};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::error::{Context, Result};
use crate::eventfd::wait_readable;
use crate::sys;

const PACKET_STATISTICS: i32 = 6;
const PACKET_VNET_HDR: i32 = 15;
const PACKET_QDISC_BYPASS: i32 = 20;
const PACKET_VNET_HDR_SZ: i32 = 24;

/// Bytes of the virtio-net header in front of each frame of a socket that was opened with one.
const VNET_HDR_SIZE: usize = 10;

/// Counters since the last look at them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketStats {
    /// Frames that the socket was offered.
    pub packets: u32,
    /// Those that found its buffer full.
    pub drops: u32,
}

/// How a packet socket is opened.
#[derive(Clone, Copy, Debug)]
pub struct PacketOptions {
    /// Bytes of the virtio-net header in front of each frame, 10 or 12; nothing for frames without one.
    pub vnet_hdr_size: Option<u32>,
    /// Whether what is sent goes to the driver without the interface's queueing discipline between.
    pub bypass: bool,
}

/// A raw packet socket on one interface and one protocol.
#[derive(Debug)]
pub struct PacketSocket {
    fd: OwnedFd,
}

impl PacketSocket {
    /// Bytes in front of each frame, in both directions: a `struct virtio_net_hdr`.
    pub const HEADER_SIZE: usize = VNET_HDR_SIZE;

    /// Opens a socket for the frames of `protocol` (an Ethernet type) on interface `ifindex`. Frames have a virtio-net header
    /// in front, so that segments larger than the MTU pass as they are. What is sent goes to the driver without a queue between.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_NET_RAW.
    pub fn open(ifindex: i32, protocol: u16) -> Result<Self> {
        let options = PacketOptions {
            vnet_hdr_size: Some(VNET_HDR_SIZE as u32), // CAST: 10.
            bypass: true,
        };
        Self::open_with(ifindex, protocol, options)
    }

    /// [`PacketSocket::open`], as `options` have it.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_NET_RAW, EINVAL for a header of another size.
    pub fn open_with(ifindex: i32, protocol: u16, options: PacketOptions) -> Result<Self> {
        // Protocol 0: no frames before the socket is bound.
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket::socket(AddressFamily::Packet, SockType::Raw, flags, None)
            .context("packet socket")?;
        let set = |option, value| sys::setsockopt(fd.as_fd(), libc::SOL_PACKET, option, value);
        match options.vnet_hdr_size {
            None => {}
            Some(10) => set(PACKET_VNET_HDR, 1).context("PACKET_VNET_HDR")?,
            // CAST: The kernel takes 10 and 12 only.
            Some(size) => set(PACKET_VNET_HDR_SZ, size as i32).context("PACKET_VNET_HDR_SZ")?,
        }
        if options.bypass {
            set(PACKET_QDISC_BYPASS, 1).context("PACKET_QDISC_BYPASS")?;
        }
        sys::bind_packet(fd.as_fd(), protocol, ifindex).context("bind packet socket")?;
        Ok(Self { fd })
    }

    /// Asks for a receive buffer of this size, past the system's limit.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_NET_ADMIN.
    pub fn set_rcvbuf(&self, bytes: i32) -> Result {
        let option = libc::SO_RCVBUFFORCE;
        sys::setsockopt(self.fd.as_fd(), libc::SOL_SOCKET, option, bytes).context("SO_RCVBUFFORCE")
    }

    /// Asks for a send buffer of this size, past the system's limit.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_NET_ADMIN.
    pub fn set_sndbuf(&self, bytes: i32) -> Result {
        let option = libc::SO_SNDBUFFORCE;
        sys::setsockopt(self.fd.as_fd(), libc::SOL_SOCKET, option, bytes).context("SO_SNDBUFFORCE")
    }

    /// Sends a header and a frame. Says whether there was room for it; if not, try again.
    ///
    /// # Errors
    ///
    /// Those of send(2), apart from EAGAIN and ENOBUFS.
    pub fn send(&self, frame: &[u8]) -> Result<bool> {
        match socket::send(self.fd.as_raw_fd(), frame, MsgFlags::empty()) {
            Err(Errno::ENOBUFS | Errno::EAGAIN) => Ok(false),
            result => result.map(|_| true).context("send to packet socket"),
        }
    }

    /// Receives a header and a frame, if one is there. Returns their length, also if it did not fit.
    ///
    /// # Errors
    ///
    /// Those of recv(2), apart from EAGAIN.
    pub fn receive(&self, frame: &mut [u8]) -> Result<Option<usize>> {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
        match socket::recv(self.fd.as_raw_fd(), frame, flags) {
            Err(Errno::EAGAIN) => Ok(None),
            result => result.map(Some).context("receive from packet socket"),
        }
    }

    /// Waits for a frame.
    ///
    /// # Errors
    ///
    /// Those of poll(2).
    pub fn wait(&self, timeout: Duration) -> Result<bool> {
        wait_readable(&[self.as_fd()], timeout)
    }

    /// Counters since the last call.
    ///
    /// # Errors
    ///
    /// None that an open socket gives.
    pub fn statistics(&self) -> Result<PacketStats> {
        let stats: [u32; 2] = sys::getsockopt(self.as_fd(), libc::SOL_PACKET, PACKET_STATISTICS)
            .context("PACKET_STATISTICS")?;
        let [packets, drops] = stats;
        Ok(PacketStats { packets, drops })
    }
}

impl AsFd for PacketSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
