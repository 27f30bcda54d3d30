// SPDX-License-Identifier: GPL-2.0

//! An open vhost-net node, one method an ioctl.
//!
//! The errors are the kernel's; which errno means what stands in `Documentation/abi.rst`.

use nix::errno::Errno;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use crate::error::{Context, Error, Result};
use crate::numbers;
use crate::sys::{self, Plain};

/// One region of the memory table (`struct vhost_memory_region`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryRegion {
    /// Where the driver's addresses of this region begin.
    pub guest_phys_addr: u64,
    /// Bytes.
    pub memory_size: u64,
    /// Where the region begins in the owner's address space.
    pub userspace_addr: u64,
}

/// Where a ring is, in the owner's address space (`struct vhost_vring_addr`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VringAddr {
    /// 1 (`VHOST_VRING_F_LOG` is bit 0) to log writes to the used ring.
    pub flags: u32,
    /// The descriptor table.
    pub desc: u64,
    /// The used ring.
    pub used: u64,
    /// The avail ring.
    pub avail: u64,
    /// Address that the used ring is logged at.
    pub log: u64,
}

/// An open vhost-net device.
#[derive(Debug)]
pub struct VhostNet {
    file: File,
}

impl VhostNet {
    /// Opens a node, for reading and writing if `write`.
    ///
    /// # Errors
    ///
    /// Those of open(2); the message names the node.
    pub fn open(node: &Path, write: bool) -> Result<Self> {
        let opened = OpenOptions::new().read(true).write(write).open(node);
        let file = opened.context(&format!("open {}", node.display()))?;
        Ok(Self { file })
    }

    /// Closes the device while others may be in a call on it. What comes later finds `/dev/null` in its place.
    ///
    /// # Errors
    ///
    /// Those of open(2) and dup3(2).
    pub fn close_early(&self) -> Result {
        let null = File::open("/dev/null").context("open /dev/null")?;
        sys::replace(self.as_fd(), null.as_fd()).context("dup3")
    }

    /// The open file.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn ioctl<T: Plain>(&self, request: u64, arg: &mut T) -> Result {
        let result = sys::ioctl(self.as_fd(), request, arg);
        result.map(|_| ()).context(numbers::name(request))
    }

    fn get<T: Plain>(&self, request: u64) -> Result<T> {
        let mut value = T::default();
        self.ioctl(request, &mut value)?;
        Ok(value)
    }

    fn set<T: Plain>(&self, request: u64, mut value: T) -> Result {
        self.ioctl(request, &mut value)
    }

    fn set_vring(&self, request: u64, index: u32, num: u32) -> Result {
        self.set(request, [index, num])
    }

    fn get_vring(&self, request: u64, index: u32) -> Result<u32> {
        let mut state = [index, 0];
        self.ioctl(request, &mut state)?;
        Ok(state[1])
    }

    fn set_file(&self, request: u64, index: u32, fd: Option<BorrowedFd<'_>>) -> Result {
        let fd = fd.map_or(-1, |fd| fd.as_raw_fd());
        // CAST: The bits of an int, as the structure has it.
        self.set(request, [index, fd as u32])
    }

    /// `VHOST_GET_FEATURES`: the low 64 feature bits that are offered.
    pub fn features(&self) -> Result<u64> {
        self.get(numbers::GET_FEATURES)
    }

    /// `VHOST_SET_FEATURES`.
    pub fn set_features(&self, features: u64) -> Result {
        self.set(numbers::SET_FEATURES, features)
    }

    /// `VHOST_GET_FEATURES_ARRAY` with room for two words.
    pub fn features_array(&self) -> Result<[u64; 2]> {
        let mut array = [2, 0, 0];
        self.ioctl(numbers::GET_FEATURES_ARRAY, &mut array)?;
        Ok([array[1], array[2]])
    }

    /// `VHOST_SET_FEATURES_ARRAY`.
    pub fn set_features_array(&self, words: &[u64]) -> Result {
        let mut array = vec![words.len() as u64]; // CAST: Widens.
        array.extend_from_slice(words);
        self.read_words(numbers::SET_FEATURES_ARRAY, &array)
    }

    /// One of the calls on feature arrays, on `array` where it is: the words behind the first one, which becomes their count.
    ///
    /// # Errors
    ///
    /// EINVAL for another request, or an array without a word.
    pub fn features_array_in_place(&self, request: u64, array: &mut [u64]) -> Result {
        let count = array.len().saturating_sub(1) as u64; // CAST: Widens.
        if let Some(first) = array.first_mut() {
            *first = count;
        }
        let result = sys::ioctl_features_array(self.as_fd(), request, array);
        result.map(|_| ()).context(numbers::name(request))
    }

    fn read_words(&self, request: u64, words: &[u64]) -> Result {
        let result = sys::ioctl_read_words(self.as_fd(), request, words);
        result.map(|_| ()).context(numbers::name(request))
    }

    /// `VHOST_GET_BACKEND_FEATURES`.
    pub fn backend_features(&self) -> Result<u64> {
        self.get(numbers::GET_BACKEND_FEATURES)
    }

    /// `VHOST_SET_BACKEND_FEATURES`.
    pub fn set_backend_features(&self, features: u64) -> Result {
        self.set(numbers::SET_BACKEND_FEATURES, features)
    }

    /// `VHOST_SET_OWNER`: this process's memory becomes the device's, and a worker starts.
    pub fn set_owner(&self) -> Result {
        self.without_argument(numbers::SET_OWNER)
    }

    /// `VHOST_RESET_OWNER`: stops everything and forgets all that was set.
    pub fn reset_owner(&self) -> Result {
        self.without_argument(numbers::RESET_OWNER)
    }

    fn without_argument(&self, request: u64) -> Result {
        let result = sys::ioctl_value(self.as_fd(), request, 0);
        result.map(|_| ()).context(numbers::name(request))
    }

    /// `VHOST_SET_MEM_TABLE`.
    pub fn set_mem_table(&self, regions: &[MemoryRegion]) -> Result {
        let too_many = |_| Error::new("VHOST_SET_MEM_TABLE", Errno::E2BIG);
        let count = u32::try_from(regions.len()).map_err(too_many)?;
        // `nregions` and `padding` in one word, then four words a region, the last without a meaning.
        let mut table = vec![u64::from_ne_bytes({
            let mut header = [0; 8];
            header[..4].copy_from_slice(&count.to_ne_bytes());
            header
        })];
        for region in regions {
            table.extend([
                region.guest_phys_addr,
                region.memory_size,
                region.userspace_addr,
                0,
            ]);
        }
        self.read_words(numbers::SET_MEM_TABLE, &table)
    }

    /// `VHOST_SET_LOG_BASE`: address of the dirty bitmap in the owner's address space.
    pub fn set_log_base(&self, base: u64) -> Result {
        self.set(numbers::SET_LOG_BASE, base)
    }

    /// `VHOST_SET_LOG_FD`; nothing unbinds.
    pub fn set_log_fd(&self, fd: Option<BorrowedFd<'_>>) -> Result {
        self.set(numbers::SET_LOG_FD, fd.map_or(-1, |fd| fd.as_raw_fd()))
    }

    /// `VHOST_SET_VRING_NUM`: descriptors of a ring.
    pub fn set_vring_num(&self, index: u32, num: u32) -> Result {
        self.set_vring(numbers::SET_VRING_NUM, index, num)
    }

    /// `VHOST_SET_VRING_ADDR`.
    pub fn set_vring_addr(&self, index: u32, addr: &VringAddr) -> Result {
        // `index` and `flags` in one word, then the addresses.
        let mut first = [0; 8];
        first[..4].copy_from_slice(&index.to_ne_bytes());
        first[4..].copy_from_slice(&addr.flags.to_ne_bytes());
        let first = u64::from_ne_bytes(first);
        let words = [first, addr.desc, addr.used, addr.avail, addr.log];
        self.set(numbers::SET_VRING_ADDR, words)
    }

    /// `VHOST_SET_VRING_BASE`: avail index that the device goes on from.
    pub fn set_vring_base(&self, index: u32, base: u32) -> Result {
        self.set_vring(numbers::SET_VRING_BASE, index, base)
    }

    /// `VHOST_GET_VRING_BASE`.
    pub fn vring_base(&self, index: u32) -> Result<u32> {
        self.get_vring(numbers::GET_VRING_BASE, index)
    }

    /// `VHOST_SET_VRING_ENDIAN`: 1 for a ring that is big-endian.
    pub fn set_vring_endian(&self, index: u32, big: u32) -> Result {
        self.set_vring(numbers::SET_VRING_ENDIAN, index, big)
    }

    /// `VHOST_SET_VRING_KICK`; nothing unbinds.
    pub fn set_vring_kick(&self, index: u32, fd: Option<BorrowedFd<'_>>) -> Result {
        self.set_file(numbers::SET_VRING_KICK, index, fd)
    }

    /// `VHOST_SET_VRING_CALL`; nothing unbinds.
    pub fn set_vring_call(&self, index: u32, fd: Option<BorrowedFd<'_>>) -> Result {
        self.set_file(numbers::SET_VRING_CALL, index, fd)
    }

    /// `VHOST_SET_VRING_ERR`; nothing unbinds.
    pub fn set_vring_err(&self, index: u32, fd: Option<BorrowedFd<'_>>) -> Result {
        self.set_file(numbers::SET_VRING_ERR, index, fd)
    }

    /// `VHOST_SET_VRING_BUSYLOOP_TIMEOUT`, in microseconds; 0 is off.
    pub fn set_vring_busyloop_timeout(&self, index: u32, micros: u32) -> Result {
        self.set_vring(numbers::SET_VRING_BUSYLOOP_TIMEOUT, index, micros)
    }

    /// `VHOST_GET_VRING_BUSYLOOP_TIMEOUT`, in microseconds.
    pub fn vring_busyloop_timeout(&self, index: u32) -> Result<u32> {
        self.get_vring(numbers::GET_VRING_BUSYLOOP_TIMEOUT, index)
    }

    /// `VHOST_NET_SET_BACKEND`: attaches a tap or packet socket to a ring; nothing detaches.
    pub fn set_backend(&self, index: u32, fd: Option<BorrowedFd<'_>>) -> Result {
        self.set_file(numbers::NET_SET_BACKEND, index, fd)
    }

    /// `VHOST_SET_FORK_FROM_OWNER`: 0 for a kernel thread as worker, 1 for a thread of the owner.
    pub fn set_fork_from_owner(&self, mode: u8) -> Result {
        self.set(numbers::SET_FORK_FROM_OWNER, mode)
    }

    /// `VHOST_GET_FORK_FROM_OWNER`.
    pub fn fork_from_owner(&self) -> Result<u8> {
        self.get(numbers::GET_FORK_FROM_OWNER)
    }
}

impl AsFd for VhostNet {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl From<OwnedFd> for VhostNet {
    fn from(fd: OwnedFd) -> Self {
        Self {
            file: File::from(fd),
        }
    }
}
