// SPDX-License-Identifier: GPL-2.0

//! A socket that sends from the guest's memory, and is done when it is told.

use std::collections::{BTreeMap, VecDeque};

use vhost_engine::engine::addr::Segment;
use vhost_engine::engine::net::backend::{
    Completion, Completions, Listen, SendError, ZeroCopyBackend,
};
use vhost_engine::engine::net::in_flight::SLOTS;

use crate::arena::Arena;

/// A frame as the socket has it.
enum Frame {
    Read(Vec<u8>),
    InPlace,
}

/// A packet in flight: where it is, and what became of it.
struct Pending {
    segments: Vec<Segment>,
    done: Option<Completion>,
    frame: usize,
}

pub struct ZeroCopySocket<'m, 'a> {
    mem: &'m Arena<'a>,
    slots: BTreeMap<usize, Pending>,
    frames: Vec<Frame>,
    pub listen: Listen,
    /// `more` of each send.
    pub more: Vec<bool>,
    /// Answers of the next sends; then they succeed.
    pub answers: VecDeque<Result<(), SendError>>,
    /// Each packet is done before `send()` returns.
    pub at_once: Option<Completion>,
    /// The most packets that it ever had.
    pub peak: usize,
}

impl<'m, 'a> ZeroCopySocket<'m, 'a> {
    pub fn new(mem: &'m Arena<'a>) -> Self {
        Self {
            mem,
            slots: BTreeMap::new(),
            frames: Vec::new(),
            listen: Listen::Sometimes,
            more: Vec::new(),
            answers: VecDeque::new(),
            at_once: None,
            peak: 0,
        }
    }

    /// Slots of packets that are not done, in the order in which they were sent.
    pub fn waiting(&self) -> Vec<usize> {
        let mut waiting: Vec<_> = self
            .slots
            .iter()
            .filter(|(_, pending)| pending.done.is_none())
            .map(|(slot, pending)| (pending.frame, *slot))
            .collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, slot)| slot).collect()
    }

    /// The frames of packets that are not done.
    pub fn held(&self) -> Vec<Vec<u8>> {
        let waiting = self.slots.values().filter(|pending| pending.done.is_none());
        waiting
            .map(|pending| self.mem.gather(&pending.segments).expect("its memory"))
            .collect()
    }

    /// The packet in a slot is done: only now is it read.
    pub fn finish(&mut self, slot: usize, how: Completion) {
        let pending = self.slots.get_mut(&slot).expect("a packet in flight");
        assert!(pending.done.is_none(), "it was done before");
        let bytes = self.mem.gather(&pending.segments).expect("its memory");
        self.frames[pending.frame] = Frame::Read(bytes);
        pending.done = Some(how);
    }

    pub fn finish_all(&mut self, how: Completion) {
        for slot in self.waiting() {
            self.finish(slot, how);
        }
    }

    /// What left, and `None` for what is in flight.
    pub fn sent(&self) -> Vec<Option<Vec<u8>>> {
        let sent = |frame: &Frame| match frame {
            Frame::Read(bytes) => Some(bytes.clone()),
            Frame::InPlace => None,
        };
        self.frames.iter().map(sent).collect()
    }
}

impl Completions for ZeroCopySocket<'_, '_> {
    fn complete(&mut self, slot: usize) -> Option<Completion> {
        let done = self.slots.get(&slot).expect("a packet in flight").done?;
        self.slots.remove(&slot);
        Some(done)
    }
}

impl ZeroCopyBackend for ZeroCopySocket<'_, '_> {
    fn send(
        &mut self,
        segments: &[Segment],
        len: usize,
        more: bool,
        slot: Option<usize>,
    ) -> Result<(), SendError> {
        let total: u64 = segments.iter().map(|segment| segment.len).sum();
        assert_eq!(total, len as u64, "length and segments disagree");
        assert_eq!(self.listen, Listen::Never, "a run looks for itself");
        self.answers.pop_front().unwrap_or(Ok(()))?;
        self.more.push(more);
        let Some(slot) = slot else {
            let bytes = self.mem.gather(segments).ok_or(SendError::Refused)?;
            self.frames.push(Frame::Read(bytes));
            return Ok(());
        };
        assert!(slot < SLOTS, "no such slot");
        let pending = Pending {
            segments: segments.to_vec(),
            done: None,
            frame: self.frames.len(),
        };
        self.frames.push(Frame::InPlace);
        let old = self.slots.insert(slot, pending);
        assert!(old.is_none(), "slot {slot} is in use");
        self.peak = self.peak.max(self.waiting().len());
        if let Some(how) = self.at_once {
            self.finish(slot, how);
        }
        Ok(())
    }

    fn listen(&mut self, listen: Listen) {
        self.listen = listen;
    }
}
