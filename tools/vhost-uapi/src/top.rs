// SPDX-License-Identifier: GPL-2.0

//! Memory at the top of user space, for a device to find its way there.

use std::fs::File;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use nix::errno::Errno;
use nix::sys::mman::{mmap, munmap, MapFlags, ProtFlags};

use crate::error::{Context, Result};

/// Where user space ends, on CPUs with addresses of 57 bits and of 48. Only with the former there is anything to be had
/// below the first.
const ENDS: [usize; 2] = [(1 << 56) - 4096, (1 << 47) - 4096];

/// A part of a file that is mapped for others: this program has only its address.
#[derive(Debug)]
pub struct TopMapping {
    at: usize,
    size: usize,
}

impl TopMapping {
    /// Maps `size` bytes of `file` from `offset` on, so that they end `offset` bytes below the end of user space: the parts
    /// of a file lie there in reverse.
    ///
    /// # Errors
    ///
    /// EINVAL for what is not whole pages; EEXIST if something else is there, which is the stack where addresses are not
    /// randomised.
    pub fn new(file: &File, offset: usize, size: usize) -> Result<Self> {
        let bytes = NonZeroUsize::new(size)
            .ok_or(Errno::EINVAL)
            .context("mmap")?;
        let start = i64::try_from(offset)
            .map_err(|_| Errno::EINVAL)
            .context("mmap")?;
        let map = |end: usize| {
            let at = end
                .checked_sub(offset)
                .and_then(|end| end.checked_sub(size));
            let at = at.and_then(NonZeroUsize::new).ok_or(Errno::EINVAL)?;
            let prot = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED_NOREPLACE;
            // SAFETY: A new mapping, which replaces none.
            unsafe { mmap(Some(at), bytes, prot, flags, file, start) }
        };
        let [long, short] = ENDS;
        let at = match map(long) {
            Err(Errno::ENOMEM) => map(short),
            result => result,
        };
        let at = at.context("mmap at the top of user space")?;
        let at = at.as_ptr().expose_provenance();
        Ok(Self { at, size })
    }

    /// Its address.
    pub fn uva(&self) -> u64 {
        self.at as u64 // CAST: Widens.
    }
}

impl Drop for TopMapping {
    fn drop(&mut self) {
        let at = NonNull::new(std::ptr::with_exposed_provenance_mut(self.at));
        // SAFETY: The mapping is ours, and nothing refers to it. It cannot fail on a mapping that exists.
        let unmapped = at.map(|at| unsafe { munmap(at, self.size) });
        debug_assert_eq!(unmapped, Some(Ok(())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{memfd_create, MFdFlags};

    #[test]
    fn parts_of_a_file_lie_in_reverse_and_end_where_user_space_does() {
        let file = File::from(memfd_create("top", MFdFlags::MFD_CLOEXEC).unwrap());
        file.set_len(0x3000).unwrap();
        let first = TopMapping::new(&file, 0, 0x1000).unwrap();
        let second = TopMapping::new(&file, 0x1000, 0x2000).unwrap();
        assert_eq!(second.uva() + 0x2000, first.uva());
        let end = first.uva() + 0x1000;
        assert!(ENDS.iter().any(|known| *known as u64 == end), "{end:x}"); // CAST: Widens.
        assert!(TopMapping::new(&file, 0, 0x1000).is_err());
        drop(first);
        TopMapping::new(&file, 0, 0x1000).unwrap();
    }
}
