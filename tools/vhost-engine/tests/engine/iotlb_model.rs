// SPDX-License-Identifier: GPL-2.0

//! A device IOTLB as a list: the newest entry at its end, all of them looked at.

/// An entry, from `start` to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub start: u64,
    pub last: u64,
    pub uva: u64,
    pub access: u32,
}

impl Entry {
    fn meets(&self, start: u64, last: u64) -> bool {
        self.start <= last && start <= self.last
    }
}

/// The entries, in the order in which they came.
pub struct Kept {
    pub entries: Vec<Entry>,
    limit: usize,
}

impl Kept {
    pub fn new(limit: usize) -> Self {
        let entries = Vec::new();
        Self { entries, limit }
    }

    /// The oldest one makes room.
    pub fn add(&mut self, entry: Entry) {
        if self.entries.len() == self.limit {
            self.entries.remove(0);
        }
        self.entries.push(entry);
    }

    pub fn remove(&mut self, start: u64, last: u64) {
        self.entries.retain(|entry| !entry.meets(start, last));
    }

    /// The lowest start that overlaps; the first of equals, as in C's tree.
    pub fn find(&self, start: u64, last: u64) -> Option<&Entry> {
        let hits = self.entries.iter().filter(|entry| entry.meets(start, last));
        hits.min_by_key(|entry| entry.start)
    }

    pub fn overlaps(&self) -> bool {
        let all = self.entries.iter().enumerate();
        all.clone()
            .any(|(i, a)| all.clone().any(|(j, b)| i != j && a.meets(b.start, b.last)))
    }
}
