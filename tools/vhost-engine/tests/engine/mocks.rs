// SPDX-License-Identifier: GPL-2.0

//! The socket and the machine around a run.

use std::collections::VecDeque;

use vhost_engine::engine::addr::Segment;
use vhost_engine::engine::counters::{Counter, Counters};
use vhost_engine::engine::host::{End, Host, Window};
use vhost_engine::engine::net::backend::{Received, RxBackend, SendError, Staged, TxBackend};
use vhost_engine::engine::split::SplitQueue;

use crate::arena::Arena;

type Meanwhile<'a> = Box<dyn FnMut(&SplitQueue) + 'a>;

/// Counts; polls as told, doing what it is told meanwhile.
#[derive(Default)]
pub struct Machine<'a> {
    pub calls: usize,
    pub polls: usize,
    pub counters: Counters,
    pub windows: VecDeque<Option<(End, Meanwhile<'a>)>>,
    pub on_call: Option<Box<dyn FnMut() + 'a>>,
}

impl<'a> Machine<'a> {
    pub fn window(&mut self, end: End, meanwhile: impl FnMut(&SplitQueue) + 'a) {
        self.windows.push_back(Some((end, Box::new(meanwhile))));
    }

    /// A run asks for a window and gets none.
    pub fn no_window(&mut self) {
        self.windows.push_back(None);
    }
}

/// How long each window is, in nanoseconds.
pub const WINDOW_NS: u64 = 1000;

impl Host for Machine<'_> {
    fn count(&mut self, counter: Counter, n: u64) {
        let mut values = self.counters.values();
        values[counter as usize] += n;
        self.counters = Counters::read(|counter| values[counter as usize]);
    }

    fn call(&mut self) {
        self.calls += 1;
        if let Some(act) = self.on_call.as_mut() {
            act();
        }
    }

    fn poll(&mut self, queue: &SplitQueue) -> Option<Window> {
        self.polls += 1;
        let (end, mut meanwhile) = self.windows.pop_front()??;
        meanwhile(queue);
        let ns = WINDOW_NS;
        Some(Window { end, ns })
    }
}

/// A socket that takes frames.
pub struct TxSocket<'m, 'a> {
    mem: &'m Arena<'a>,
    pub batch: usize,
    /// Frames above this are too large for a batch.
    pub page: usize,
    pub header: usize,
    pub staged: Vec<Vec<u8>>,
    pub sent: Vec<Vec<u8>>,
    /// `more` of each single send.
    pub more: Vec<bool>,
    pub submits: usize,
    pub single: usize,
    /// Answers of the next single sends; then they succeed.
    pub answers: VecDeque<Result<(), SendError>>,
    /// Answers of the next submits.
    pub submit_answers: VecDeque<Result<(), SendError>>,
    /// So many more frames find memory.
    pub memory: usize,
}

impl<'m, 'a> TxSocket<'m, 'a> {
    pub fn new(mem: &'m Arena<'a>, batch: usize, header: usize) -> Self {
        Self {
            mem,
            batch,
            page: 3000,
            header,
            staged: Vec::new(),
            sent: Vec::new(),
            more: Vec::new(),
            submits: 0,
            single: 0,
            answers: VecDeque::new(),
            submit_answers: VecDeque::new(),
            memory: usize::MAX,
        }
    }
}

fn total(segments: &[Segment]) -> u64 {
    segments.iter().map(|segment| segment.len).sum()
}

impl TxBackend for TxSocket<'_, '_> {
    fn batch_size(&self) -> usize {
        self.batch
    }

    fn stage(
        &mut self,
        segments: &[Segment],
        len: usize,
        fix: impl FnOnce(&mut [u8], usize) -> bool,
    ) -> Staged {
        assert_eq!(total(segments), len as u64, "length and segments disagree");
        assert!(self.staged.len() < self.batch, "the batch is full");
        if len > self.page {
            return Staged::TooLarge;
        }
        if self.memory == 0 {
            return Staged::NoMemory;
        }
        self.memory -= 1;
        let Some(mut frame) = self.mem.gather(segments) else {
            return Staged::Unsendable;
        };
        if !fix(&mut frame[..self.header], len) {
            return Staged::Unsendable;
        }
        self.staged.push(frame);
        Staged::Done
    }

    fn submit(&mut self) -> Result<(), SendError> {
        assert!(!self.staged.is_empty(), "nothing to submit");
        self.submits += 1;
        let staged = std::mem::take(&mut self.staged);
        self.submit_answers.pop_front().unwrap_or(Ok(()))?;
        self.sent.extend(staged);
        Ok(())
    }

    fn send(&mut self, segments: &[Segment], len: usize, more: bool) -> Result<(), SendError> {
        assert_eq!(total(segments), len as u64, "length and segments disagree");
        assert!(self.staged.is_empty(), "frames in the batch are overtaken");
        self.single += 1;
        self.answers.pop_front().unwrap_or(Ok(()))?;
        let frame = self.mem.gather(segments).ok_or(SendError::Refused)?;
        self.more.push(more);
        self.sent.push(frame);
        Ok(())
    }
}

/// A socket with packets for the guest.
pub struct RxSocket<'m, 'a> {
    mem: &'m Arena<'a>,
    pub header: usize,
    pub packets: VecDeque<Vec<u8>>,
    pub discarded: Vec<Vec<u8>>,
    /// The `max` of each look.
    pub looks: Vec<usize>,
    /// So many packets answer one byte less than they should.
    pub shrink: usize,
    /// Whether a look, counted from 1, sees nothing although packets are there.
    pub blind: fn(usize) -> bool,
    /// Happens after each receipt.
    pub after_recv: Option<Box<dyn FnMut() + 'm>>,
}

/// What a socket writes where the header goes.
pub const SOCKET_HEADER: u8 = 0xa5;

impl<'m, 'a> RxSocket<'m, 'a> {
    pub fn new(mem: &'m Arena<'a>, header: usize) -> Self {
        Self {
            mem,
            header,
            packets: VecDeque::new(),
            discarded: Vec::new(),
            looks: Vec::new(),
            shrink: 0,
            blind: |_| false,
            after_recv: None,
        }
    }

    pub fn push(&mut self, len: usize, fill: u8) {
        self.packets.push_back(vec![fill; len]);
    }
}

impl RxBackend for RxSocket<'_, '_> {
    fn peek_len(&mut self, max: usize) -> Option<usize> {
        assert!(max > 0, "a look for nothing");
        self.looks.push(max);
        assert!(self.looks.len() < 100_000, "this never ends");
        if (self.blind)(self.looks.len()) {
            return None;
        }
        self.packets.front().map(Vec::len)
    }

    fn recv(&mut self, segments: &[Segment], len: usize, num_buffers: u16) -> Received {
        let packet = self.packets.pop_front().expect("no packet was shown");
        let mut data = vec![SOCKET_HEADER; self.header];
        data.extend_from_slice(&packet);
        assert_eq!(data.len(), len, "header and packet");
        assert!(total(segments) >= len as u64, "the buffer is too small");
        if self.shrink > 0 {
            self.shrink -= 1;
            data.pop();
        }
        let done = self.mem.scatter(segments, &data);
        if let Some(act) = self.after_recv.as_mut() {
            act();
        }
        match num_buffers {
            _ if done != len => Received::Part,
            0 => Received::Whole,
            _ => Received::Uncounted,
        }
    }

    fn discard(&mut self) {
        let packet = self.packets.pop_front().expect("no packet was shown");
        self.discarded.push(packet);
    }
}
