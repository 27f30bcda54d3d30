// SPDX-License-Identifier: GPL-2.0

//! The IOMMU of the driver: it tells the device where a page is that the device has missed, and takes pages away.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use vhost_driver::{Gpa, GuestMemory};
use vhost_uapi::iotlb::{Kind, Message, What, READ, WRITE};
use vhost_uapi::VhostNet;

use crate::failure::Failure;

/// Bytes that an entry of the device's IOTLB is for.
pub const PAGE: u64 = 4096;
/// How long to wait for a miss before looking around.
const LOOK_AROUND: Duration = Duration::from_millis(20);
/// From one page that is taken to the next: all have their turn where their number is no multiple of it.
const STRIDE: u64 = 7;

/// What the IOMMU knows.
#[derive(Debug)]
pub struct Iommu {
    memory: GuestMemory,
    /// Held while entries change.
    entries: Mutex<()>,
}

/// What it did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Misses that it answered.
    pub misses: u64,
    /// Pages that it took away.
    pub taken: u64,
}

impl Iommu {
    /// The IOMMU of a driver with this memory, each page of which is a region of its own.
    pub fn new(memory: GuestMemory) -> Self {
        let entries = Mutex::new(());
        Self { memory, entries }
    }

    /// Does `act`, for which the device must know the page of `iova`, while no page is taken away.
    ///
    /// # Errors
    ///
    /// Those of the message, and of `act`.
    pub fn with_page(
        &self,
        vhost: &VhostNet,
        iova: Gpa,
        act: impl FnOnce() -> vhost_uapi::Result,
    ) -> vhost_uapi::Result {
        let _entries = self.hold();
        self.send(vhost, iova, What::Update)?;
        act()
    }

    /// Answers misses, and takes a page away `every` so often, until `stop`.
    ///
    /// # Errors
    ///
    /// Those of the messages; [`Failure::State`] for a miss of what is not the guest's.
    pub fn serve(
        &self,
        vhost: &VhostNet,
        every: Option<Duration>,
        stop: &AtomicBool,
    ) -> Result<Work, Failure> {
        let pages = self.memory.size() / PAGE;
        let (first, end) = (self.memory.base(), self.memory.base() + pages * PAGE);
        let mut work = Work::default();
        let mut last = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            let left = every.map(|every| every.saturating_sub(last.elapsed()));
            if let Some(miss) = vhost.next_miss(left.unwrap_or(LOOK_AROUND))? {
                let iova = Gpa(miss.iova);
                if !(first..end).contains(&iova) {
                    return Err(Failure::State(format!("{miss:x?} is not the guest's")));
                }
                let _entries = self.hold();
                self.send(vhost, iova, What::Update)?;
                work.misses += 1;
            }
            if every.is_some_and(|every| last.elapsed() >= every) {
                let _entries = self.hold();
                let page = work.taken * STRIDE % pages;
                self.send(vhost, first + page * PAGE, What::Invalidate)?;
                work.taken += 1;
                last = Instant::now();
            }
        }
        Ok(work)
    }

    fn hold(&self) -> MutexGuard<'_, ()> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message about the page of `iova`.
    fn send(&self, vhost: &VhostNet, iova: Gpa, what: What) -> vhost_uapi::Result {
        let page = Gpa(iova.0 / PAGE * PAGE);
        vhost.send_message(&Message {
            kind: Kind::V2,
            what,
            iova: page.0,
            size: PAGE,
            uva: self.memory.uva(page, PAGE).unwrap_or(0),
            // A device that may read alone does not ask for more.
            access: READ | WRITE,
        })
    }
}
