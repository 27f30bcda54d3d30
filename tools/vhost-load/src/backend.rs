// SPDX-License-Identifier: GPL-2.0

//! What is behind the rings, and how it is connected to the wire.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{anyhow, bail, ensure, Context, Result};
use clap::ValueEnum;
use vhost_uapi::{
    features, netdev, Offload, PacketOptions, PacketSocket, Tap, TapOptions, TunFlags, XdpAction,
    XdpLink,
};

use crate::args::{Options, Xdp};
use crate::frame::{End, Shape, GUEST, MAX_PLAIN};
use crate::line::SOCKET_BUFFER;
use crate::wire;

/// A kind of backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// A tap of our own
    #[default]
    Tap,
    /// A tun of our own: packets without an Ethernet header
    Tun,
    /// A macvtap that exists
    Macvtap,
    /// An ipvtap that exists, with the address 192.0.2.1
    Ipvtap,
    /// A packet socket on an interface that exists
    Packet,
}

/// An XDP program on the tap.
#[derive(Clone, Debug)]
pub enum XdpPlan {
    /// It does not touch a frame.
    Pass,
    /// It drops all.
    Drop,
    /// It redirects to one end of a veth, and the other end is the wire.
    Redirect {
        /// The end that is redirected to.
        via: String,
        /// The other.
        wire: String,
    },
}

/// What the backend is to be. [`BackendOptions::default`] is a new tap.
#[derive(Clone, Debug)]
pub struct BackendOptions {
    /// Its kind.
    pub kind: Kind,
    /// Name of its interface. Needed for those that exist.
    pub ifname: Option<String>,
    /// Send buffer in bytes. Without one it is unlimited, or a packet socket's is left alone.
    pub sndbuf: Option<i32>,
    /// Whether the interface waits while the ring is full.
    pub backpressure: bool,
    /// Whether queues can be detached.
    pub multi_queue: bool,
    /// Largest packet of the interface, if not the ordinary one.
    pub mtu: Option<u32>,
    /// Ethernet type of what the guest receives, which a packet socket must know.
    pub protocol: u16,
    /// An XDP program.
    pub xdp: Option<XdpPlan>,
    /// Whether the interface may hand up segments in tunnels, and is a bridge's port.
    pub tunnel: bool,
}

impl Default for BackendOptions {
    fn default() -> Self {
        Self {
            kind: Kind::Tap,
            ifname: None,
            sndbuf: None,
            backpressure: false,
            multi_queue: false,
            mtu: None,
            protocol: Shape::plain(MAX_PLAIN).protocol(),
            xdp: None,
            tunnel: false,
        }
    }
}

impl BackendOptions {
    /// Checks the options against each other.
    ///
    /// # Errors
    ///
    /// What is wrong, and what would be right.
    pub fn new(options: &Options, shape: &Shape) -> Result<Self> {
        let kind = options.backend;
        let own = matches!(kind, Kind::Tap | Kind::Tun);
        let name = kind_name(kind);
        ensure!(
            own || options.ifname.is_some() && options.wire.is_some(),
            "--backend {name} needs --ifname, the interface, and --wire, where its packets come out"
        );
        for (given, option) in [
            (options.jumbo, "--jumbo"),
            (options.backpressure, "--backpressure"),
            (options.requeue.is_some(), "--requeue"),
        ] {
            ensure!(
                own || !given,
                "{option} is for --backend tap and tun, not {name}"
            );
        }
        let large = options.size > max_plain(kind);
        let mtu = options.size - if kind == Kind::Tun { 0 } else { 14 };
        Ok(Self {
            kind,
            ifname: options.ifname.clone(),
            sndbuf: options.sndbuf,
            backpressure: options.backpressure,
            multi_queue: options.requeue.is_some(),
            mtu: (options.jumbo && large).then_some(mtu as u32), // CAST: Below 65536.
            protocol: shape.protocol(),
            xdp: xdp(options)?,
            tunnel: options.tunnel,
        })
    }
}

fn kind_name(kind: Kind) -> String {
    let value = kind.to_possible_value();
    value.map_or_else(String::new, |value| value.get_name().to_owned())
}

fn xdp(options: &Options) -> Result<Option<XdpPlan>> {
    ensure!(
        options.xdp.is_none() || options.backend == Kind::Tap,
        "--xdp is for --backend tap"
    );
    ensure!(
        options.xdp.is_none() || options.size <= MAX_PLAIN,
        "--xdp is for frames that need no segmentation: --size {MAX_PLAIN} at most"
    );
    let redirect = options.xdp == Some(Xdp::Redirect);
    ensure!(
        redirect == options.via.is_some(),
        "--xdp redirect and --via go together"
    );
    Ok(match (options.xdp, &options.via, &options.wire) {
        (None, _, _) => None,
        (Some(Xdp::Pass), _, _) => Some(XdpPlan::Pass),
        (Some(Xdp::Drop), _, _) => Some(XdpPlan::Drop),
        (Some(Xdp::Redirect), Some(via), Some(wire)) => Some(XdpPlan::Redirect {
            via: via.clone(),
            wire: wire.clone(),
        }),
        (Some(Xdp::Redirect), _, _) => bail!("--via needs --wire"),
    })
}

/// Bytes of the largest frame that an interface of this kind takes without segmentation.
pub fn max_plain(kind: Kind) -> usize {
    if kind == Kind::Tun {
        MAX_PLAIN - 14
    } else {
        MAX_PLAIN
    }
}

/// The guest, as an interface that has an address of its own lets it be.
///
/// # Errors
///
/// ENOENT if there is no such interface.
pub fn guest(options: &Options) -> Result<End> {
    Ok(match (options.backend, &options.ifname) {
        // What comes in for another address is not the interface's.
        (Kind::Macvtap | Kind::Ipvtap, Some(name)) => End {
            mac: netdev::address(name)?,
            ..GUEST
        },
        _ => GUEST,
    })
}

/// How many frames may be under way to or from the wire without being lost: veth and backlog have queues as well.
fn window(options: &BackendOptions) -> u64 {
    /// Half of VETH_RING_SIZE.
    const VETH_RING: u64 = 128;
    /// Half of net.core.netdev_max_backlog, as it is by default.
    const BACKLOG: u64 = 500;
    match (&options.xdp, options.kind) {
        // The ring of the tap at the other end.
        _ if options.tunnel => BACKLOG,
        (Some(XdpPlan::Redirect { .. }), _) => VETH_RING,
        (_, Kind::Tap | Kind::Tun) => u64::MAX,
        (_, Kind::Macvtap | Kind::Ipvtap | Kind::Packet) => BACKLOG,
    }
}

/// The backend itself.
#[derive(Debug)]
enum Socket {
    Tap(Tap),
    Packet { socket: PacketSocket, name: String },
}

/// What is behind the rings.
#[derive(Debug)]
pub struct Backend {
    socket: Socket,
    window: u64,
    _programs: Vec<XdpLink>,
}

impl Backend {
    /// Opens it, up and ready, for a device with `features`.
    ///
    /// # Errors
    ///
    /// The first call that failed, and what to do about it where that is known.
    pub fn open(options: &BackendOptions, features: u128) -> Result<Self> {
        // Without a header on the socket, vhost makes and strips it.
        let no_header = features::has(features, features::ANY_LAYOUT);
        let header = (!no_header).then_some(features::net_header_size(features));
        let name = options.ifname.as_deref().unwrap_or("");
        let socket = if options.kind == Kind::Packet {
            open_packet(options, header, name)?
        } else {
            let tap = open_tap(options, header, name);
            let why = "A tap needs the tun module and CAP_NET_ADMIN";
            Socket::Tap(tap.map_err(|err| anyhow!("{err}. {why}"))?)
        };
        let mut backend = Self {
            socket,
            window: window(options),
            _programs: Vec::new(),
        };
        let name = backend.name();
        netdev::disable_ipv6(name)?;
        if let Some(mtu) = options.mtu {
            netdev::set_mtu(name, mtu)?;
        }
        netdev::set_up(name)?;
        if let Some(plan) = &options.xdp {
            backend._programs = attach_programs(name, plan).context("--xdp")?;
        }
        Ok(backend)
    }

    /// Name of its interface.
    pub fn name(&self) -> &str {
        match &self.socket {
            Socket::Tap(tap) => tap.name(),
            Socket::Packet { name, .. } => name,
        }
    }

    /// How many frames of `size` bytes may be under way to the wire.
    pub fn tx_window(&self, size: usize) -> u64 {
        self.window.min(wire::frames_that_fit(size))
    }

    /// How many frames of `size` bytes may be under way from the wire.
    ///
    /// # Errors
    ///
    /// ENOENT if the interface is gone.
    pub fn rx_window(&self, size: usize) -> Result<u64> {
        let ring = match &self.socket {
            // It drops what its ring has no room for. Half of it leaves room for what others send.
            Socket::Tap(tap) => (netdev::tx_queue_len(tap.name())? / 2).max(1),
            Socket::Packet { .. } => u64::MAX,
        };
        Ok(ring.min(self.tx_window(size)))
    }

    /// Detaches the queue from its interface, or attaches it again.
    ///
    /// # Errors
    ///
    /// EINVAL if it has no queue that can be detached.
    pub fn set_attached(&self, attached: bool) -> vhost_uapi::Result {
        match &self.socket {
            Socket::Tap(tap) => tap.set_attached(attached),
            Socket::Packet { .. } => Ok(()),
        }
    }
}

impl AsFd for Backend {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.socket {
            Socket::Tap(tap) => tap.as_fd(),
            Socket::Packet { socket, .. } => socket.as_fd(),
        }
    }
}

fn open_tap(options: &BackendOptions, header: Option<u32>, name: &str) -> vhost_uapi::Result<Tap> {
    let tap_options = TapOptions {
        flags: TunFlags {
            bare: options.kind == Kind::Tun,
            multi_queue: options.multi_queue,
            backpressure: options.backpressure,
        },
        vnet_hdr_size: header,
        sndbuf: options.sndbuf.unwrap_or(i32::MAX),
        offload: if options.tunnel {
            Offload::Tunnel
        } else {
            Offload::Tcp
        },
    };
    match options.kind {
        Kind::Macvtap | Kind::Ipvtap => Tap::open_macvtap(name, &tap_options),
        Kind::Tap | Kind::Tun | Kind::Packet => Tap::create(name, &tap_options),
    }
}

fn open_packet(options: &BackendOptions, header: Option<u32>, name: &str) -> Result<Socket> {
    let packet_options = PacketOptions {
        vnet_hdr_size: header,
        bypass: false,
    };
    let socket = PacketSocket::open_with(netdev::index(name)?, options.protocol, packet_options)?;
    socket.set_rcvbuf(SOCKET_BUFFER)?;
    if let Some(bytes) = options.sndbuf {
        socket.set_sndbuf(bytes)?;
    }
    let name = name.to_owned();
    Ok(Socket::Packet { socket, name })
}

/// Attaches what `plan` needs. A veth takes redirected frames only while its peer has a program too.
fn attach_programs(tap: &str, plan: &XdpPlan) -> Result<Vec<XdpLink>> {
    let attach = |name: &str, action| -> Result<XdpLink> {
        XdpLink::attach(netdev::index(name)?, action).with_context(|| name.to_owned())
    };
    Ok(match plan {
        XdpPlan::Pass => vec![attach(tap, XdpAction::Pass)?],
        XdpPlan::Drop => vec![attach(tap, XdpAction::Drop)?],
        XdpPlan::Redirect { via, wire } => vec![
            attach(wire, XdpAction::Pass)?,
            attach(via, XdpAction::Redirect(netdev::index(tap)?))?,
            attach(tap, XdpAction::Redirect(netdev::index(via)?))?,
        ],
    })
}
