// SPDX-License-Identifier: GPL-2.0

//! Memory that driver and device share.

use nix::sys::memfd::{memfd_create, MFdFlags};
use std::fs::File;
use std::io;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::sync::Arc;
use vhost_uapi::TopMapping;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

/// An address as the driver gives it to the device ("guest physical").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gpa(pub u64);

impl std::ops::Add<u64> for Gpa {
    type Output = Self;

    fn add(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// A region of the memory table: where the driver's addresses are in the owner's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First address, as the driver has it.
    pub gpa: Gpa,
    /// Bytes.
    pub size: u64,
    /// First address, as the owner of the device has it.
    pub uva: u64,
}

/// Memory that a device reads and writes.
///
/// To the driver it is one run of addresses. To the device it is a row of regions that adjoin in the driver's addresses but not
/// in the owner's, so that a buffer over a region's edge is translated into two pieces. Both are mappings of the same pages.
/// All access is atomic or volatile, as the device may write at any time.
#[derive(Clone, Debug)]
pub struct GuestMemory(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    base: Gpa,
    view: MmapRegion<()>,
    mapped: Vec<Mapped>,
    regions: Vec<Region>,
}

/// How the owner has a region.
#[derive(Debug)]
enum Mapped {
    Anywhere(MmapRegion<()>),
    Top(TopMapping),
}

impl Mapped {
    fn uva(&self) -> u64 {
        match self {
            Self::Anywhere(map) => uva_of(map),
            Self::Top(map) => map.uva(),
        }
    }
}

/// Maps so many bytes of the file, from a place in it on.
type Map = fn(&Arc<File>, usize, usize) -> io::Result<Mapped>;

/// The page size, which region sizes are multiples of.
const PAGE: usize = 4096;

impl GuestMemory {
    /// Makes a memory of regions with these sizes, rounded up to pages.
    ///
    /// The driver's addresses begin at `base`; without one they are those of the owner, which only a single region allows.
    ///
    /// # Errors
    ///
    /// [`io::ErrorKind::InvalidInput`] for no region, an empty one, or several without a base; else what mmap(2) says.
    pub fn new(sizes: &[usize], base: Option<Gpa>) -> io::Result<Self> {
        Self::mapped(sizes, base, |file, start, size| {
            Ok(Mapped::Anywhere(map(file, start, size)?))
        })
    }

    /// The same at the top of the owner's address space: the first region is the topmost. There can be one in a process.
    ///
    /// # Errors
    ///
    /// As above.
    pub fn at_top(sizes: &[usize], base: Gpa) -> io::Result<Self> {
        Self::mapped(sizes, Some(base), |file, start, size| {
            let map = TopMapping::new(file, start, size).map_err(io::Error::other)?;
            Ok(Mapped::Top(map))
        })
    }

    fn mapped(sizes: &[usize], base: Option<Gpa>, map_region: Map) -> io::Result<Self> {
        if sizes.is_empty() || sizes.contains(&0) || (base.is_none() && sizes.len() > 1) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let sizes: Vec<usize> = sizes
            .iter()
            .map(|size| size.next_multiple_of(PAGE))
            .collect();
        let total: usize = sizes.iter().sum();
        let file = File::from(memfd_create("guest-memory", MFdFlags::MFD_CLOEXEC)?);
        file.set_len(total as u64)?; // CAST: Widens.
        let file = Arc::new(file);

        let view = map(&file, 0, total)?;
        let base = base.unwrap_or(Gpa(uva_of(&view)));
        let mut mapped = Vec::new();
        let mut regions = Vec::new();
        let mut start = 0;
        for size in sizes {
            let region = map_region(&file, start, size)?;
            let gpa = base + start as u64; // CAST: Widens.
            let uva = if base.0 == uva_of(&view) {
                base.0
            } else {
                region.uva()
            };
            regions.push(Region {
                gpa,
                size: size as u64, // CAST: Widens.
                uva,
            });
            mapped.push(region);
            start += size;
        }
        let inner = Inner {
            base,
            view,
            mapped,
            regions,
        };
        Ok(Self(Arc::new(inner)))
    }

    /// The regions, in the order of the driver's addresses.
    pub fn regions(&self) -> &[Region] {
        &self.0.regions
    }

    /// First address.
    pub fn base(&self) -> Gpa {
        self.0.base
    }

    /// Bytes in all.
    pub fn size(&self) -> u64 {
        self.0.view.size() as u64 // CAST: Widens.
    }

    /// Where the owner has `len` bytes at `gpa`, if one region holds them all.
    pub fn uva(&self, gpa: Gpa, len: u64) -> Option<u64> {
        debug_assert_eq!(self.0.mapped.len(), self.0.regions.len());
        let holds = |region: &&Region| {
            let offset = gpa.0.checked_sub(region.gpa.0);
            offset
                .and_then(|offset| offset.checked_add(len))
                .is_some_and(|end| end <= region.size)
        };
        self.0
            .regions
            .iter()
            .find(holds)
            .map(|region| region.uva + (gpa.0 - region.gpa.0))
    }

    /// Whether `len` bytes at `gpa` are in it.
    pub fn contains(&self, gpa: Gpa, len: u64) -> bool {
        let offset = gpa.0.checked_sub(self.base().0);
        offset
            .and_then(|offset| offset.checked_add(len))
            .is_some_and(|end| end <= self.size())
    }

    /// The file that it is in, for others to map.
    pub fn file_offset(&self) -> Option<&FileOffset> {
        self.0.view.file_offset()
    }

    fn offset(&self, gpa: Gpa) -> usize {
        let offset = gpa
            .0
            .checked_sub(self.0.base.0)
            .and_then(|offset| usize::try_from(offset).ok());
        offset.unwrap_or_else(|| panic!("{gpa:x?} lies before the guest's memory"))
    }

    fn atomic<T: vm_memory::AtomicInteger>(&self, gpa: Gpa) -> &T {
        let found = self.0.view.get_atomic_ref::<T>(self.offset(gpa));
        found.unwrap_or_else(|err| panic!("{gpa:x?} in the guest's memory: {err}"))
    }

    /// Loads an index. What the device wrote before it stored the index is visible afterwards.
    ///
    /// # Panics
    ///
    /// If the address is outside of the memory or not aligned, as all access does.
    pub fn load_u16(&self, gpa: Gpa, order: Ordering) -> u16 {
        u16::from_le(self.atomic::<AtomicU16>(gpa).load(order))
    }

    /// Stores an index.
    pub fn store_u16(&self, gpa: Gpa, value: u16, order: Ordering) {
        self.atomic::<AtomicU16>(gpa).store(value.to_le(), order);
    }

    /// Loads a 32-bit field. No ordering.
    pub fn load_u32(&self, gpa: Gpa) -> u32 {
        u32::from_le(self.atomic::<AtomicU32>(gpa).load(Ordering::Relaxed))
    }

    /// Stores a 32-bit field. No ordering.
    pub fn store_u32(&self, gpa: Gpa, value: u32) {
        self.atomic::<AtomicU32>(gpa)
            .store(value.to_le(), Ordering::Relaxed);
    }

    /// Stores a 64-bit field. No ordering.
    pub fn store_u64(&self, gpa: Gpa, value: u64) {
        self.atomic::<AtomicU64>(gpa)
            .store(value.to_le(), Ordering::Relaxed);
    }

    /// Takes a 64-bit field that others set bits in, leaving 0. What they wrote before a bit is visible afterwards.
    pub fn take_u64(&self, gpa: Gpa) -> u64 {
        u64::from_le(self.atomic::<AtomicU64>(gpa).swap(0, Ordering::SeqCst))
    }

    /// Copies bytes out of a buffer.
    pub fn read(&self, gpa: Gpa, bytes: &mut [u8]) {
        let slice = self.0.view.as_volatile_slice();
        let read = slice.read_slice(bytes, self.offset(gpa));
        read.unwrap_or_else(|err| panic!("{gpa:x?} in the guest's memory: {err}"));
    }

    /// Copies bytes into a buffer.
    pub fn write(&self, gpa: Gpa, bytes: &[u8]) {
        let slice = self.0.view.as_volatile_slice();
        let written = slice.write_slice(bytes, self.offset(gpa));
        written.unwrap_or_else(|err| panic!("{gpa:x?} in the guest's memory: {err}"));
    }
}

fn map(file: &Arc<File>, start: usize, size: usize) -> io::Result<MmapRegion<()>> {
    let offset = FileOffset::from_arc(Arc::clone(file), start as u64); // CAST: Widens.
    MmapRegion::from_file(offset, size).map_err(io::Error::other)
}

fn uva_of(map: &MmapRegion<()>) -> u64 {
    map.as_ptr().expose_provenance() as u64 // CAST: Widens.
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_adjoin_for_the_driver_and_not_for_the_owner() {
        let memory = GuestMemory::new(&[4096, 8192, 100], Some(Gpa(0x4000_0000))).unwrap();
        let [a, b, c] = memory.regions() else {
            panic!()
        };
        assert_eq!(
            (a.gpa, b.gpa, c.gpa),
            (Gpa(0x4000_0000), Gpa(0x4000_1000), Gpa(0x4000_3000))
        );
        assert_eq!((b.size, c.size), (8192, 4096));
        assert_ne!(a.uva + a.size, b.uva);
        assert_ne!(b.uva + b.size, c.uva);
        assert_eq!(memory.uva(Gpa(0x4000_1010), 8176), Some(b.uva + 0x10));
        assert_eq!(memory.uva(Gpa(0x4000_1010), 8177), None);
        assert!(memory.contains(Gpa(0x4000_1010), 0x3000 - 0x10));
        assert!(!memory.contains(Gpa(0x4000_1010), 0x3001 - 0x10));
        assert!(!memory.contains(Gpa(0x3fff_ffff), 1));
    }

    #[test]
    fn bytes_over_an_edge_come_back() {
        let memory = GuestMemory::new(&[4096, 4096], Some(Gpa(0))).unwrap();
        memory.write(Gpa(4090), b"hello, region");
        let mut back = [0; 13];
        memory.read(Gpa(4090), &mut back);
        assert_eq!(&back, b"hello, region");
        assert_eq!(
            memory.load_u16(Gpa(4090), Ordering::Relaxed),
            u16::from_le_bytes(*b"he")
        );
    }

    #[test]
    fn memory_ends_where_user_space_does() {
        let memory = GuestMemory::at_top(&[4096, 8192], Gpa(0)).unwrap();
        let [first, second] = memory.regions() else {
            panic!()
        };
        assert_eq!(
            first.uva + first.size + 4096,
            (first.uva + 8192).next_power_of_two()
        );
        assert_eq!(second.uva + second.size, first.uva);
    }

    #[test]
    fn identity_is_for_one_region() {
        assert!(GuestMemory::new(&[4096, 4096], None).is_err());
        let memory = GuestMemory::new(&[4096], None).unwrap();
        assert_eq!(memory.regions()[0].uva, memory.regions()[0].gpa.0);
    }
}
