// SPDX-License-Identifier: GPL-2.0

//! C items that the kernel crate's own bindings lack, and all that they have.
//!
//! Only `kapi` may use them.

#![allow(
    clippy::all,
    clippy::ptr_as_ptr,
    clippy::ref_as_ptr,
    clippy::cast_lossless,
    clippy::undocumented_unsafe_blocks,
    dead_code,
    missing_docs,
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    improper_ctypes,
    unreachable_pub,
    unsafe_op_in_unsafe_fn
)]

mod raw {
    // What is included below comes before what this brings in: there is one
    // `struct file` in the crate, the kernel crate's.
    pub(crate) use kernel::bindings::*;
    use kernel::ffi;
    use pin_init::MaybeZeroable;

    include!(env!("VNR_BINDINGS"));
}

pub(crate) use raw::*;
