// SPDX-License-Identifier: GPL-2.0

//! Tracepoints. One that is off costs a `nop`, which the kernel makes a jump when
//! it is on; what it reports comes from a closure that only then runs.
//!
//! `kernel::declare_trace!` finds only the kernel's own ones.
//!
//! Our header: `include/trace/events/vhost_net_rs.h`

use crate::bindings;
use kernel::prelude::*;

/// A vring, as events name it.
#[derive(Clone, Copy)]
pub(crate) struct Id {
    /// The device's number.
    pub(crate) device: u64,
    /// The vring's index in it.
    pub(crate) vring: u32,
}

/// Whether the tracepoint is on: a branch that the kernel patches.
macro_rules! is_on {
    ($tracepoint:ident) => {{
        #[cfg(all(CONFIG_TRACEPOINTS, not(vnr_no_tracepoints)))]
        // SAFETY: The key is that of a tracepoint which C defines.
        let on = unsafe {
            kernel::jump_label::static_branch_unlikely!(
                bindings::$tracepoint,
                bindings::tracepoint,
                key
            )
        };
        #[cfg(any(not(CONFIG_TRACEPOINTS), vnr_no_tracepoints))]
        let on = false;
        on
    }};
}

/// Makes functions that hit a tracepoint if it is on.
macro_rules! tracepoints {
    ($($(#[$doc:meta])* $name:ident: $tracepoint:ident, $hit:ident
        ($($arg:ident: $type:ty),*) => ($($raw:expr),*);)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        pub(crate) fn $name(args: impl FnOnce() -> ($($type,)*)) {
            #[cold]
            #[inline(never)]
            fn hit(args: impl FnOnce() -> ($($type,)*)) {
                let ($($arg,)*) = args();
                #[cfg(CONFIG_TRACEPOINTS)]
                // SAFETY: The arguments have the types of the prototype; a string
                // ends with a NUL, and is copied.
                unsafe {
                    bindings::$hit($($raw),*)
                };
                #[cfg(not(CONFIG_TRACEPOINTS))]
                let _ = ($($raw,)*);
            }
            if is_on!($tracepoint) {
                hit(args);
            }
        }
    )*};
}

tracepoints! {
    /// The driver kicked.
    kick: __tracepoint_kick, rust_do_trace_kick(id: Id) => (id.device, id.vring);
    /// A run begins.
    run_begin: __tracepoint_run_begin, rust_do_trace_run_begin(id: Id) => (id.device, id.vring);
    /// A run ended: why, and the packets and bytes that it moved.
    run_end: __tracepoint_run_end, rust_do_trace_run_end(
        id: Id, reason: &'static CStr, packets: u64, bytes: u64
    ) => (id.device, id.vring, reason.as_char_ptr(), packets, bytes);
    /// A window for busy polling opens, for so many nanoseconds.
    poll_begin: __tracepoint_poll_begin, rust_do_trace_poll_begin(
        id: Id, window_ns: u64
    ) => (id.device, id.vring, window_ns);
    /// It ended: why, and after how many nanoseconds.
    poll_end: __tracepoint_poll_end, rust_do_trace_poll_end(
        id: Id, reason: &'static CStr, ns: u64
    ) => (id.device, id.vring, reason.as_char_ptr(), ns);
    /// The driver is called.
    call_made: __tracepoint_call_made, rust_do_trace_call_made(id: Id) => (id.device, id.vring);
    /// Used buffers were published, and the driver wants no call.
    call_suppressed: __tracepoint_call_suppressed, rust_do_trace_call_suppressed(
        id: Id
    ) => (id.device, id.vring);
    /// So many packets are lost, and why.
    drop: __tracepoint_drop, rust_do_trace_drop(
        id: Id, reason: &'static CStr, count: u64
    ) => (id.device, id.vring, reason.as_char_ptr(), count);
    /// Something is wrong so many times: what.
    error: __tracepoint_error, rust_do_trace_error(
        id: Id, reason: &'static CStr, count: u64
    ) => (id.device, id.vring, reason.as_char_ptr(), count);
    /// The device has an owner, the process of this id, and a worker.
    worker_create: __tracepoint_worker_create, rust_do_trace_worker_create(
        device: u64, owner: i32
    ) => (device, owner);
    /// The worker, the thread of this id, is gone.
    worker_exit: __tracepoint_worker_exit, rust_do_trace_worker_exit(
        device: u64, worker: i32
    ) => (device, worker);
}

/// Whether the ends of runs are traced.
#[inline(always)]
pub(crate) fn run_end_is_on() -> bool {
    is_on!(__tracepoint_run_end)
}
