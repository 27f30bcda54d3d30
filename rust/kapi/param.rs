// SPDX-License-Identifier: GPL-2.0

//! The module's parameters that the `module!` macro cannot declare.
//!
//! C header: [`include/linux/moduleparam.h`](srctree/include/linux/moduleparam.h)

use super::task::Kind;
use crate::bindings;
use crate::engine::policy::Policy;
use crate::engine::policy::Settings;
use core::num::NonZeroUsize;
use core::slice;
use kernel::prelude::*;

/// The name of the device node, parameter `node`.
pub(crate) fn node() -> &'static CStr {
    let mut size = 0;
    // SAFETY: The helper writes one number.
    let node = unsafe { bindings::vnr_param_node(&mut size) };
    // SAFETY: The parameter points at a string of that size, its default or
    // what the loader copied. Being read-only in sysfs it is set before the
    // module starts, and it lives until the module has ended.
    let bytes = unsafe { slice::from_raw_parts(node.cast(), size) };
    // SAFETY: The only NUL is at the end. (`from_char_ptr()` would add to a
    // length, which can panic.)
    unsafe { CStr::from_bytes_with_nul_unchecked(bytes) }
}

/// Regions that a memory table may have, parameter `max_mem_regions`.
pub(crate) fn max_mem_regions() -> u16 {
    // SAFETY: The helper takes nothing.
    unsafe { bindings::vnr_param_max_mem_regions() }
}

/// Entries that an address map keeps, parameter `max_iotlb_entries`. `None` if
/// it allows none.
pub(crate) fn max_iotlb_entries() -> Option<NonZeroUsize> {
    // SAFETY: The helper takes nothing.
    let entries = unsafe { bindings::vnr_param_max_iotlb_entries() };
    NonZeroUsize::new(usize::try_from(entries).unwrap_or(0))
}

/// How a device polls unless it is told, parameters `poll_us`, `poll_policy`,
/// `poll_competitor`, `poll_guest`, `poll_start_rate` and `poll_stop_idle`.
pub(crate) fn poll_defaults() -> Settings {
    let mut raw = bindings::vnr_poll_defaults::default();
    // SAFETY: The helper writes one structure.
    unsafe { bindings::vnr_param_poll(&mut raw) };
    Settings {
        // Only policies can be set.
        policy: Policy::from_number(raw.policy).unwrap_or(Policy::Fixed),
        window: raw.window,
        competitor: raw.flags & bindings::VHOST_NET_RS_POLL_COMPETITOR != 0,
        guest: raw.flags & bindings::VHOST_NET_RS_POLL_GUEST != 0,
        start_rate: raw.start_rate,
        stop_idle: raw.stop_idle,
    }
}

/// The longest time to poll in vain in units of 1,024 ns, parameter
/// `poll_max_us`.
pub(crate) fn poll_max() -> u32 {
    // SAFETY: The helper takes nothing.
    match unsafe { bindings::vnr_param_poll_max_us() } {
        0 => u32::MAX,
        max => max,
    }
}

/// What the thread of a worker belongs to unless the owner chooses, parameter
/// `fork_from_owner_default`.
pub(crate) fn default_kind() -> Kind {
    // SAFETY: The helper takes nothing.
    if unsafe { bindings::vnr_param_fork_from_owner_default() } {
        Kind::Owner
    } else {
        Kind::Kernel
    }
}

/// Whether packets may be sent from the guest's memory, parameter
/// `experimental_zcopytx`.
pub(crate) fn zerocopytx() -> bool {
    // SAFETY: The helper takes nothing.
    unsafe { bindings::vnr_param_zerocopytx() }
}
