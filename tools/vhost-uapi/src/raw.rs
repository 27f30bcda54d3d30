// SPDX-License-Identifier: GPL-2.0

//! Any ioctl, with an argument that is no memory.

use nix::errno::Errno;
use std::os::fd::AsFd;

use crate::device::VhostNet;
use crate::sys;

impl VhostNet {
    /// ioctl(2) as it is, with a small integer as argument, 0 being the null pointer.
    ///
    /// # Errors
    ///
    /// The kernel's errno.
    pub fn raw_ioctl(&self, request: u64, arg: u16) -> std::result::Result<i32, Errno> {
        sys::ioctl_value(self.as_fd(), request, arg)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::numbers;

    #[test]
    fn file_that_is_no_vhost_device_says_enotty() {
        let file = VhostNet::open("/proc/self/exe".as_ref(), false).unwrap();
        let set_owner = numbers::SET_OWNER;
        assert_eq!(file.raw_ioctl(set_owner, 0), Err(Errno::ENOTTY));
        let err = file.set_owner().unwrap_err();
        assert_eq!(err.errno, Errno::ENOTTY);
        assert!(err.to_string().starts_with(numbers::name(set_owner)));
    }
}
