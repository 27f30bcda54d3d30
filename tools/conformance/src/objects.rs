// SPDX-License-Identifier: GPL-2.0

//! Files of all kinds, for arguments that name one.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::net::{TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{ensure, Result};
use nix::fcntl::{fcntl, FcntlArg};
use nix::sys::epoll::{Epoll, EpollCreateFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{memfd_create, MFdFlags};
use nix::sys::socket::{socket, AddressFamily, SockFlag, SockType};
use vhost_uapi::{Offload, Tap, TapOptions, TunFlags};

/// What is behind a file descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // Each is what its name says.
pub enum Kind {
    /// As it is: -1, or what is not open.
    Number(i32),
    /// The device that is called.
    Itself,
    /// Another device of the same driver.
    OtherDevice,
    Null,
    Folder,
    Pipe,
    Memfd,
    Epoll,
    /// One of several.
    Event(u8),
    /// Its counter is not 0.
    EventWithCount,
    EventSemaphore,
    Udp,
    Tcp,
    Unix,
    RawIp,
    PacketRaw,
    PacketDatagram,
    /// Without an interface.
    TunUnset,
    /// `IFF_TUN`.
    Tun,
    /// A tap, one of several.
    Tap(u8),
    /// One with a virtio-net header.
    TapWithHeader,
    TapDetached,
    TapBackpressure,
    /// Its interface was deleted.
    TapGone,
    Macvtap,
    /// `O_PATH` of /dev/net/tun.
    PathOnly,
}

/// Every kind, under a name.
pub const KINDS: &[(&str, Kind)] = &[
    ("-1", Kind::Number(-1)),
    ("-2", Kind::Number(-2)),
    ("the least int", Kind::Number(i32::MIN)),
    ("the largest int", Kind::Number(i32::MAX)),
    ("not open", Kind::Number(9999)),
    ("the device", Kind::Itself),
    ("another device", Kind::OtherDevice),
    ("/dev/null", Kind::Null),
    ("a folder", Kind::Folder),
    ("a pipe", Kind::Pipe),
    ("a memfd", Kind::Memfd),
    ("an epoll", Kind::Epoll),
    ("an eventfd", Kind::Event(0)),
    ("an eventfd with a count", Kind::EventWithCount),
    ("an eventfd semaphore", Kind::EventSemaphore),
    ("a UDP socket", Kind::Udp),
    ("a TCP socket", Kind::Tcp),
    ("a UNIX socket", Kind::Unix),
    ("a raw IP socket", Kind::RawIp),
    ("a raw packet socket", Kind::PacketRaw),
    ("a packet datagram socket", Kind::PacketDatagram),
    ("a tun without interface", Kind::TunUnset),
    ("a tun", Kind::Tun),
    ("a tap", Kind::Tap(1)),
    ("a tap with a header", Kind::TapWithHeader),
    ("a detached tap", Kind::TapDetached),
    ("a tap with backpressure", Kind::TapBackpressure),
    ("a deleted tap", Kind::TapGone),
    ("a macvtap", Kind::Macvtap),
    ("O_PATH", Kind::PathOnly),
];

/// The files of a process. Each is opened when it is first asked for.
#[derive(Debug)]
pub struct Objects {
    node: PathBuf,
    open: HashMap<Kind, OwnedFd>,
}

impl Objects {
    /// For devices of this node.
    pub fn new(node: PathBuf) -> Self {
        let open = HashMap::new();
        Self { node, open }
    }

    /// A file descriptor of this kind.
    ///
    /// # Errors
    ///
    /// It cannot be made.
    pub fn number(&mut self, kind: Kind, device: BorrowedFd<'_>) -> Result<i32> {
        match kind {
            Kind::Number(number) => return Ok(number),
            Kind::Itself => return Ok(device.as_raw_fd()),
            _ => (),
        }
        if let Some(fd) = self.open.get(&kind) {
            return Ok(fd.as_raw_fd());
        }
        let fd = self.make(kind)?;
        let number = fd.as_raw_fd();
        self.open.insert(kind, fd);
        Ok(number)
    }

    fn make(&self, kind: Kind) -> Result<OwnedFd> {
        let node = |path: &str| OpenOptions::new().read(true).write(true).open(path);
        Ok(match kind {
            // Not reached: these are no objects.
            Kind::Number(_) | Kind::Itself => File::open("/dev/null")?.into(),
            Kind::OtherDevice => OpenOptions::new()
                .read(true)
                .write(true)
                .open(&self.node)?
                .into(),
            Kind::Null => node("/dev/null")?.into(),
            Kind::Folder => File::open("/")?.into(),
            Kind::Pipe => nix::unistd::pipe()?.0,
            Kind::Memfd => memfd_create("object", MFdFlags::MFD_CLOEXEC)?,
            Kind::Epoll => Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?.0,
            Kind::Event(_) => event(0, EfdFlags::empty())?,
            Kind::EventWithCount => event(5, EfdFlags::empty())?,
            Kind::EventSemaphore => event(1, EfdFlags::EFD_SEMAPHORE)?,
            Kind::Udp => UdpSocket::bind("127.0.0.1:0")?.into(),
            Kind::Tcp => TcpListener::bind("127.0.0.1:0")?.into(),
            Kind::Unix => UnixDatagram::unbound()?.into(),
            Kind::RawIp => plain_socket(AddressFamily::Inet, SockType::Raw)?,
            Kind::PacketRaw => plain_socket(AddressFamily::Packet, SockType::Raw)?,
            Kind::PacketDatagram => plain_socket(AddressFamily::Packet, SockType::Datagram)?,
            Kind::TunUnset => node("/dev/net/tun")?.into(),
            Kind::PathOnly => OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_PATH)
                .open("/dev/net/tun")?
                .into(),
            kind => tap(kind)?.into(),
        })
    }
}

fn event(count: u32, flags: EfdFlags) -> Result<OwnedFd> {
    let flags = flags | EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
    Ok(EventFd::from_value_and_flags(count, flags)?.into())
}

fn plain_socket(family: AddressFamily, kind: SockType) -> Result<OwnedFd> {
    // A raw IP socket must be for some protocol.
    let protocol = (family == AddressFamily::Inet).then_some(nix::sys::socket::SockProtocol::Udp);
    Ok(socket(family, kind, SockFlag::SOCK_CLOEXEC, protocol)?)
}

/// Options of a tap without a header, which takes batches.
pub const PLAIN: TapOptions = TapOptions {
    flags: TunFlags {
        bare: false,
        multi_queue: false,
        backpressure: false,
    },
    vnet_hdr_size: None,
    sndbuf: i32::MAX,
    offload: Offload::None,
};

fn tap(kind: Kind) -> Result<Tap> {
    let with_header = TapOptions {
        vnet_hdr_size: Some(12),
        ..PLAIN
    };
    let flags = |flags| TapOptions { flags, ..PLAIN };
    let usual = TunFlags::default();
    Ok(match kind {
        Kind::Tun => Tap::create(
            "",
            &flags(TunFlags {
                bare: true,
                ..usual
            }),
        )?,
        Kind::TapBackpressure => {
            let options = flags(TunFlags {
                backpressure: true,
                ..usual
            });
            Tap::create("", &options)?
        }
        Kind::TapDetached => {
            let options = flags(TunFlags {
                multi_queue: true,
                ..usual
            });
            let tap = Tap::create("", &options)?;
            tap.set_attached(false)?;
            tap
        }
        Kind::TapGone => {
            let tap = Tap::create("", &PLAIN)?;
            let deleted = Command::new("ip")
                .args(["link", "del", tap.name()])
                .status()?;
            ensure!(deleted.success(), "ip cannot delete {}", tap.name());
            tap
        }
        Kind::Macvtap => Tap::open_macvtap(MACVTAP, &with_header)?,
        Kind::TapWithHeader => Tap::create("", &with_header)?,
        _ => Tap::create("", &PLAIN)?,
    })
}

/// The macvtap that whoever runs this has made.
const MACVTAP: &str = "mvt0";

/// Makes reads of a file return at once.
///
/// # Errors
///
/// Those of fcntl(2).
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> Result<()> {
    let flags = fcntl(fd, FcntlArg::F_GETFL)?;
    let flags = nix::fcntl::OFlag::from_bits_retain(flags) | nix::fcntl::OFlag::O_NONBLOCK;
    fcntl(fd, FcntlArg::F_SETFL(flags))?;
    Ok(())
}
