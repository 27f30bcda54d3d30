// SPDX-License-Identifier: GPL-2.0

//! What the kernel holds, by `/proc/meminfo`.

use anyhow::{Context, Result};
use std::fs;

/// Kinds of kernel memory, in KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Slab objects and other `kmalloc()`s.
    pub slab: u64,
    /// `vmalloc()`, the stacks included.
    pub vmalloc: u64,
    /// Stacks of threads alone.
    pub stack: u64,
}

impl Memory {
    /// What there is now.
    ///
    /// # Errors
    ///
    /// A kernel that does not say.
    pub fn now() -> Result<Self> {
        // Each CPU counts for itself: this puts the counts together.
        let _counted = fs::write("/proc/sys/vm/stat_refresh", "1");
        Self::parse(&fs::read_to_string("/proc/meminfo")?)
    }

    fn parse(text: &str) -> Result<Self> {
        let number = |key: &str| {
            let value = text
                .lines()
                .find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
            let value = value.and_then(|value| value.trim().strip_suffix(" kB"));
            let value = value.and_then(|value| value.trim().parse::<u64>().ok());
            value.with_context(|| format!("/proc/meminfo has no {key}"))
        };
        Ok(Self {
            slab: number("Slab")?,
            vmalloc: number("VmallocUsed")?,
            stack: number("KernelStack")?,
        })
    }

    /// How much more there is than `before`, of all kinds.
    pub fn total_since(&self, before: &Self) -> u64 {
        let (now, then) = (self.slab + self.vmalloc, before.slab + before.vmalloc);
        now.saturating_sub(then)
    }

    /// How much more there is in stacks than `before`.
    pub fn stack_since(&self, before: &Self) -> u64 {
        self.stack.saturating_sub(before.stack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "MemFree:  1 kB\nSlab:             20480 kB\nSReclaimable: 3 kB\n\
        KernelStack:        1024 kB\nVmallocUsed:        3000 kB\n";

    #[test]
    fn kinds_are_found_and_stacks_counted_once() {
        let before = Memory::parse(TEXT).unwrap();
        let stacks = TEXT.replace("1024", "1040").replace("3000", "3016");
        let now = Memory::parse(&stacks.replace("20480", "20500")).unwrap();
        assert_eq!(
            (now.total_since(&before), now.stack_since(&before)),
            (36, 16)
        );
        assert_eq!(before.total_since(&now), 0);
    }

    #[test]
    fn kernel_that_does_not_say_is_an_error() {
        assert!(Memory::parse("Slab: 5 kB\nKernelStack: 5 kB\n").is_err());
    }
}
