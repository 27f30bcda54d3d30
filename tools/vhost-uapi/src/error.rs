// SPDX-License-Identifier: GPL-2.0

//! An errno, and the call that gave it.

use nix::errno::Errno;

/// Result of a call into the kernel.
pub type Result<T = ()> = std::result::Result<T, Error>;

/// A call that failed. Reads as `VHOST_SET_OWNER: EBUSY: Device or resource busy`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{call}: {errno}")]
pub struct Error {
    /// What was called, with what it was called on where that helps.
    pub call: String,
    /// Why it failed.
    pub errno: Errno,
}

impl Error {
    pub(crate) fn new(call: impl Into<String>, errno: Errno) -> Self {
        Self {
            call: call.into(),
            errno,
        }
    }

    pub(crate) fn io(call: impl Into<String>, err: &std::io::Error) -> Self {
        Self::new(
            call,
            Errno::from_raw(err.raw_os_error().unwrap_or(libc::EIO)),
        )
    }
}

/// Names the call in an error.
pub(crate) trait Context<T> {
    fn context(self, call: &str) -> Result<T>;
}

impl<T> Context<T> for nix::Result<T> {
    fn context(self, call: &str) -> Result<T> {
        self.map_err(|errno| Error::new(call, errno))
    }
}

impl<T> Context<T> for std::io::Result<T> {
    fn context(self, call: &str) -> Result<T> {
        self.map_err(|err| Error::io(call, &err))
    }
}
