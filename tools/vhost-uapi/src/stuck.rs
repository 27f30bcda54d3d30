// SPDX-License-Identifier: GPL-2.0

//! An ioctl argument that the kernel waits for: memory that is served by a process that does not, or by a dead server.

use nix::errno::Errno;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use crate::device::VhostNet;
use crate::error::{Context, Error, Result};
use crate::eventfd::wait_readable;
use crate::sys::{self, Page};

const UFFD_API: u64 = 0xAA;
/// `_IO(UFFD_API, 0)`
const NEW: u64 = UFFD_API << 8;
const API: u64 = nix::request_code_readwrite!(UFFD_API, 0x3f, 24);
const REGISTER: u64 = nix::request_code_readwrite!(UFFD_API, 0x00, 32);
const UNREGISTER: u64 = nix::request_code_read!(UFFD_API, 0x01, 16);
const MODE_MISSING: u64 = 1;

/// A page that stops whoever touches it, until it is released.
#[derive(Debug)]
pub struct StuckPage {
    page: Page,
    uffd: OwnedFd,
}

impl StuckPage {
    /// Makes such a page.
    ///
    /// # Errors
    ///
    /// ENOENT without `/dev/userfaultfd`, which takes root by default.
    pub fn new() -> Result<Self> {
        let page = Page::new().context("mmap")?;
        let node = File::open("/dev/userfaultfd").context("open /dev/userfaultfd")?;
        let uffd = sys::ioctl_new_fd(node.as_fd(), NEW).context("USERFAULTFD_IOC_NEW")?;
        let mut api = [UFFD_API, 0, 0];
        sys::ioctl(uffd.as_fd(), API, &mut api).context("UFFDIO_API")?;
        let [start, len] = page.range();
        let mut register = [start, len, MODE_MISSING, 0];
        sys::ioctl(uffd.as_fd(), REGISTER, &mut register).context("UFFDIO_REGISTER")?;
        Ok(Self { page, uffd })
    }

    /// Its address.
    pub fn uva(&self) -> u64 {
        let [start, _] = self.page.range();
        start
    }

    /// ioctl(2) with the page as its argument: does not return before [`Self::release`], if the kernel looks at it.
    ///
    /// # Errors
    ///
    /// The kernel's errno; what it finds in the end is zeroes.
    pub fn ioctl(&self, vhost: &VhostNet, request: u64) -> std::result::Result<i32, Errno> {
        self.page.ioctl(vhost.as_fd(), request)
    }

    /// Waits until somebody is stopped at the page.
    ///
    /// # Errors
    ///
    /// ETIMEDOUT if nobody is.
    pub fn wait(&self, timeout: Duration) -> Result {
        if wait_readable(&[self.uffd.as_fd()], timeout)? {
            return Ok(());
        }
        Err(Error::new("touch of a page", Errno::ETIMEDOUT))
    }

    /// Makes it a page like others; whoever was stopped goes on.
    ///
    /// # Errors
    ///
    /// None that a page gives.
    pub fn release(&self) -> Result {
        let mut range = self.page.range();
        sys::ioctl(self.uffd.as_fd(), UNREGISTER, &mut range).context("UFFDIO_UNREGISTER")?;
        Ok(())
    }
}
