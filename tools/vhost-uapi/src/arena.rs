// SPDX-License-Identifier: GPL-2.0

//! System calls whose argument lies at the edges of memory, by the 64-bit gate or the 32-bit one.

use std::arch::asm;
use std::ffi::c_void;
use std::fs::File;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::memfd::{memfd_create, MFdFlags};
use nix::sys::mman::{mmap, mmap_anonymous, munmap, MapFlags, ProtFlags};

use crate::error::{Context, Result};

const PAGE: usize = 4096;
/// Where it lies: below 4 GiB, and the same in each run.
const BASE: usize = 0x1000_0000;
/// A page that can be written, with nothing behind it.
const FRONT: usize = 0;
/// A page that can be written, with [`READ_ONLY`] behind it.
const BACK: usize = 2 * PAGE;
/// A page that can be read only, with nothing behind it.
const READ_ONLY: usize = 3 * PAGE;
const SIZE: usize = 5 * PAGE;
/// Bytes that are looked at in one go.
const LINE: usize = 64;

/// How a system call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    /// `syscall`, as 64-bit programs do.
    Syscall,
    /// `int 0x80`, as 32-bit programs do: arguments have 32 bits, and a driver's compat ioctl serves.
    Int80,
}

/// Where an argument lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the middle of memory that can be written.
    Middle,
    /// Right before memory that is not there.
    Edge,
    /// As many of its bytes can be read and written; the rest is not there.
    Cut(usize),
    /// Where it can be read only.
    ReadOnly,
    /// As many of its bytes can be written; the rest can be read only.
    Straddle(usize),
}

/// What a call is given for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Address {
    /// 0.
    Null,
    /// A small number that is no address of anything.
    Small(u16),
    /// In the kernel's half. A 32-bit gate cuts it down to an address where nothing is.
    Kernel,
    /// In the arena, with nothing there.
    Hole,
    /// Of the bytes that were put there last.
    Argument,
}

/// Memory for one argument at a time.
#[derive(Debug)]
pub struct Arena {
    map: NonNull<c_void>,
    /// The three pages that are there, one after the other.
    file: File,
    /// The same, to look at.
    view: NonNull<c_void>,
    /// What they hold where no argument is.
    pattern: Vec<u8>,
    /// What they held before the call.
    before: Vec<u8>,
    /// What they hold, as far as is known.
    now: Vec<u8>,
    /// Offset of the argument.
    argument: usize,
}

/// Where the pages that are there lie in the arena, by their order in the file.
const PAGES: [usize; 3] = [FRONT, BACK, READ_ONLY];

impl Arena {
    /// Maps the arena. There can be one in a process.
    ///
    /// # Errors
    ///
    /// EEXIST if something else is at its address.
    pub fn new() -> Result<Self> {
        let file =
            File::from(memfd_create("arena", MFdFlags::MFD_CLOEXEC).context("memfd_create")?);
        let (at, size) = (NonZeroUsize::new(BASE), NonZeroUsize::new(SIZE));
        let size = size.ok_or(Errno::EINVAL).context("mmap")?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED_NOREPLACE;
        // SAFETY: A new mapping, which replaces none.
        let map = unsafe { mmap_anonymous(at, size, ProtFlags::PROT_NONE, flags) };
        // CAST: The low byte.
        let pattern = |at: usize| (at as u8).wrapping_mul(37) ^ 0xa5;
        let pattern: Vec<u8> = (0..PAGES.len() * PAGE).map(pattern).collect();
        file.write_all_at(&pattern, 0).context("write to a memfd")?;
        let size = NonZeroUsize::new(pattern.len())
            .ok_or(Errno::EINVAL)
            .context("mmap")?;
        // SAFETY: A new mapping, at no fixed address.
        let view = unsafe {
            mmap(
                None,
                size,
                ProtFlags::PROT_READ,
                MapFlags::MAP_SHARED,
                &file,
                0,
            )
        };
        let view = view.context("mmap of the view")?;
        let arena = Self {
            map: map.context("mmap of the arena")?,
            file,
            before: pattern.clone(),
            now: pattern.clone(),
            pattern,
            view,
            argument: FRONT,
        };
        for (nr, offset) in PAGES.into_iter().enumerate() {
            arena.map_page(nr, offset).context("mmap of a page")?;
        }
        Ok(arena)
    }

    /// Maps page `nr` of the file at `offset`.
    fn map_page(&self, nr: usize, offset: usize) -> nix::Result<()> {
        let at = NonZeroUsize::new(BASE + offset);
        let size = NonZeroUsize::new(PAGE).ok_or(Errno::EINVAL)?;
        let mut prot = ProtFlags::PROT_READ;
        if offset != READ_ONLY {
            prot |= ProtFlags::PROT_WRITE;
        }
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED;
        let start = (nr * PAGE) as i64; // CAST: Less than four pages.
                                        // SAFETY: It replaces a page of the arena, which no Rust code reads or writes.
        unsafe { mmap(at, size, prot, flags, &self.file, start)? };
        Ok(())
    }

    /// Puts an argument somewhere, and a pattern everywhere else.
    ///
    /// # Errors
    ///
    /// EINVAL if it is longer than a page (in the middle of one, half a page), or than what is to be there of it.
    pub fn put(&mut self, place: Place, bytes: &[u8]) -> Result<Address> {
        let (start, there) = match place {
            Place::Middle => (FRONT.checked_add(PAGE / 2), bytes.len()),
            Place::Edge => ((FRONT + PAGE).checked_sub(bytes.len()), bytes.len()),
            Place::Cut(len) => ((FRONT + PAGE).checked_sub(len), len),
            Place::ReadOnly => ((READ_ONLY + PAGE).checked_sub(bytes.len()), bytes.len()),
            Place::Straddle(len) => (READ_ONLY.checked_sub(len), bytes.len()),
        };
        let room = if place == Place::Middle {
            PAGE / 2
        } else {
            PAGE
        };
        let bad = bytes.len() > room || there > bytes.len();
        let start = start.filter(|_| !bad).ok_or(Errno::EINVAL).context("put")?;
        self.before.copy_from_slice(&self.pattern);
        // Between the second and the third page there is no gap, in the file as in the arena.
        let in_file = if start < PAGE { start } else { start - PAGE };
        for (to, from) in self.before.iter_mut().skip(in_file).zip(&bytes[..there]) {
            *to = *from;
        }
        // Only what is not there already: of what a call may have written, [`Self::changes`] has told.
        let lines = self.before.chunks(LINE).zip(self.now.chunks_mut(LINE));
        for (nr, (wanted, now)) in lines.enumerate().filter(|(_, (wanted, now))| wanted != now) {
            let at = (nr * LINE) as u64; // CAST: Widens.
            self.file.write_all_at(wanted, at).context("put")?;
            now.copy_from_slice(wanted);
        }
        self.argument = start;
        Ok(Address::Argument)
    }

    /// Bytes that changed since [`Self::put`]: how far behind the argument's start, and what they are now.
    pub fn changes(&mut self) -> Vec<(isize, u8)> {
        let mut changes = Vec::new();
        let lines = self.before.chunks(LINE).zip(self.now.chunks_mut(LINE));
        for (nr, (old, now)) in lines.enumerate() {
            // SAFETY: Line `nr` of the view, which is as long as `now` is as a whole; nothing writes to it now.
            unsafe {
                let from = self.view.cast::<u8>().as_ptr().add(nr * LINE);
                std::ptr::copy_nonoverlapping(from, now.as_mut_ptr(), now.len());
            }
            if old == now {
                continue;
            }
            for (at, (_, byte)) in old
                .iter()
                .zip(now.iter())
                .enumerate()
                .filter(|(_, (old, now))| old != now)
            {
                let at = nr * LINE + at;
                let at = if at < PAGE { at } else { at + PAGE };
                // CAST: Both are below five pages.
                changes.push((at as isize - self.argument as isize, *byte));
            }
        }
        changes
    }

    fn number(&self, address: Address) -> u64 {
        const HALF: u64 = 0xffff_8880_f000_0000;
        const HOLE: u64 = (BASE + PAGE + PAGE / 2) as u64; // CAST: A constant.
        match address {
            Address::Null => 0,
            Address::Small(value) => value.into(),
            Address::Kernel => HALF,
            Address::Hole => HOLE,
            Address::Argument => (BASE + self.argument) as u64, // CAST: Widens.
        }
    }

    /// ioctl(2).
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn ioctl(
        &mut self,
        gate: Gate,
        fd: BorrowedFd<'_>,
        request: u32,
        address: Address,
    ) -> nix::Result<i32> {
        self.call(
            gate,
            [libc::SYS_ioctl, 54],
            fd,
            [request.into(), self.number(address)],
        )
    }

    /// read(2) of at most a page.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn read(
        &mut self,
        gate: Gate,
        fd: BorrowedFd<'_>,
        address: Address,
        len: usize,
    ) -> nix::Result<i32> {
        let len = len.min(PAGE) as u64; // CAST: Widens.
        self.call(gate, [libc::SYS_read, 3], fd, [self.number(address), len])
    }

    /// write(2) of at most a page.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub fn write(
        &mut self,
        gate: Gate,
        fd: BorrowedFd<'_>,
        address: Address,
        len: usize,
    ) -> nix::Result<i32> {
        let len = len.min(PAGE) as u64; // CAST: Widens.
        self.call(gate, [libc::SYS_write, 4], fd, [self.number(address), len])
    }

    /// Makes the call with one of these two numbers, the 64-bit one or the 32-bit one.
    fn call(
        &mut self,
        gate: Gate,
        [long, short]: [i64; 2],
        fd: BorrowedFd<'_>,
        args: [u64; 2],
    ) -> nix::Result<i32> {
        let fd = fd.as_raw_fd();
        match gate {
            // SAFETY: One of ioctl, read, write. Its address is in the arena, or one where this process has no memory. The kernel
            // writes upwards from it; of the fixed sizes that ioctls have, at most 0x3fff bytes, and of those with a length in
            // the argument, none gets over a hole without a fault. No Rust code refers to the arena.
            Gate::Syscall => Errno::result(unsafe { libc::syscall(long, fd, args[0], args[1]) }),
            // SAFETY: As above. The cut to 32 bits takes no address into memory of this process: those in the arena fit,
            // and that in the kernel's half becomes 0xf0000000, where a 64-bit process has nothing by itself.
            Gate::Int80 => unsafe { int80(short, fd, args) }.map(i64::from),
        }
        .map(|value| value as i32) // CAST: An int, or a length of at most a page.
    }
}

/// Makes a system call as a 32-bit program does.
///
/// # Safety
///
/// The same as for the call `number` of i386 with these arguments.
unsafe fn int80(number: i64, fd: i32, args: [u64; 2]) -> nix::Result<i32> {
    let mut result = number;
    // SAFETY: rbx, which LLVM keeps for itself, is as before. int 0x80 changes rax, and r8 to r11 in older kernels, and nothing
    // of the stack. What the call does is the caller's to answer for.
    unsafe {
        asm!(
            "xchg {fd:r}, rbx",
            "int 0x80",
            "xchg {fd:r}, rbx",
            fd = inout(reg) i64::from(fd) => _,
            inout("rax") result,
            in("rcx") args[0],
            in("rdx") args[1],
            out("r8") _,
            out("r9") _,
            out("r10") _,
            out("r11") _,
            options(nostack),
        );
    }
    let result = result as i32; // CAST: What a 32-bit program would see.
    match result {
        -4095..=-1 => Err(Errno::from_raw(result.wrapping_neg())),
        value => Ok(value),
    }
}

/// mmap(2) of a page of a file, and munmap(2).
///
/// # Errors
///
/// The kernel's.
pub fn try_map(fd: BorrowedFd<'_>) -> nix::Result<()> {
    let size = NonZeroUsize::new(PAGE).ok_or(Errno::EINVAL)?;
    // SAFETY: A new mapping, at no fixed address.
    let map = unsafe {
        mmap(
            None,
            size,
            ProtFlags::PROT_READ,
            MapFlags::MAP_SHARED,
            fd,
            0,
        )?
    };
    // SAFETY: The mapping just made, which nothing refers to.
    unsafe { munmap(map, PAGE) }
}

impl Drop for Arena {
    fn drop(&mut self) {
        for (map, size) in [(self.map, SIZE), (self.view, self.now.len())] {
            // SAFETY: The mapping is ours, and nothing refers to it any more. It cannot fail on a mapping that exists.
            let unmapped = unsafe { munmap(map, size) };
            debug_assert_eq!(unmapped, Ok(()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    /// An ioctl of a regular file that writes 4 bytes.
    const FIONREAD: u32 = 0x541B;

    #[test]
    fn what_a_call_writes_is_seen_and_so_is_where_it_may_not() {
        let mut arena = Arena::new().unwrap();
        let file = File::open("/proc/self/exe").unwrap();
        let mut call = |place, bytes: &[u8]| {
            let at = arena.put(place, bytes).unwrap();
            let result = arena.ioctl(Gate::Syscall, file.as_fd(), FIONREAD, at);
            let places = arena.changes().into_iter().map(|(at, _)| at);
            (result, places.collect::<Vec<_>>())
        };
        for place in [Place::Middle, Place::Edge] {
            let (result, places) = call(place, &[0xff; 4]);
            assert_eq!(result, Ok(0));
            assert!(!places.is_empty() && places.iter().all(|at| (0..4).contains(at)));
        }
        for place in [Place::Cut(3), Place::ReadOnly, Place::Straddle(2)] {
            assert_eq!(call(place, &[0xff; 4]).0, Err(Errno::EFAULT));
        }
        assert!(arena.put(Place::Cut(5), &[0; 4]).is_err());
        for address in [Address::Null, Address::Kernel, Address::Hole] {
            let result = arena.ioctl(Gate::Syscall, file.as_fd(), FIONREAD, address);
            assert_eq!(result, Err(Errno::EFAULT));
        }
    }
}
