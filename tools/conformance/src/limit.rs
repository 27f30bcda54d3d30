// SPDX-License-Identifier: GPL-2.0

//! Where user memory ends.

use std::fs;
use std::sync::OnceLock;

/// An address in the kernel's half.
pub const KERNEL: u64 = 0xffff_8880_0000_0000;

/// Whether addresses have 57 bits.
pub fn five_levels() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        text.split_whitespace().any(|flag| flag == "la57")
    })
}

/// The first address that no process may use: a page before half of the address space.
pub fn end_of_user_memory() -> u64 {
    let bits = if five_levels() { 56 } else { 47 };
    (1 << bits) - 4096
}
