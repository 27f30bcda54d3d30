// SPDX-License-Identifier: GPL-2.0

//! The system calls that no crate wraps safely.

use crate::error::{Error, Result};
use crate::numbers;
use nix::errno::Errno;
use std::cmp::Ordering;
use std::ffi::c_void;
use std::io::IoSliceMut;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::NonNull;

use nix::fcntl::{fcntl, FcntlArg, FdFlag};
use nix::sys::mman::{mmap_anonymous, munmap, MapFlags, ProtFlags};
use nix::sys::socket::{recvmsg, ControlMessageOwned, MsgFlags};

/// A type that the kernel may fill with any bytes, and that has no padding to leak.
///
/// # Safety
///
/// Every bit pattern is a valid value, and the type has no padding.
pub(crate) unsafe trait Plain: Copy + Default {}

// SAFETY: Integers.
unsafe impl Plain for u8 {}
// SAFETY: Integers.
unsafe impl Plain for u32 {}
// SAFETY: Integers.
unsafe impl Plain for i32 {}
// SAFETY: Integers.
unsafe impl Plain for u64 {}
// SAFETY: An array of integers has no padding.
unsafe impl<const N: usize> Plain for [u64; N] where [u64; N]: Default {}
// SAFETY: An array of integers has no padding.
unsafe impl<const N: usize> Plain for [u32; N] where [u32; N]: Default {}
// SAFETY: An array of bytes has no padding.
unsafe impl Plain for IfReq {}

/// `struct ifreq`, as far as TUNSETIFF and TUNGETIFF use it.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IfReq {
    pub(crate) name: [u8; libc::IFNAMSIZ],
    pub(crate) flags: [u8; 2],
    rest: [u8; 22],
}

impl Default for IfReq {
    fn default() -> Self {
        Self {
            name: [0; libc::IFNAMSIZ],
            flags: [0; 2],
            rest: [0; 22],
        }
    }
}

impl IfReq {
    /// A request that is about the interface `name`.
    ///
    /// # Errors
    ///
    /// ENAMETOOLONG.
    pub(crate) fn named(name: &str) -> Result<Self> {
        let mut request = Self::default();
        // The last byte ends the name.
        let field = request.name.get_mut(..name.len());
        field
            .filter(|_| name.len() < libc::IFNAMSIZ)
            .ok_or_else(|| Error::new(format!("interface name {name}"), Errno::ENAMETOOLONG))?
            .copy_from_slice(name.as_bytes());
        Ok(request)
    }

    /// Puts an interface's index where the flags are.
    pub(crate) fn set_index(&mut self, index: i32) {
        let [a, b, c, d] = index.to_ne_bytes();
        self.flags = [a, b];
        [self.rest[0], self.rest[1]] = [c, d];
    }
}

const _: () = assert!(size_of::<IfReq>() == size_of::<libc::ifreq>());

/// Bytes that `request` says the kernel copies.
const fn ioc_size(request: u64) -> usize {
    const IOC_SIZESHIFT: u32 = 16;
    const IOC_SIZEMASK: u64 = 0x3fff;
    // CAST: At most 0x3fff.
    ((request >> IOC_SIZESHIFT) & IOC_SIZEMASK) as usize
}

/// dup3(2): closes what `fd` refers to; it refers to what `other` does then.
pub(crate) fn replace(fd: BorrowedFd<'_>, other: BorrowedFd<'_>) -> nix::Result<()> {
    // SAFETY: No memory is involved. `fd` stays open, and its owner's, all the time.
    Errno::result(unsafe { libc::dup3(other.as_raw_fd(), fd.as_raw_fd(), libc::O_CLOEXEC) })?;
    Ok(())
}

/// ioctl(2) with an integer, or nothing, as argument. Values of 64 KiB and more could name memory and are refused.
pub(crate) fn ioctl_value(fd: BorrowedFd<'_>, request: u64, value: u16) -> nix::Result<i32> {
    // SAFETY: No memory can be mapped at an address below 64 KiB (vm.mmap_min_addr), so that the kernel writes to none.
    Errno::result(unsafe { libc::ioctl(fd.as_raw_fd(), request, usize::from(value)) })
}

/// ioctl(2) on one value that the kernel reads, writes, or both.
///
/// # Errors
///
/// EINVAL if `T` is smaller than what `request` says; else the kernel's.
pub(crate) fn ioctl<T: Plain>(fd: BorrowedFd<'_>, request: u64, arg: &mut T) -> nix::Result<i32> {
    if size_of::<T>() < ioc_size(request) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: `arg` is exclusive and at least as large as the request says. The requests whose arguments are longer than they
    // say (memory table, feature arrays) state their length in the value itself; our callers set it from the array's own.
    // `T` is `Plain`, so that whatever the kernel writes is a value.
    Errno::result(unsafe { libc::ioctl(fd.as_raw_fd(), request, std::ptr::from_mut(arg)) })
}

/// ioctl(2) on a run of words that the kernel only reads.
pub(crate) fn ioctl_read_words(
    fd: BorrowedFd<'_>,
    request: u64,
    words: &[u64],
) -> nix::Result<i32> {
    const IOC_READ: u64 = 2 << 30;
    if request & IOC_READ != 0 || size_of_val(words) < ioc_size(request) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: The direction bits say that the kernel does not write. A length inside `words` that lies makes it read, at
    // worst, what lies behind them, which no Rust code observes.
    Errno::result(unsafe { libc::ioctl(fd.as_raw_fd(), request, words.as_ptr()) })
}

/// ioctl(2) on a feature array, which says itself how long it is.
pub(crate) fn ioctl_features_array(
    fd: BorrowedFd<'_>,
    request: u64,
    array: &mut [u64],
) -> nix::Result<i32> {
    let known = [numbers::GET_FEATURES_ARRAY, numbers::SET_FEATURES_ARRAY].contains(&request);
    let fits = |count: &u64| usize::try_from(*count).is_ok_and(|count| count < array.len());
    if !known || !array.first().is_some_and(fits) {
        return Err(Errno::EINVAL);
    }
    // SAFETY: `array` is exclusive, and the kernel reads or writes no more of it than the first word says, which it reads once.
    Errno::result(unsafe { libc::ioctl(fd.as_raw_fd(), request, array.as_mut_ptr()) })
}

/// USERFAULTFD_IOC_NEW, or another ioctl(2) whose argument is flags of a new file, here `O_NONBLOCK`, which it returns.
pub(crate) fn ioctl_new_fd(fd: BorrowedFd<'_>, request: u64) -> nix::Result<OwnedFd> {
    const FLAGS: u16 = 0x800; // O_NONBLOCK
    let new = ioctl_value(fd, request, FLAGS)?;
    // SAFETY: The request returns a file descriptor that was not open before, so that nobody else has it.
    let new = unsafe { OwnedFd::from_raw_fd(new) };
    fcntl(&new, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok(new)
}

/// recvmsg(2) of some bytes and one file. Nothing if the other side is closed.
pub(crate) fn receive_file(
    channel: &UnixStream,
    data: &mut [IoSliceMut<'_>],
) -> nix::Result<Option<OwnedFd>> {
    let mut space = nix::cmsg_space!(std::os::fd::RawFd);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(channel.as_raw_fd(), data, Some(&mut space), flags)?;
    if message.bytes == 0 {
        return Ok(None);
    }
    let files = message.cmsgs()?.filter_map(|control| match control {
        ControlMessageOwned::ScmRights(files) => Some(files),
        _ => None,
    });
    let file = files.flatten().next().ok_or(Errno::EBADMSG)?;
    // SAFETY: The message made this file descriptor in this process, so that nobody else has it. There is room for one only.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(file) }))
}

/// pidfd_open(2) and pidfd_getfd(2): a duplicate of another process's file.
pub(crate) fn fetch_file(pid: u32, file: i32) -> nix::Result<OwnedFd> {
    // SAFETY: Both calls take integers only.
    let process = Errno::result(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })?;
    // SAFETY: What it returned was not open before, so that nobody else has it. CAST: It fits, as all do.
    let process = unsafe { OwnedFd::from_raw_fd(process as i32) };
    // SAFETY: As the first.
    let new = unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), file, 0) };
    // SAFETY: As above. CAST: As above.
    Errno::result(new).map(|new| unsafe { OwnedFd::from_raw_fd(new as i32) })
}

const PAGE: usize = 4096;

/// A page that only the kernel uses.
#[derive(Debug)]
pub(crate) struct Page(NonNull<c_void>);

// SAFETY: The page is not bound to a thread, and no Rust code reads or writes it.
unsafe impl Send for Page {}
// SAFETY: As above.
unsafe impl Sync for Page {}

impl Page {
    /// Maps a page, which is not there before it is touched.
    pub(crate) fn new() -> nix::Result<Self> {
        let size = NonZeroUsize::new(PAGE).ok_or(Errno::EINVAL)?;
        let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: A new private mapping, at no fixed address.
        unsafe { mmap_anonymous(None, size, prot, MapFlags::MAP_PRIVATE) }.map(Self)
    }

    /// Where it begins, and its bytes.
    pub(crate) fn range(&self) -> [u64; 2] {
        [self.0.addr().get() as u64, PAGE as u64] // CAST: Widens.
    }

    /// ioctl(2) with the page as argument.
    ///
    /// # Errors
    ///
    /// EINVAL if `request` says that the argument is longer; else the kernel's.
    pub(crate) fn ioctl(&self, fd: BorrowedFd<'_>, request: u64) -> nix::Result<i32> {
        if ioc_size(request) > PAGE {
            return Err(Errno::EINVAL);
        }
        // SAFETY: The kernel may read and write the page, which no Rust code does. It is zeroes, so that a length in front of a
        // longer argument is zero as well.
        Errno::result(unsafe { libc::ioctl(fd.as_raw_fd(), request, self.0.as_ptr()) })
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: The mapping is ours, and nothing refers to it any more. It cannot fail on a mapping that exists.
        let unmapped = unsafe { munmap(self.0, PAGE) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// bind(2) of a packet socket to one protocol (host order) on one interface.
pub(crate) fn bind_packet(fd: BorrowedFd<'_>, protocol: u16, ifindex: i32) -> nix::Result<()> {
    let addr = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16, // CAST: 17.
        sll_protocol: protocol.to_be(),
        sll_ifindex: ifindex,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    let len = size_of_val(&addr) as u32; // CAST: 20.
                                         // SAFETY: `addr` is a live `sockaddr_ll` of `len` bytes.
    Errno::result(unsafe { libc::bind(fd.as_raw_fd(), std::ptr::from_ref(&addr).cast(), len) })?;
    Ok(())
}

/// bpf(2) commands that are used here, and the fields of their arguments: 64 bits each, two of 32 bits in some.
mod bpf {
    pub(super) const PROG_LOAD: i64 = 5;
    pub(super) const LINK_CREATE: i64 = 28;
    pub(super) const PROG_TYPE_XDP: u32 = 6;
    pub(super) const ATTACH_XDP: u32 = 37;
}

/// Two 32-bit fields of a structure, in the order in which they are in memory.
fn pair(first: u32, second: u32) -> u64 {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    u64::from_ne_bytes(bytes)
}

/// bpf(2) of a command that makes a file.
///
/// # Safety
///
/// Addresses in `attr` must be of memory that `command` may read.
unsafe fn bpf(command: i64, attr: &[u64]) -> nix::Result<OwnedFd> {
    // SAFETY: The kernel reads the structure, which is as long as it says. By the contract it may read what that points at.
    let new = Errno::result(unsafe {
        libc::syscall(libc::SYS_bpf, command, attr.as_ptr(), size_of_val(attr))
    })?;
    // SAFETY: The commands of our callers return a file descriptor that was not open before. CAST: It fits, as all do.
    Ok(unsafe { OwnedFd::from_raw_fd(new as i32) })
}

/// Loads an XDP program of whole instructions.
pub(crate) fn load_xdp(program: &[u64]) -> nix::Result<OwnedFd> {
    const LICENSE: &std::ffi::CStr = c"GPL";
    let count = u32::try_from(program.len()).map_err(|_| Errno::E2BIG)?;
    // CAST: Addresses, as the structure has them.
    let (program, license) = (program.as_ptr() as u64, LICENSE.as_ptr() as u64);
    let attr = [pair(bpf::PROG_TYPE_XDP, count), program, license];
    // SAFETY: `count` instructions and a string that ends are there.
    unsafe { bpf(bpf::PROG_LOAD, &attr) }
}

/// Attaches an XDP program to an interface for as long as what is returned is open.
pub(crate) fn link_xdp(program: BorrowedFd<'_>, ifindex: i32) -> nix::Result<OwnedFd> {
    // CAST: Neither is below 0.
    let (program, ifindex) = (program.as_raw_fd() as u32, ifindex as u32);
    let attr = [pair(program, ifindex), pair(bpf::ATTACH_XDP, 0)];
    // SAFETY: There are no addresses.
    unsafe { bpf(bpf::LINK_CREATE, &attr) }
}

/// setsockopt(2) of an integer.
pub(crate) fn setsockopt(
    fd: BorrowedFd<'_>,
    level: i32,
    option: i32,
    value: i32,
) -> nix::Result<()> {
    let len = size_of_val(&value) as u32; // CAST: 4.
                                          // SAFETY: `value` is a live integer of `len` bytes.
    Errno::result(unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(&value).cast(),
            len,
        )
    })?;
    Ok(())
}

/// getsockopt(2) of a plain value. What the kernel does not fill stays zero.
pub(crate) fn getsockopt<T: Plain>(fd: BorrowedFd<'_>, level: i32, option: i32) -> nix::Result<T> {
    let mut value = T::default();
    let mut len = size_of::<T>() as u32; // CAST: A few bytes.
    let data = std::ptr::from_mut(&mut value).cast();
    // SAFETY: `value` has `len` bytes; it is `Plain`, so that whatever the kernel writes is a value.
    Errno::result(unsafe { libc::getsockopt(fd.as_raw_fd(), level, option, data, &mut len) })?;
    Ok(value)
}

/// kcmp(2) of two open files, each a process id and a descriptor.
pub(crate) fn kcmp_file(one: (u32, i32), other: (u32, i32)) -> nix::Result<Ordering> {
    const KCMP_FILE: i64 = 0;
    // SAFETY: The call takes five numbers and touches no memory of ours.
    let order = Errno::result(unsafe {
        libc::syscall(
            libc::SYS_kcmp,
            i64::from(one.0),
            i64::from(other.0),
            KCMP_FILE,
            i64::from(one.1),
            i64::from(other.1),
        )
    })?;
    // 0 is equal, 1 less, 2 greater, 3 neither, which files never are.
    match order {
        0 => Ok(Ordering::Equal),
        1 => Ok(Ordering::Less),
        2 => Ok(Ordering::Greater),
        _ => Err(Errno::EINVAL),
    }
}
