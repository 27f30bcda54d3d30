// SPDX-License-Identifier: GPL-2.0

//! Any ioctl with any argument, for tests of bad input.

use nix::errno::Errno;
use std::os::fd::AsFd;

use crate::device::VhostNet;
use crate::sys::{self, Fenced};

/// Argument of a raw ioctl.
#[derive(Debug)]
pub enum RawArg<'a> {
    /// A small integer, 0 being the null pointer.
    Value(u16),
    /// An address that no user may use.
    KernelAddress,
    /// Bytes with an inaccessible page right behind them: an argument that is too short ends in EFAULT. What the kernel
    /// writes comes back in them, also on failure.
    Bytes(&'a mut [u8]),
}

impl VhostNet {
    /// ioctl(2) as it is: `request` and `arg` are not looked at.
    ///
    /// # Errors
    ///
    /// The kernel's errno.
    pub fn raw_ioctl(&self, request: u64, arg: RawArg<'_>) -> std::result::Result<i32, Errno> {
        match arg {
            RawArg::Value(value) => sys::ioctl_value(self.as_fd(), request, value),
            RawArg::KernelAddress => sys::ioctl_kernel_address(self.as_fd(), request),
            RawArg::Bytes(bytes) => {
                let mut fenced = Fenced::new(bytes)?;
                let result = fenced.ioctl(self.as_fd(), request);
                fenced.copy_to(bytes);
                result
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers;

    /// An ioctl of any open file that writes 4 bytes: FIONREAD on a regular file.
    const FIONREAD: u64 = 0x541B;

    #[test]
    fn argument_that_is_too_short_faults_at_the_fence() {
        let file = VhostNet::open("/proc/self/exe".as_ref(), false).unwrap();
        let mut bytes = [0xff; 4];
        assert_eq!(file.raw_ioctl(FIONREAD, RawArg::Bytes(&mut bytes)), Ok(0));
        assert_ne!(bytes, [0xff; 4]);
        let mut short = [0xff; 3];
        assert_eq!(
            file.raw_ioctl(FIONREAD, RawArg::Bytes(&mut short)),
            Err(Errno::EFAULT)
        );
        assert_eq!(
            file.raw_ioctl(FIONREAD, RawArg::KernelAddress),
            Err(Errno::EFAULT)
        );
        assert_eq!(
            file.raw_ioctl(FIONREAD, RawArg::Value(0)),
            Err(Errno::EFAULT)
        );
    }

    #[test]
    fn file_that_is_no_vhost_device_says_enotty() {
        let file = VhostNet::open("/proc/self/exe".as_ref(), false).unwrap();
        let err = file.set_owner().unwrap_err();
        assert_eq!(err.errno, Errno::ENOTTY);
        assert!(err
            .to_string()
            .starts_with(numbers::name(numbers::SET_OWNER)));
    }
}
