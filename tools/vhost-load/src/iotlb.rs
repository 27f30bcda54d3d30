// SPDX-License-Identifier: GPL-2.0

//! The mappings of an IOMMU that never changes.

use anyhow::{Context, Result};
use vhost_driver::{Gpa, GuestMemory};
use vhost_uapi::iotlb::{Kind, Message, What, READ, WRITE};
use vhost_uapi::VhostNet;

const PAGE: u64 = 4096;

/// A mapping: where the device has it, how long it is, and the place in memory that it is of.
type Mapping = (u64, u64, Gpa);

/// Fills the device's table: `count` mappings, of all memory. Each is of as many pages as make `count` of them; if memory
/// has too few pages, the last are behind it and repeat its first.
///
/// # Errors
///
/// EFAULT from a device that takes no messages, or not so many mappings.
pub fn fill(vhost: &VhostNet, memory: &GuestMemory, count: u32) -> Result<()> {
    for (iova, size, gpa) in mappings(memory.base(), memory.size(), u64::from(count)) {
        let uva = memory
            .uva(gpa, size)
            .context("a mapping outside of memory")?;
        vhost.send_message(&Message {
            kind: Kind::V2,
            what: What::Update,
            iova,
            size,
            uva,
            access: READ | WRITE,
        })?;
    }
    Ok(())
}

fn mappings(base: Gpa, size: u64, count: u64) -> impl Iterator<Item = Mapping> {
    let step = size.div_ceil(count).next_multiple_of(PAGE);
    let own = size.div_ceil(step);
    (0..count).map(move |number| {
        let offset = number * step;
        let place = (number % own) * step;
        (base.0 + offset, step.min(size - place), base + place)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_cover_memory_and_do_not_overlap() {
        for (size, count) in [
            (10 * PAGE, 1),
            (10 * PAGE, 3),
            (10 * PAGE, 10),
            (2 * PAGE, 7),
        ] {
            let all: Vec<Mapping> = mappings(Gpa(1 << 32), size, count).collect();
            assert_eq!(all.len() as u64, count);
            let covered: u64 = all
                .iter()
                .filter(|(iova, _, gpa)| *iova == gpa.0)
                .map(|(_, len, _)| len)
                .sum();
            assert_eq!(covered, size, "{size} in {count}");
            for pair in all.windows(2) {
                assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:x?}");
            }
        }
    }
}
