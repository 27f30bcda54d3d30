// SPDX-License-Identifier: GPL-2.0

//! Whether two processes hold the same open file.

use std::cmp::Ordering;

use crate::error::{Context, Result};
use crate::sys;

/// Compares the open files behind two descriptors, each a process id and a number (kcmp(2), `KCMP_FILE`).
///
/// The order has no meaning, but is the same until the next boot.
///
/// # Errors
///
/// EPERM without the right to read both processes, ESRCH or EBADF if one is gone, ENOSYS on a kernel without kcmp(2).
pub fn compare_files(one: (u32, i32), other: (u32, i32)) -> Result<Ordering> {
    sys::kcmp_file(one, other).context("kcmp")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsRawFd;

    #[test]
    fn duplicate_is_the_same_file_and_a_second_open_is_not() {
        let first = File::open("/dev/null").unwrap();
        let duplicate = first.try_clone().unwrap();
        let second = File::open("/dev/null").unwrap();
        let name = |file: &File| (std::process::id(), file.as_raw_fd());
        let compare = |a: &File, b: &File| compare_files(name(a), name(b)).unwrap();
        assert_eq!(compare(&first, &duplicate), Ordering::Equal);
        assert_ne!(compare(&first, &second), Ordering::Equal);
        assert_eq!(compare(&first, &second), compare(&second, &first).reverse());
    }

    #[test]
    fn descriptor_that_is_not_open_is_refused() {
        let err = compare_files((std::process::id(), 9999), (std::process::id(), 0)).unwrap_err();
        assert_eq!(err.errno, nix::errno::Errno::EBADF);
    }
}
