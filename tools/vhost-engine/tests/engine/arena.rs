// SPDX-License-Identifier: GPL-2.0

//! The owner's memory: bytes that fault where nothing is mapped, and that know
//! who touched them.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use vhost_engine::engine::addr::{RingAddr, Segment, Uva};
use vhost_engine::engine::error::{Error, Result};
use vhost_engine::engine::memory::{Fetched, GuestMemory, RawDesc, UsedElem};

/// Where the arena begins.
pub const BASE: u64 = 0x7000_0000_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Read,
    Write,
    Fence,
}

/// An access that did not fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    pub kind: Kind,
    pub addr: u64,
    pub len: u64,
}

impl Touch {
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        self.addr < range.end && range.start < self.addr + self.len
    }
}

type Intruder<'a> = Box<dyn FnMut(&mut [u8], u64) + 'a>;

pub struct Arena<'a> {
    bytes: RefCell<Vec<u8>>,
    /// Parts that fault.
    pub holes: RefCell<Vec<Range<u64>>>,
    /// Where the rings are; an access elsewhere fails the test.
    pub rings: RefCell<Vec<Range<u64>>>,
    /// Where the address map leads; an access elsewhere fails the test.
    pub payload: RefCell<Vec<Range<u64>>>,
    pub touched: RefCell<Vec<Touch>>,
    pub calls: Cell<u64>,
    /// Accesses after which the engine is taken to run for ever.
    pub limit: Cell<u64>,
    /// Most heads that one fetch copies.
    pub fetch_max: Cell<usize>,
    /// Changes memory before every access, as a hostile driver may.
    pub intruder: RefCell<Option<Intruder<'a>>>,
}

impl<'a> Arena<'a> {
    pub fn new(len: usize) -> Self {
        Self {
            bytes: RefCell::new(vec![0; len]),
            holes: RefCell::default(),
            rings: RefCell::new(vec![BASE..BASE + len as u64]),
            payload: RefCell::new(vec![BASE..BASE + len as u64]),
            touched: RefCell::default(),
            calls: Cell::new(0),
            limit: Cell::new(10_000_000),
            fetch_max: Cell::new(usize::MAX),
            intruder: RefCell::new(None),
        }
    }

    /// Reads as the driver: no fault, no trace.
    pub fn peek<const N: usize>(&self, addr: u64) -> [u8; N] {
        let at = (addr - BASE) as usize;
        self.bytes.borrow()[at..at + N].try_into().unwrap()
    }

    pub fn peek_vec(&self, addr: u64, len: usize) -> Vec<u8> {
        let at = (addr - BASE) as usize;
        self.bytes.borrow()[at..at + len].to_vec()
    }

    pub fn peek_u16(&self, addr: u64) -> u16 {
        u16::from_le_bytes(self.peek(addr))
    }

    /// Writes as the driver.
    pub fn poke(&self, addr: u64, data: &[u8]) {
        let at = (addr - BASE) as usize;
        self.with_bytes(|bytes| bytes[at..at + data.len()].copy_from_slice(data));
    }

    pub fn poke_u16(&self, addr: u64, value: u16) {
        self.poke(addr, &value.to_le_bytes());
    }

    /// Shows the driver all bytes, from [`BASE`] on.
    pub fn with_bytes(&self, act: impl FnOnce(&mut [u8])) {
        act(&mut self.bytes.borrow_mut());
    }

    pub fn forget_touches(&self) {
        self.touched.borrow_mut().clear();
        self.calls.set(0);
    }

    /// Kind and place of each access, in order.
    pub fn order(&self) -> Vec<(Kind, u64)> {
        let touched = self.touched.borrow();
        touched.iter().map(|t| (t.kind, t.addr)).collect()
    }

    pub fn touched(&self, kind: Kind, range: Range<u64>) -> bool {
        let touched = self.touched.borrow();
        touched.iter().any(|t| t.kind == kind && t.overlaps(&range))
    }

    /// One call of the engine: it is counted, and the driver may act before it.
    fn call(&self) {
        self.calls.set(self.calls.get() + 1);
        assert!(self.calls.get() <= self.limit.get(), "this never ends");
        if let Some(intruder) = self.intruder.borrow_mut().as_mut() {
            intruder(&mut self.bytes.borrow_mut(), self.calls.get());
        }
    }

    fn check(&self, kind: Kind, allowed: &[Range<u64>], addr: u64, len: usize) -> Result<usize> {
        let len = len as u64;
        let end = addr.checked_add(len).ok_or(Error::Fault)?;
        let within = |r: &Range<u64>| r.start <= addr && end <= r.end;
        assert!(
            len == 0 || allowed.iter().any(within),
            "{kind:?} of {len} bytes at {addr:#x}, which no table allows"
        );
        let fault = |r: &Range<u64>| addr < r.end && r.start < end;
        if addr < BASE
            || end > BASE + self.bytes.borrow().len() as u64
            || self.holes.borrow().iter().any(fault)
        {
            return Err(Error::Fault);
        }
        self.touched.borrow_mut().push(Touch { kind, addr, len });
        Ok((addr - BASE) as usize)
    }

    fn load<const N: usize>(&self, addr: u64) -> Result<[u8; N]> {
        let at = self.check(Kind::Read, &self.rings.borrow(), addr, N)?;
        Ok(self.bytes.borrow()[at..at + N].try_into().unwrap())
    }

    fn store(&self, addr: u64, data: &[u8]) -> Result {
        let at = self.check(Kind::Write, &self.rings.borrow(), addr, data.len())?;
        self.bytes.borrow_mut()[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    fn copy_out(&self, addr: u64, len: usize) -> Result<Vec<u8>> {
        let at = self.check(Kind::Read, &self.payload.borrow(), addr, len)?;
        Ok(self.bytes.borrow()[at..at + len].to_vec())
    }

    fn copy_in(&self, addr: u64, data: &[u8]) -> Result {
        let at = self.check(Kind::Write, &self.payload.borrow(), addr, data.len())?;
        self.bytes.borrow_mut()[at..at + data.len()].copy_from_slice(data);
        Ok(())
    }

    /// Copies what `segments` hold, as a socket does. `None` on a fault.
    pub fn gather(&self, segments: &[Segment]) -> Option<Vec<u8>> {
        self.call();
        let mut data = Vec::new();
        for segment in segments {
            data.extend(self.copy_out(segment.addr.0, segment.len as usize).ok()?);
        }
        Some(data)
    }

    /// Copies `data` to `segments`, as a socket does. Answers the bytes written.
    pub fn scatter(&self, segments: &[Segment], data: &[u8]) -> usize {
        self.call();
        let mut done = 0;
        for segment in segments {
            let now = (segment.len as usize).min(data.len() - done);
            if self
                .copy_in(segment.addr.0, &data[done..done + now])
                .is_err()
            {
                break;
            }
            done += now;
        }
        done
    }
}

impl GuestMemory for Arena<'_> {
    fn fetch_heads(
        &self,
        avail: RingAddr,
        num: u16,
        next: u16,
        heads: &mut [u16],
    ) -> Result<Fetched> {
        self.call();
        let avail_idx = u16::from_le_bytes(self.load(avail.0 + 2)?);
        let available = avail_idx.wrapping_sub(next);
        if available > num {
            return Ok(Fetched {
                avail_idx,
                count: 0,
            });
        }
        let count = heads.len().min(available.into()).min(self.fetch_max.get());
        for (i, head) in heads[..count].iter_mut().enumerate() {
            let slot = u64::from(next.wrapping_add(i as u16) % num);
            *head = u16::from_le_bytes(self.load(avail.0 + 4 + 2 * slot)?);
        }
        Ok(Fetched { avail_idx, count })
    }

    fn read_descs(&self, table: RingAddr, num: u16, heads: &[u16], out: &mut [RawDesc]) -> Result {
        self.call();
        for (&head, out) in heads.iter().zip(out) {
            if head < num {
                let raw: [u8; 16] = self.load(table.0 + 16 * u64::from(head))?;
                *out = RawDesc {
                    addr: u64::from_ne_bytes(raw[..8].try_into().unwrap()),
                    len: u32::from_ne_bytes(raw[8..12].try_into().unwrap()),
                    flags: u16::from_ne_bytes(raw[12..14].try_into().unwrap()),
                    next: u16::from_ne_bytes(raw[14..].try_into().unwrap()),
                };
            }
        }
        Ok(())
    }

    fn write_used(&self, to: RingAddr, elems: &[UsedElem]) -> Result {
        self.call();
        let bytes = elems.iter().flat_map(|elem| {
            let (id, len) = (elem.id.to_ne_bytes(), elem.len.to_ne_bytes());
            id.into_iter().chain(len)
        });
        self.store(to.0, &bytes.collect::<Vec<_>>())
    }

    fn load_u16(&self, from: RingAddr) -> Result<u16> {
        self.call();
        Ok(u16::from_le_bytes(self.load(from.0)?))
    }

    fn store_u16(&self, to: RingAddr, value: u16) -> Result {
        self.call();
        self.store(to.0, &value.to_le_bytes())
    }

    fn fence(&self) {
        self.call();
        let (kind, addr, len) = (Kind::Fence, 0, 0);
        self.touched.borrow_mut().push(Touch { kind, addr, len });
    }

    fn read(&self, from: Uva, dst: &mut [u8]) -> Result {
        self.call();
        dst.copy_from_slice(&self.copy_out(from.0, dst.len())?);
        Ok(())
    }

    fn write(&self, to: Uva, src: &[u8]) -> Result {
        self.call();
        self.copy_in(to.0, src)
    }
}
