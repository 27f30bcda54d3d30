// SPDX-License-Identifier: GPL-2.0

//! What the frames go through at the host's end of the wire.

use std::time::Duration;

use std::os::fd::AsFd;
use vhost_uapi::{
    features, netdev, wait_readable, Bridge, Offload, PacketOptions, PacketSocket, Tap, TapOptions,
    TunFlags,
};

use crate::failure::Failure;

/// Buffer of a packet socket, in bytes.
pub const SOCKET_BUFFER: i32 = 32 << 20;
/// Bytes of a header that knows tunnels.
const TUNNEL_HEADER: u32 = 24;

/// One end, with a virtio-net header in front of each frame.
#[derive(Debug)]
pub enum Line {
    /// A packet socket on an interface. Its header knows no tunnels.
    Packet(PacketSocket),
    /// A tap that a bridge connects with the backend's.
    Bridged(Tap, Bridge),
}

impl Line {
    /// Opens a packet socket on interface `name`, for frames of `protocol`; with `bypass` past the queueing discipline.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_NET_RAW and CAP_NET_ADMIN.
    pub fn packet(name: &str, protocol: u16, bypass: bool) -> Result<Self, Failure> {
        let options = PacketOptions {
            vnet_hdr_size: Some(PacketSocket::HEADER_SIZE as u32), // CAST: 10.
            bypass,
        };
        let socket = PacketSocket::open_with(netdev::index(name)?, protocol, options)?;
        socket.set_rcvbuf(SOCKET_BUFFER)?;
        socket.set_sndbuf(SOCKET_BUFFER)?;
        Ok(Self::Packet(socket))
    }

    /// Makes a tap that takes segments in tunnels as they are, and a bridge from it to interface `name`.
    ///
    /// # Errors
    ///
    /// Those of a tap and of a bridge.
    pub fn bridged(name: &str) -> Result<Self, Failure> {
        debug_assert_eq!(
            features::net_header_size(1 << features::HOST_UDP_TUNNEL_GSO),
            TUNNEL_HEADER
        );
        let tap = Tap::create(
            "",
            &TapOptions {
                flags: TunFlags::default(),
                vnet_hdr_size: Some(TUNNEL_HEADER),
                sndbuf: i32::MAX,
                offload: Offload::Tunnel,
            },
        )?;
        netdev::disable_ipv6(tap.name())?;
        netdev::set_up(tap.name())?;
        let bridge = Bridge::new(&format!("br-{name}"), &[name, tap.name()])?;
        Ok(Self::Bridged(tap, bridge))
    }

    /// Bytes of the header.
    pub fn header_size(&self) -> usize {
        match self {
            Self::Packet(_) => PacketSocket::HEADER_SIZE,
            Self::Bridged(..) => TUNNEL_HEADER as usize, // CAST: 24.
        }
    }

    /// Sends a header and a frame. Says whether there was room for it; if not, try again.
    ///
    /// # Errors
    ///
    /// Those of the system call.
    pub fn send(&self, frame: &[u8]) -> Result<bool, Failure> {
        Ok(match self {
            Self::Packet(socket) => socket.send(frame)?,
            Self::Bridged(tap, _) => {
                tap.send(frame)?;
                true
            }
        })
    }

    /// Receives a header and a frame, if one is there. Returns their length.
    ///
    /// # Errors
    ///
    /// Those of the system call.
    pub fn receive(&self, frame: &mut [u8]) -> Result<Option<usize>, Failure> {
        Ok(match self {
            Self::Packet(socket) => socket.receive(frame)?,
            Self::Bridged(tap, _) => tap.receive(frame)?,
        })
    }

    /// Waits for a frame.
    ///
    /// # Errors
    ///
    /// Those of poll(2).
    pub fn wait(&self, timeout: Duration) -> Result<bool, Failure> {
        let fd = match self {
            Self::Packet(socket) => socket.as_fd(),
            Self::Bridged(tap, _) => tap.as_fd(),
        };
        Ok(wait_readable(&[fd], timeout)?)
    }

    /// Frames that found no room at this end.
    ///
    /// # Errors
    ///
    /// None that an open line gives.
    pub fn drops(&self) -> Result<u64, Failure> {
        Ok(match self {
            Self::Packet(socket) => u64::from(socket.statistics()?.drops),
            Self::Bridged(tap, _) => netdev::statistic(tap.name(), "tx_dropped")?,
        })
    }
}
