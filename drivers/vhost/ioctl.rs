// SPDX-License-Identifier: GPL-2.0

//! The ioctl numbers of `include/uapi/linux/vhost.h` and of our own
//! `include/uapi/linux/vhost_net_rs.h`, and their arguments.
//!
//! An argument is copied once, as integers, and decoded from the copy.

use crate::kapi::task::Kind;
use kernel::{
    ioctl::{_IO, _IOR, _IOW, _IOWR},
    prelude::*,
    transmute::{AsBytes, FromBytes},
    uaccess::{UserPtr, UserSlice, UserSliceReader},
};

/// The type byte of the vhost ioctls, `VHOST_VIRTIO`.
const VHOST: u32 = 0xaf;

/// A `struct vhost_vring_state` or `struct vhost_vring_file`, as it lies in
/// memory.
type Pair = [u32; 2];

/// A `struct vhost_vring_addr`, as it lies in memory.
type RawAddr = [u64; 5];

/// A `struct vhost_memory_region`, as it lies in memory.
pub(crate) type RawRegion = [u64; 4];

pub(crate) const GET_FEATURES: u32 = _IOR::<u64>(VHOST, 0x00);
pub(crate) const SET_FEATURES: u32 = _IOW::<u64>(VHOST, 0x00);
pub(crate) const SET_OWNER: u32 = _IO(VHOST, 0x01);
pub(crate) const RESET_OWNER: u32 = _IO(VHOST, 0x02);
pub(crate) const SET_MEM_TABLE: u32 = _IOW::<u64>(VHOST, 0x03);
pub(crate) const SET_LOG_BASE: u32 = _IOW::<u64>(VHOST, 0x04);
pub(crate) const SET_LOG_FD: u32 = _IOW::<i32>(VHOST, 0x07);
pub(crate) const SET_VRING_NUM: u32 = _IOW::<Pair>(VHOST, 0x10);
pub(crate) const SET_VRING_ADDR: u32 = _IOW::<RawAddr>(VHOST, 0x11);
pub(crate) const SET_VRING_BASE: u32 = _IOW::<Pair>(VHOST, 0x12);
pub(crate) const GET_VRING_BASE: u32 = _IOWR::<Pair>(VHOST, 0x12);
pub(crate) const SET_VRING_KICK: u32 = _IOW::<Pair>(VHOST, 0x20);
pub(crate) const SET_VRING_CALL: u32 = _IOW::<Pair>(VHOST, 0x21);
pub(crate) const SET_VRING_ERR: u32 = _IOW::<Pair>(VHOST, 0x22);
pub(crate) const SET_VRING_BUSYLOOP_TIMEOUT: u32 = _IOW::<Pair>(VHOST, 0x23);
pub(crate) const GET_VRING_BUSYLOOP_TIMEOUT: u32 = _IOW::<Pair>(VHOST, 0x24);
pub(crate) const SET_BACKEND_FEATURES: u32 = _IOW::<u64>(VHOST, 0x25);
pub(crate) const GET_BACKEND_FEATURES: u32 = _IOR::<u64>(VHOST, 0x26);
pub(crate) const NET_SET_BACKEND: u32 = _IOW::<Pair>(VHOST, 0x30);
pub(crate) const GET_FEATURES_ARRAY: u32 = _IOR::<u64>(VHOST, 0x83);
pub(crate) const SET_FEATURES_ARRAY: u32 = _IOW::<u64>(VHOST, 0x83);
pub(crate) const SET_FORK_FROM_OWNER: u32 = _IOW::<u8>(VHOST, 0x84);
pub(crate) const GET_FORK_FROM_OWNER: u32 = _IOR::<u8>(VHOST, 0x85);

/// The type byte of what `include/uapi/linux/vhost_net_rs.h` adds.
const VHOST_NET_RS: u32 = 0xb9;

/// A `struct vhost_net_rs_poll`, as it lies in memory.
pub(crate) type RawPoll = [u32; 8];

pub(crate) const GET_POLL: u32 = _IOWR::<RawPoll>(VHOST_NET_RS, 0x01);
pub(crate) const SET_POLL: u32 = _IOW::<RawPoll>(VHOST_NET_RS, 0x02);

/// The worker is a kernel thread, `VHOST_FORK_OWNER_KTHREAD`.
const FORK_KERNEL: u8 = 0;
/// The worker is a thread of the owner, `VHOST_FORK_OWNER_TASK`.
const FORK_OWNER: u8 = 1;

/// The file descriptor that unbinds, `VHOST_FILE_UNBIND`.
const UNBIND: i32 = -1;

/// Copies a value from the caller.
///
/// # Errors
///
/// `EFAULT` if any byte of it cannot be read.
pub(crate) fn read<T: FromBytes>(arg: usize) -> Result<T> {
    reader(arg, size_of::<T>()).read()
}

/// Copies a value to the caller.
///
/// # Errors
///
/// `EFAULT` if any byte of it cannot be written.
pub(crate) fn write<T: AsBytes>(arg: usize, value: &T) -> Result {
    UserSlice::new(UserPtr::from_addr(arg), size_of::<T>())
        .writer()
        .write(value)
}

/// Reads `len` bytes from `arg` on, piece by piece.
pub(crate) fn reader(arg: usize, len: usize) -> UserSliceReader {
    UserSlice::new(UserPtr::from_addr(arg), len).reader()
}

/// Copies the `num` of a `struct vhost_vring_state`.
///
/// Its index was read before; C, too, reads it twice and uses the first.
pub(crate) fn read_state(arg: usize) -> Result<u32> {
    let [_, num] = read::<Pair>(arg)?;
    Ok(num)
}

/// Copies a `struct vhost_vring_state` to the caller.
pub(crate) fn write_state(arg: usize, index: u32, num: u32) -> Result {
    write::<Pair>(arg, &[index, num])
}

/// Copies what the worker's thread is to belong to.
///
/// # Errors
///
/// `EFAULT`, `EINVAL` for another number.
pub(crate) fn read_kind(arg: usize) -> Result<Kind> {
    match read(arg)? {
        FORK_OWNER => Ok(Kind::Owner),
        FORK_KERNEL => Ok(Kind::Kernel),
        _ => Err(EINVAL),
    }
}

/// Copies what a worker's thread belongs to to the caller.
pub(crate) fn write_kind(arg: usize, kind: Kind) -> Result {
    let number = match kind {
        Kind::Owner => FORK_OWNER,
        Kind::Kernel => FORK_KERNEL,
    };
    write(arg, &number)
}

/// A file descriptor argument: bind this one, or unbind.
#[derive(Clone, Copy)]
pub(crate) enum FileArg {
    /// Take this file.
    Bind(i32),
    /// Let go of the present one.
    Unbind,
}

impl FileArg {
    fn new(fd: u32) -> Self {
        // CAST: the field is a C int.
        match fd as i32 {
            UNBIND => Self::Unbind,
            fd => Self::Bind(fd),
        }
    }
}

/// Copies a file descriptor.
pub(crate) fn read_fd(arg: usize) -> Result<FileArg> {
    Ok(FileArg::new(read(arg)?))
}

/// Copies the `fd` of a `struct vhost_vring_file`.
pub(crate) fn read_file(arg: usize) -> Result<FileArg> {
    Ok(read_indexed_file(arg)?.1)
}

/// Copies the index and the `fd` of a `struct vhost_vring_file`.
pub(crate) fn read_indexed_file(arg: usize) -> Result<(u32, FileArg)> {
    let [index, fd] = read::<Pair>(arg)?;
    Ok((index, FileArg::new(fd)))
}

/// A `struct vhost_vring_addr`, without its index.
#[derive(Clone, Copy)]
pub(crate) struct VringAddr {
    pub(crate) flags: u32,
    pub(crate) desc: u64,
    pub(crate) used: u64,
    pub(crate) avail: u64,
    pub(crate) log: u64,
}

/// Copies a `struct vhost_vring_addr`.
pub(crate) fn read_addr(arg: usize) -> Result<VringAddr> {
    let [head, desc, used, avail, log] = read::<RawAddr>(arg)?;
    Ok(VringAddr {
        // CAST: the index is the lower half, the flags are the upper.
        flags: (head >> 32) as u32,
        desc,
        used,
        avail,
        log,
    })
}
