// SPDX-License-Identifier: GPL-2.0

//! Which of the kernel's code was run (`include/uapi/linux/kcov.h`).

use std::fs::{File, OpenOptions};
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::errno::Errno;
use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};

use crate::error::{Context, Error, Result};
use crate::sys;

const INIT_TRACE: u64 = 0x8008_6301;
const ENABLE: u64 = 0x6364;
const DISABLE: u64 = 0x6365;
const REMOTE_ENABLE: u64 = 0x4018_6366;
const TRACE_PC: u16 = 0;
/// Words of an area: how many addresses there are, and the addresses.
const WORDS: u16 = 32768;

/// What one thread runs, or what is run for it.
#[derive(Debug)]
pub struct Kcov {
    file: File,
    area: NonNull<AtomicU64>,
}

// SAFETY: The area is atomic words, and stays mapped while this lives.
unsafe impl Send for Kcov {}

impl Kcov {
    /// Opens it.
    ///
    /// # Errors
    ///
    /// ENOENT in a kernel without, or where debugfs is not mounted.
    pub fn open() -> Result<Self> {
        let path = "/sys/kernel/debug/kcov";
        let failed = |err: std::io::Error| {
            let errno = err.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
            Error::new(path, errno)
        };
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(failed)?;
        sys::ioctl_value(file.as_fd(), INIT_TRACE, WORDS).context("KCOV_INIT_TRACE")?;
        let size = NonZeroUsize::new(Self::size()).ok_or(Errno::EINVAL);
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: A new mapping, at no fixed address.
        let area = unsafe {
            mmap(
                None,
                size.context("mmap")?,
                access,
                MapFlags::MAP_SHARED,
                &file,
                0,
            )
        };
        let area = area.context("mmap of kcov")?.cast();
        Ok(Self { file, area })
    }

    fn size() -> usize {
        usize::from(WORDS) * size_of::<u64>()
    }

    /// Notes what the calling thread runs in the kernel, as long as this lives.
    ///
    /// # Errors
    ///
    /// EBUSY if another notes that.
    pub fn enable(&self) -> Result {
        sys::ioctl_value(self.file.as_fd(), ENABLE, TRACE_PC).context("KCOV_ENABLE")?;
        Ok(())
    }

    /// Notes what others run for what the calling thread makes: `handle` is any number that nobody else uses, but 0.
    ///
    /// # Errors
    ///
    /// EBUSY if another notes that, EEXIST if somebody has the number.
    pub fn enable_remote(&self, handle: u32) -> Result {
        let mut arg = [
            u64::from(TRACE_PC) | u64::from(WORDS) << 32,
            0,
            u64::from(handle),
        ];
        sys::ioctl(self.file.as_fd(), REMOTE_ENABLE, &mut arg).context("KCOV_REMOTE_ENABLE")?;
        Ok(())
    }

    fn word(&self, index: usize) -> Option<&AtomicU64> {
        // SAFETY: Within the area, which is mapped, and is atomic words for the kernel, too.
        (index < usize::from(WORDS)).then(|| unsafe { self.area.add(index).as_ref() })
    }

    /// Takes the addresses that were noted since the last time, in no order, and those only for which there was room.
    pub fn take(&self, mut each: impl FnMut(u64)) {
        let Some(count) = self.word(0) else { return };
        let noted = usize::try_from(count.load(Ordering::Acquire)).unwrap_or(0);
        let words = (1..=noted).map_while(|index| self.word(index));
        words.for_each(|word| each(word.load(Ordering::Relaxed)));
        count.store(0, Ordering::Release);
    }
}

impl Drop for Kcov {
    fn drop(&mut self) {
        // Refused if it was not enabled, or by another thread, whose end ends it.
        let _ = sys::ioctl_value(self.file.as_fd(), DISABLE, 0);
        // SAFETY: Mapped by `open`, and nobody has a reference any more.
        if let Err(err) = unsafe { munmap(self.area.cast(), Self::size()) } {
            eprintln!("munmap of kcov: {err}");
        }
    }
}
