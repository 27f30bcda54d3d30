// SPDX-License-Identifier: GPL-2.0

//! Marks in a program's run, for who watches its instructions from outside (`vhost-count`, a plugin of QEMU's).

/// A mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// What is to be counted starts.
    Start,
    /// It has ended.
    End,
}

/// Executes the mark: one instruction that does nothing, and none on other machines than x86-64.
pub fn mark(mark: Mark) {
    #[cfg(target_arch = "x86_64")]
    match mark {
        // SAFETY: A `nop` reads and writes nothing, its operand is not accessed.
        Mark::Start => unsafe {
            std::arch::asm!(
                "nop dword ptr [rax + 0x766e7201]",
                options(nostack, preserves_flags)
            );
        },
        // SAFETY: As above.
        Mark::End => unsafe {
            std::arch::asm!(
                "nop dword ptr [rax + 0x766e7202]",
                options(nostack, preserves_flags)
            );
        },
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = mark;
}
