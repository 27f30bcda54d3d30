// SPDX-License-Identifier: GPL-2.0

//! Taps: made through `/dev/net/tun`, or the node of a macvtap that exists.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::{request_code_read, request_code_write};

use crate::error::{Context, Result};
use crate::netdev;
use crate::sys::{self, IfReq};
mod request {
    use super::{request_code_read, request_code_write};

    pub(super) const SET_IFF: u64 = request_code_write!(b'T', 202, 4);
    pub(super) const SET_OFFLOAD: u64 = request_code_write!(b'T', 208, 4);
    pub(super) const GET_IFF: u64 = request_code_read!(b'T', 210, 4);
    pub(super) const SET_QUEUE: u64 = request_code_write!(b'T', 217, 4);
    pub(super) const SET_SNDBUF: u64 = request_code_write!(b'T', 212, 4);
    pub(super) const SET_VNET_HDR_SZ: u64 = request_code_write!(b'T', 216, 4);
}

const IFF_TUN: u16 = 0x0001;
const IFF_TAP: u16 = 0x0002;
const IFF_BACKPRESSURE: u16 = 0x0080;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_ATTACH_QUEUE: u16 = 0x0200;
const IFF_DETACH_QUEUE: u16 = 0x0400;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;

/// What a tap may hand up without doing it itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offload {
    /// Nothing: it segments and checksums.
    None,
    /// Checksums and TCP segmentation are the reader's.
    Tcp,
    /// Those of TCP in UDP tunnels as well.
    Tunnel,
}

/// What an interface of `/dev/net/tun` is like, besides what all options of a tap say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TunFlags {
    /// Packets have no Ethernet header (`IFF_TUN`).
    pub bare: bool,
    /// Queues can be detached (`IFF_MULTI_QUEUE`).
    pub multi_queue: bool,
    /// The interface waits while the ring is full, in place of dropping (`IFF_BACKPRESSURE`).
    pub backpressure: bool,
}

impl TunFlags {
    fn bits(self) -> u16 {
        let kind = if self.bare { IFF_TUN } else { IFF_TAP };
        let set = |wanted, bit| if wanted { bit } else { 0 };
        kind | set(self.multi_queue, IFF_MULTI_QUEUE) | set(self.backpressure, IFF_BACKPRESSURE)
    }
}

/// How to open a tap.
#[derive(Clone, Debug)]
pub struct TapOptions {
    /// Of what kind it is. A macvtap takes no flags.
    pub flags: TunFlags,
    /// Bytes of the virtio-net header in front of each packet; nothing for a tap without one.
    pub vnet_hdr_size: Option<u32>,
    /// Send buffer in bytes; `i32::MAX` is unlimited, and makes vhost-net hand packets over in batches.
    pub sndbuf: i32,
    /// What the tap may hand up unfinished. Only with a header, which says so.
    pub offload: Offload,
}

/// An open tap. The interface of one that was made here goes away with it.
#[derive(Debug)]
pub struct Tap {
    file: File,
    name: String,
}

impl Tap {
    /// Makes the interface `name`, or attaches to it if it exists and persists; an empty name is the kernel's to choose.
    ///
    /// # Errors
    ///
    /// ENOENT without the tun module, EPERM without CAP_NET_ADMIN, EBUSY if another has the interface, EINVAL for a header
    /// shorter than 10 bytes, for an interface of another kind, and for a flag that the kernel does not know.
    pub fn create(name: &str, options: &TapOptions) -> Result<Self> {
        let file = open("/dev/net/tun")?;
        let name = configure(&file, name, options)?;
        Ok(Self { file, name })
    }

    /// Opens the node of the macvtap (or ipvtap) interface `name`.
    ///
    /// # Errors
    ///
    /// ENOENT if there is no such interface, or no node for it.
    pub fn open_macvtap(name: &str, options: &TapOptions) -> Result<Self> {
        let file = open(&format!("/dev/tap{}", netdev::index(name)?))?;
        configure(&file, name, options)?;
        let name = name.to_owned();
        Ok(Self { file, name })
    }

    /// Name of the interface.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `TUNSETQUEUE`: attaches the queue to its interface, or detaches it.
    ///
    /// # Errors
    ///
    /// EINVAL if that is how it is already, or it was not made with [`TunFlags::multi_queue`].
    pub fn set_attached(&self, attached: bool) -> Result {
        let flag = if attached {
            IFF_ATTACH_QUEUE
        } else {
            IFF_DETACH_QUEUE
        };
        let mut ifreq = IfReq::default();
        ifreq.flags = flag.to_ne_bytes();
        sys::ioctl(self.as_fd(), request::SET_QUEUE, &mut ifreq).context("TUNSETQUEUE")?;
        Ok(())
    }

    /// Sends a header and a frame into the interface.
    ///
    /// # Errors
    ///
    /// Those of write(2): EINVAL for a header that does not fit the frame, EIO while the interface is down.
    pub fn send(&self, frame: &[u8]) -> Result {
        (&self.file).write_all(frame).context("write to the tap")
    }

    /// Receives a header and a frame that the interface was to send, if one is there. Returns their length.
    ///
    /// # Errors
    ///
    /// Those of read(2), apart from EAGAIN.
    pub fn receive(&self, frame: &mut [u8]) -> Result<Option<usize>> {
        match (&self.file).read(frame) {
            Err(err) if err.kind() == ErrorKind::WouldBlock => Ok(None),
            result => result.map(Some).context("read from the tap"),
        }
    }

    /// `TUNSETSNDBUF`.
    ///
    /// # Errors
    ///
    /// EINVAL if `bytes` is not above 0.
    pub fn set_sndbuf(&self, mut bytes: i32) -> Result {
        sys::ioctl(self.as_fd(), request::SET_SNDBUF, &mut bytes).context("TUNSETSNDBUF")?;
        Ok(())
    }
}

impl From<Tap> for OwnedFd {
    fn from(tap: Tap) -> Self {
        tap.file.into()
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn open(node: &str) -> Result<File> {
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(Path::new(node));
    opened.context(&format!("open {node}"))
}

/// Gives the tap its options; returns its name.
fn configure(file: &File, name: &str, options: &TapOptions) -> Result<String> {
    let mut ifreq = IfReq::named(name)?;
    let header = options.vnet_hdr_size.map_or(0, |_| IFF_VNET_HDR);
    let flags = options.flags.bits() | IFF_NO_PI | header;
    ifreq.flags = flags.to_ne_bytes();
    let call = format!("TUNSETIFF {name}");
    sys::ioctl(file.as_fd(), request::SET_IFF, &mut ifreq).context(call.trim_end())?;

    let set =
        |request, mut value: u32, call| sys::ioctl(file.as_fd(), request, &mut value).context(call);
    if let Some(size) = options.vnet_hdr_size {
        set(request::SET_VNET_HDR_SZ, size, "TUNSETVNETHDRSZ")?;
        set_offload(file, options.offload)?;
    }
    // CAST: The bits of an int.
    set(request::SET_SNDBUF, options.sndbuf as u32, "TUNSETSNDBUF")?;

    sys::ioctl(file.as_fd(), request::GET_IFF, &mut ifreq).context("TUNGETIFF")?;
    let end = ifreq
        .name
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(ifreq.name.len());
    Ok(String::from_utf8_lossy(&ifreq.name[..end]).into_owned())
}

/// `TUNSETOFFLOAD` takes its bits as the argument itself.
fn set_offload(file: &File, offload: Offload) -> Result {
    const TUN_F_CSUM: u16 = 0x01;
    const TUN_F_TSO4: u16 = 0x02;
    const TUN_F_TSO6: u16 = 0x04;
    const TUN_F_UDP_TUNNEL_GSO: u16 = 0x80;
    let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;
    let bits = match offload {
        Offload::None => 0,
        Offload::Tcp => tcp,
        Offload::Tunnel => tcp | TUN_F_UDP_TUNNEL_GSO,
    };
    sys::ioctl_value(file.as_fd(), request::SET_OFFLOAD, bits).context("TUNSETOFFLOAD")?;
    Ok(())
}
