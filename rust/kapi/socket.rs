// SPDX-License-Identifier: GPL-2.0

//! The sockets that packets go through.
//!
//! C headers: [`include/linux/if_tun.h`](srctree/include/linux/if_tun.h),
//! [`include/linux/if_tap.h`](srctree/include/linux/if_tap.h)

use super::file::FileRef;
use crate::bindings;
use kernel::prelude::*;
use kernel::sync::Arc;

/// What a socket is called: its interface's name, for a packet socket behind
/// `packet:`.
#[derive(Clone, Copy)]
pub(crate) struct SocketName([u8; bindings::VNR_SOCKET_NAME as usize]);

impl SocketName {
    /// Of no socket.
    pub(crate) const NONE: Self = Self([0; bindings::VNR_SOCKET_NAME as usize]);

    /// The name, if it has one.
    pub(crate) fn get(&self) -> Option<&CStr> {
        let name = CStr::from_bytes_until_nul(&self.0).ok()?;
        (!name.is_empty()).then_some(name)
    }
}

/// # Invariants
///
/// `raw` is the socket of `file`.
struct Inner {
    raw: bindings::vnr_socket,
    file: FileRef,
}

// SAFETY: The socket is bound to no thread.
unsafe impl Send for Inner {}
// SAFETY: Shared use reads what never changes, and calls functions that lock.
unsafe impl Sync for Inner {}

/// A tun, a tap (macvtap, ipvtap) or a raw packet socket. Cheap to clone.
#[derive(Clone)]
pub(crate) struct NetSocket(Arc<Inner>);

impl NetSocket {
    /// Takes a reference to the socket behind `fd` of the current task.
    ///
    /// The file is looked up once: what is found out is all of one file.
    ///
    /// # Errors
    ///
    /// `ENOTSOCK` if it is none of these, or not open; `ENOMEM`.
    pub(crate) fn from_fd(fd: i32) -> Result<Self> {
        let file = FileRef::from_fd(fd).map_err(|_| ENOTSOCK)?;
        let mut raw = pin_init::zeroed();
        // SAFETY: The file is live, and `raw` valid for writing.
        if !unsafe { bindings::vnr_socket_of(file.as_ptr(), &mut raw) } {
            return Err(ENOTSOCK);
        }

        // INVARIANT: The helper filled it in from `file`.
        Ok(Self(Arc::new(Inner { raw, file }, GFP_KERNEL)?))
    }

    /// The name of its interface now. Sleeps, for the network's own lock too.
    pub(crate) fn name(&self) -> SocketName {
        let mut name = SocketName::NONE;
        // SAFETY: By the invariant the socket lives as long as its file; there is
        // room for what the helper writes.
        unsafe { bindings::vnr_socket_name(self.as_raw(), name.0.as_mut_ptr().cast()) };
        name
    }

    /// Whether both are one socket.
    pub(crate) fn same_socket(&self, other: &Self) -> bool {
        self.0.raw.sock == other.0.raw.sock
    }

    /// Whether a packet for the guest waits. Process context: whoever takes
    /// packets off a ring holds its lock with interrupts on.
    ///
    /// C: `sock_has_rx_data()`, which gets packet sockets the wrong way round.
    #[inline]
    pub(crate) fn has_rx_data(&self) -> bool {
        // SAFETY: By the invariant the socket lives as long as its file.
        unsafe { bindings::vnr_socket_has_data(self.as_raw()) }
    }

    /// Whether it can send from user memory. C: `vhost_sock_zcopy()`.
    pub(crate) fn zerocopies(&self) -> bool {
        // SAFETY: By the invariant the socket lives as long as its file.
        unsafe { bindings::vnr_socket_zerocopies(self.as_raw()) }
    }

    /// The socket's parts, which live as long as `self`.
    #[inline]
    pub(super) fn as_raw(&self) -> &bindings::vnr_socket {
        &self.0.raw
    }

    /// Its file.
    pub(super) fn file(&self) -> &FileRef {
        &self.0.file
    }
}
