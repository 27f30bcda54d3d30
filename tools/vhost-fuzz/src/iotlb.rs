// SPDX-License-Identifier: GPL-2.0

//! Messages of the owner to the IOTLB, and misses, against models that look at
//! each entry.

use std::collections::VecDeque;

use arbitrary::Arbitrary;
use vhost_engine::engine::addr::{Iova, Segment, Uva};
use vhost_engine::engine::error::{Access, Error, Result};
use vhost_engine::engine::iotlb::{Iotlb, Range, ACCESS_READ, ACCESS_WRITE};
use vhost_engine::engine::miss::{Message, Miss, Misses, Ticket, MSG_BYTES, MSG_MIN};
use vhost_engine::engine::translate::Translator;

use crate::iotlb_model::{Entry, Kept};

const VRINGS: usize = 2;

/// An address or a size; edges are likely.
#[derive(Arbitrary, Clone, Copy, Debug)]
enum Number {
    Small(u8),
    Pages(u8),
    /// So far from the middle of the address space.
    Middle(i8),
    /// So far from its end.
    Top(u8),
    Raw(u64),
}

impl Number {
    fn value(self) -> u64 {
        match self {
            Self::Small(n) => n.into(),
            Self::Pages(n) => 4096 * u64::from(n),
            Self::Middle(n) => (1_u64 << 63).wrapping_add_signed(n.into()),
            Self::Top(n) => u64::MAX - u64::from(n),
            Self::Raw(n) => n,
        }
    }
}

#[derive(Arbitrary, Debug)]
enum Step {
    Update(Number, Number, Number, u8),
    Invalidate(Number, Number),
    /// A message of these bytes.
    Raw(bool, [u8; MSG_MIN]),
    Find(Number, Number),
    /// Finds what a buffer is.
    Buffer(Number, u32, bool),
    Ask(bool, Number, bool),
    Read,
    /// The last miss that was read gets lost.
    Lose,
    Forget(bool),
    Clear,
}

#[derive(Arbitrary, Debug)]
pub struct Case {
    limit: u8,
    steps: Vec<Step>,
}

/// A miss that was asked.
#[derive(Clone, Copy, Debug)]
struct Asked {
    vring: usize,
    miss: Miss,
    serial: u64,
}

/// Misses as a queue: those that were not read, and those that were.
#[derive(Default)]
struct Questions {
    unread: VecDeque<Asked>,
    read: Vec<Asked>,
    count: u64,
}

impl Questions {
    fn retain(&mut self, keep: impl Fn(usize) -> bool) {
        self.unread.retain(|asked| keep(asked.vring));
        self.read.retain(|asked| keep(asked.vring));
    }

    fn has(&self, vring: usize) -> bool {
        let mut all = self.unread.iter().chain(&self.read);
        all.any(|asked| asked.vring == vring)
    }
}

struct Fuzz {
    real: Iotlb<Vec<Range>>,
    kept: Kept,
    misses: Misses<VRINGS>,
    questions: Questions,
    ticket: Option<(Ticket, u64)>,
}

pub fn run(case: Case) {
    let limit = usize::from(case.limit % 24) + 1;
    let mut fuzz = Fuzz {
        real: Iotlb::new(Vec::new(), limit),
        kept: Kept::new(limit),
        misses: Misses::new(),
        questions: Questions::default(),
        ticket: None,
    };
    for step in case.steps {
        fuzz.step(step);
        fuzz.check();
    }
}

fn access(write: bool) -> Access {
    if write {
        Access::Write
    } else {
        Access::Read
    }
}

/// The message of these fields, of the first kind.
fn message(what: u8, iova: u64, size: u64, uva: u64, access: u8) -> [u8; MSG_MIN] {
    let mut bytes = [0; MSG_MIN];
    bytes[0] = 1;
    bytes[8..16].copy_from_slice(&iova.to_ne_bytes());
    bytes[16..24].copy_from_slice(&size.to_ne_bytes());
    bytes[24..32].copy_from_slice(&uva.to_ne_bytes());
    bytes[32..34].copy_from_slice(&[access, what]);
    bytes
}

impl Fuzz {
    fn step(&mut self, step: Step) {
        match step {
            Step::Update(iova, size, uva, access) => {
                let (iova, size, uva) = (iova.value(), size.value(), uva.value());
                let parsed = self.serve(&message(2, iova, size, uva, access));
                let access = access.into();
                let wanted = Message::Update {
                    iova,
                    size,
                    uva,
                    access,
                };
                assert_eq!(parsed, (size != 0).then_some(wanted));
            }
            Step::Invalidate(iova, size) => {
                let (iova, size) = (iova.value(), size.value());
                let parsed = self.serve(&message(3, iova, size, 0, 0));
                assert_eq!(parsed, Some(Message::Invalidate { iova, size }));
            }
            Step::Raw(known, mut bytes) => {
                if known {
                    let kind = 1 + (bytes[0] & 1);
                    bytes[..4].copy_from_slice(&[kind, 0, 0, 0]);
                }
                self.serve(&bytes);
            }
            Step::Find(start, more) => self.find(start.value(), more.value()),
            Step::Buffer(start, len, write) => self.buffer(start.value(), len, access(write)),
            Step::Ask(vring, iova, write) => self.ask(vring.into(), iova.value(), access(write)),
            Step::Read => self.read(),
            Step::Lose => self.lose(),
            Step::Forget(vring) => {
                self.misses.forget(vring.into());
                self.questions.retain(|asked| asked != usize::from(vring));
            }
            Step::Clear => {
                let had = self.misses.clear();
                assert_eq!(had, [0, 1].map(|vring| self.questions.has(vring)));
                self.questions.retain(|_| false);
            }
        }
    }

    /// Serves a message as the module does.
    fn serve(&mut self, bytes: &[u8; MSG_MIN]) -> Option<Message> {
        let parsed = Message::parse(bytes)?;
        match parsed {
            Message::Update {
                iova,
                size,
                uva,
                access,
            } => self.update(iova, size, uva, access),
            Message::Invalidate { iova, size } if size != 0 => {
                let last = iova.wrapping_add(size - 1);
                self.real.remove(iova, last);
                self.kept.remove(iova, last);
            }
            Message::Invalidate { .. } | Message::Other => {}
        }
        Some(parsed)
    }

    fn update(&mut self, start: u64, size: u64, uva: u64, access: u32) {
        let last = start.wrapping_add(size - 1);
        let Ok(range) = Range::new(start, last, uva, access) else {
            assert!(last < start || (start, last) == (0, u64::MAX));
            return;
        };
        assert_eq!((range.size(), range.is_usable()), (size, access & 3 != 0));
        if uva.checked_add(size - 1).is_none() {
            return;
        }
        if let Some(wanted) = self.real.wanted() {
            assert!(wanted > self.real.room().len());
            self.real.room().resize(wanted, Range::EMPTY);
        }
        self.real.add(range).expect("there is room");
        let access = access & 3;
        self.kept.add(Entry {
            start,
            last,
            uva,
            access,
        });

        let inside = |asked: &Asked| start <= asked.miss.iova.0 && asked.miss.iova.0 <= last;
        let mut answered = [false; VRINGS];
        for asked in self.questions.read.iter().filter(|asked| inside(asked)) {
            answered[asked.vring] = true;
        }
        self.questions.read.retain(|asked| !inside(asked));
        assert_eq!(self.misses.answer(start, last), answered);
    }

    fn find(&self, start: u64, more: u64) {
        let last = start.saturating_add(more);
        let found = self.real.map().find(start, last);
        let found = found.map(|range| (range.start(), range.last(), range.uva()));
        let wanted = self.kept.find(start, last);
        assert_eq!(
            found,
            wanted.map(|entry| (entry.start, entry.last, entry.uva))
        );
    }

    fn buffer(&self, start: u64, len: u32, access: Access) {
        let mut found = Vec::new();
        let result = Translator::new(self.real.map()).pieces(Iova(start), len, access, |piece| {
            found.push(piece);
            Ok(())
        });
        let mut wanted = Vec::new();
        assert_eq!(result, self.pieces(start, len, access, &mut wanted));
        assert_eq!(found, wanted);
    }

    /// The model: of the entries that overlap what is left of the range, the
    /// lowest start, to its end.
    fn pieces(&self, start: u64, len: u32, access: Access, out: &mut Vec<Segment>) -> Result {
        if len == 0 {
            return Ok(());
        }
        let bit = match access {
            Access::Read => ACCESS_READ,
            Access::Write => ACCESS_WRITE,
        };
        let end = u128::from(start) + u128::from(len);
        let last = u64::try_from(end - 1).map_err(|_| Error::BadRing)?;
        let mut at = u128::from(start);
        while at < end {
            let addr = at as u64;
            let iova = Iova(addr);
            let entry = self
                .kept
                .find(addr, last)
                .filter(|entry| entry.start <= addr);
            let entry = entry.ok_or(Error::Unmapped { iova, access })?;
            if entry.access & bit == 0 {
                return Err(Error::Denied);
            }
            let next = end.min(u128::from(entry.last) + 1);
            out.push(Segment {
                addr: Uva(entry.uva + (addr - entry.start)),
                len: (next - at) as u64,
            });
            at = next;
        }
        Ok(())
    }

    fn ask(&mut self, vring: usize, iova: u64, access: Access) {
        let (iova, v2) = (Iova(iova), vring == 1);
        let miss = Miss { iova, access, v2 };
        let new = !self.questions.has(vring);
        assert_eq!(self.misses.ask(vring, miss), new);
        if new {
            let serial = self.questions.count;
            self.questions.count += 1;
            self.questions.unread.push_back(Asked {
                vring,
                miss,
                serial,
            });
        }
    }

    fn read(&mut self) {
        let wanted = self.questions.unread.pop_front();
        let found = self.misses.read();
        assert_eq!(found.map(|(_, miss)| miss), wanted.map(|asked| asked.miss));
        if let (Some((ticket, miss)), Some(asked)) = (found, wanted) {
            self.ticket = Some((ticket, asked.serial));
            self.questions.read.push(asked);
            let bytes = miss.message();
            assert_eq!(bytes[8..16], miss.iova.0.to_ne_bytes());
            assert_eq!(bytes[33], 1);
            assert_eq!(bytes[34..], [0; MSG_BYTES - 34]);
        }
    }

    /// The last miss that was read did not reach the owner.
    fn lose(&mut self) {
        if let Some((ticket, serial)) = self.ticket.take() {
            self.misses.lose(ticket);
            self.questions.read.retain(|asked| asked.serial != serial);
        }
    }

    fn check(&mut self) {
        let map = self.real.map();
        assert_eq!(map.ranges().len(), self.kept.entries.len());
        assert_eq!(map.overlaps(), self.kept.overlaps());
        assert_eq!(self.misses.is_readable(), !self.questions.unread.is_empty());
        assert!(map.ranges().is_sorted_by_key(Range::start));
    }
}
