// SPDX-License-Identifier: GPL-2.0

//! The device's end of one split virtqueue (virtio 1.3, section 2.7).

use super::addr::RingAddr;
use super::error::Error;
use super::error::Result;
use super::features;
use super::layout;
use super::memory::GuestMemory;
use super::memory::Publication;
use super::memory::Rings;
use super::memory::UsedElem;
use super::notify;
use super::notify::Signalled;

/// The state of a virtqueue between and during runs.
///
/// What the ring holds and what is here meet only in these methods. Indices are
/// free-running and wrap at 65,536.
pub struct SplitQueue {
    desc: RingAddr,
    avail: RingAddr,
    used: RingAddr,
    features: u64,
    num: u16,
    /// First chain neither used nor dropped (C: `last_avail_idx`).
    next_avail: u16,
    /// `avail->idx` as last read (C: `avail_idx`).
    avail_idx: u16,
    /// `used->idx` as last written (C: `last_used_idx`).
    next_used: u16,
    signalled: Signalled,
    /// Kicks are off (C: `used_flags & VRING_USED_F_NO_NOTIFY`).
    no_notify: bool,
    /// Where in the address map the last buffer was found; it may be anything.
    guess: usize,
    /// The chains up to `avail_idx` are of no use without news: too few for the
    /// packet that waits, or broken.
    stuck: bool,
}

impl SplitQueue {
    /// A virtqueue in its reset state: one entry, no addresses.
    pub const fn new() -> Self {
        Self {
            desc: RingAddr(0),
            avail: RingAddr(0),
            used: RingAddr(0),
            features: 0,
            num: 1,
            next_avail: 0,
            avail_idx: 0,
            next_used: 0,
            signalled: Signalled::none(),
            no_notify: false,
            guess: 0,
            stuck: false,
        }
    }

    /// Where in the address map to look first.
    #[inline]
    pub(super) fn guess(&self) -> usize {
        self.guess
    }

    /// Notes where in the address map a buffer was found.
    pub(super) fn set_guess(&mut self, guess: usize) {
        self.guess = guess;
    }

    /// Entries of the ring.
    #[inline]
    pub fn num(&self) -> u16 {
        self.num
    }

    /// Sets the ring size to what [`layout::check_num`] answered. Other values
    /// are ignored: slots are found by masking.
    pub fn set_num(&mut self, num: u16) {
        if num.is_power_of_two() {
            self.num = num;
        }
    }

    /// The first chain neither used nor dropped.
    #[inline]
    pub fn base(&self) -> u16 {
        self.next_avail
    }

    /// The avail index as last read, and the used index as last written.
    #[inline]
    pub fn indices(&self) -> [u16; 2] {
        [self.avail_idx, self.next_used]
    }

    /// Whether each entry of the ring was available when it was last read.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.avail_idx.wrapping_sub(self.next_avail) == self.num
    }

    /// Sets where to go on in the avail ring.
    pub fn set_base(&mut self, base: u16) {
        self.next_avail = base;
        self.avail_idx = base;
        self.stuck = false;
    }

    /// Descriptor table, avail ring, used ring.
    pub fn addresses(&self) -> [RingAddr; 3] {
        [self.desc, self.avail, self.used]
    }

    /// Sets where the ring's parts are. The glue checks alignment and range.
    pub fn set_addresses(&mut self, desc: u64, avail: u64, used: u64) {
        self.desc = RingAddr(desc);
        self.avail = RingAddr(avail);
        self.used = RingAddr(used);
    }

    /// Whether the ring has addresses: each may be 0, but not all of them.
    pub fn is_set_up(&self) -> bool {
        self.addresses() != [RingAddr(0); 3]
    }

    /// Sets the feature bits 0 to 63 in use.
    pub fn set_features(&mut self, features: u64) {
        self.features = features;
    }

    /// Whether the ring has event indices.
    #[inline]
    pub fn event_idx(&self) -> bool {
        self.has(features::EVENT_IDX)
    }

    /// Whether feature `bit` is in use.
    #[inline]
    pub fn has(&self, bit: u32) -> bool {
        features::has(&[self.features, 0], bit)
    }

    /// Gets ready to be served. C: `vhost_vq_init_access()`.
    ///
    /// Kicks are on afterwards. The used index is the ring's.
    ///
    /// # Errors
    ///
    /// The used ring cannot be reached; nothing here has changed.
    pub fn start<M: GuestMemory>(&mut self, mem: &M) -> Result {
        mem.store_u16(self.used.add(layout::USED_FLAGS), 0)?;
        self.next_used = mem.load_u16(self.used.add(layout::USED_IDX))?;
        self.signalled = Signalled::none();
        self.no_notify = false;
        self.stuck = false;
        Ok(())
    }

    /// Whether the driver was told that kicks are wanted.
    pub fn kicks_are_on(&self) -> bool {
        !self.no_notify
    }

    /// Tells the driver that kicks are not wanted. C: `vhost_disable_notify()`.
    ///
    /// With event indices nothing is written: no event comes again until
    /// [`SplitQueue::kicks_on`] moves `avail_event`.
    ///
    /// # Errors
    ///
    /// The used ring cannot be written.
    pub fn kicks_off<M: GuestMemory>(&mut self, mem: &M) -> Result {
        if self.no_notify {
            return Ok(());
        }
        if !self.event_idx() {
            let flags = self.used.add(layout::USED_FLAGS);
            mem.store_u16(flags, layout::USED_F_NO_NOTIFY)?;
        }
        self.no_notify = true;
        Ok(())
    }

    /// Tells the driver that kicks are wanted. C: `vhost_enable_notify()`.
    ///
    /// `true`: chains came meanwhile, for which there may be no kick. New are
    /// chains after the last index *read*: those before it may be too few for a
    /// packet, and then only more chains are news.
    ///
    /// # Errors
    ///
    /// The rings cannot be reached, or the avail index jumped.
    pub fn kicks_on<M: GuestMemory>(&mut self, mem: &M) -> Result<bool> {
        self.no_notify = false;
        let (to, value) = if self.event_idx() {
            let event = self.used.add(layout::avail_event(self.num));
            (event, self.avail_idx)
        } else {
            (self.used.add(layout::USED_FLAGS), 0)
        };

        // Our store must be seen before we look again, else a chain made
        // available in between is never kicked. Pairs with the driver's barrier
        // between its index and its look at flags or event (section 2.7.13.4.1).
        let index = self.avail.add(layout::AVAIL_IDX);
        let before = self.avail_idx;
        let index = mem.store_and_ask(to, value, index)??;
        self.accept_avail_idx(index, 0)?;
        Ok(self.avail_idx != before)
    }

    /// Whether the ring has nothing to look at. C: `vhost_vq_avail_empty()`.
    ///
    /// `false` if the index cannot be read or jumped, as in C: the run that then
    /// comes reports it. Once it did, only news count.
    pub fn avail_empty<M: GuestMemory>(&self, mem: &M) -> bool {
        if self.avail_idx != self.next_avail && !self.stuck {
            return false;
        }
        match mem.load_u16(self.avail.add(layout::AVAIL_IDX)) {
            Ok(idx) if idx.wrapping_sub(self.next_avail) <= self.num => idx == self.avail_idx,
            Ok(_) | Err(_) => self.stuck,
        }
    }

    /// Notes whether the chains up to the last index read need news: more
    /// chains, or a kick.
    pub(super) fn set_stuck(&mut self, stuck: bool) {
        self.stuck = stuck;
    }

    /// Where the driver's parts are.
    #[inline]
    pub(super) fn rings(&self) -> Rings {
        Rings {
            desc: self.desc,
            avail: self.avail,
            num: self.num.into(),
        }
    }

    /// Chains available after the `taken` that are not published yet. Looks at
    /// the ring only if none are known.
    ///
    /// # Errors
    ///
    /// The avail ring cannot be read, or its index jumped.
    #[inline]
    pub(super) fn available<M: GuestMemory>(&mut self, mem: &M, taken: u16) -> Result<u16> {
        let next = self.next_avail.wrapping_add(taken);
        match self.avail_idx.wrapping_sub(next) {
            0 => self.read_avail_idx(mem, taken),
            known if known <= self.num => Ok(known),
            // The driver took its index back below what it had given out.
            _ => Err(Error::BadRing),
        }
    }

    /// Loads the avail index. Answers the chains after the `taken`.
    fn read_avail_idx<M: GuestMemory>(&mut self, mem: &M, taken: u16) -> Result<u16> {
        let idx = mem.load_u16(self.avail.add(layout::AVAIL_IDX))?;
        self.accept_avail_idx(idx, taken)
    }

    /// Takes over an avail index just read. Answers the chains after the
    /// `taken`.
    ///
    /// # Errors
    ///
    /// [`Error::BadRing`] if the driver cannot have that many chains out.
    #[inline]
    pub(super) fn accept_avail_idx(&mut self, idx: u16, taken: u16) -> Result<u16> {
        let next = self.next_avail.wrapping_add(taken);
        let available = idx.wrapping_sub(next);
        if available > self.num.saturating_sub(taken) {
            return Err(Error::BadRing);
        }
        self.avail_idx = idx;
        Ok(available)
    }

    /// Writes used elements, the first one `ahead` of the next to be published.
    ///
    /// # Errors
    ///
    /// The used ring cannot be written.
    #[inline(never)]
    pub(super) fn write_used<M: GuestMemory>(
        &self,
        mem: &M,
        ahead: u16,
        elems: &[UsedElem],
    ) -> Result {
        let mut index = self.next_used.wrapping_add(ahead);
        let mut rest = elems;
        while !rest.is_empty() {
            // `num` is a power of two; the ring's end cuts the write in two.
            let slot = index & self.num.wrapping_sub(1);
            let room = usize::from(self.num.wrapping_sub(slot));
            let (now, later) = rest.split_at_checked(room).unwrap_or((rest, &[]));
            mem.write_used(self.used.add(layout::used_elem(slot)), now)?;
            // A slice of at most `num` elements: its length fits.
            index = index.wrapping_add(u16::try_from(now.len()).unwrap_or(0));
            rest = later;
        }
        Ok(())
    }

    /// Returns the next `count` chains to the driver by `elems`, or by elements
    /// that were written before if that is empty. Answers the field by which the
    /// driver says whether it wants a call, for [`SplitQueue::wants_call`].
    ///
    /// # Errors
    ///
    /// The used ring cannot be written; no chain is returned.
    #[inline(always)]
    pub(super) fn publish<M: GuestMemory>(
        &mut self,
        mem: &M,
        elems: &[UsedElem],
        count: u16,
    ) -> Result<Result<u16>> {
        let asked = self.return_used(mem, elems, count)?;
        self.next_avail = self.next_avail.wrapping_add(count);
        Ok(asked)
    }

    /// Steps over the next chain: it is returned later, and others may be
    /// before it.
    #[inline]
    pub(super) fn step_over(&mut self) {
        self.next_avail = self.next_avail.wrapping_add(1);
    }

    /// [`SplitQueue::publish`] of chains that were stepped over.
    ///
    /// # Errors
    ///
    /// The used ring cannot be written; no chain is returned.
    #[inline(always)]
    pub(super) fn return_used<M: GuestMemory>(
        &mut self,
        mem: &M,
        elems: &[UsedElem],
        count: u16,
    ) -> Result<Result<u16>> {
        let index = self.next_used.wrapping_add(count);
        let slot = self.next_used & self.num.wrapping_sub(1);
        let elems = if elems.len() > usize::from(self.num.wrapping_sub(slot)) {
            self.write_used(mem, 0, elems)?;
            &[]
        } else {
            elems
        };

        if self.event_idx() && self.signalled.is_none() {
            return self.return_first(mem, elems, count);
        }
        // The index is stored after the elements; that pairs with the driver's
        // barrier between index and element (section 2.7.14). It must be seen
        // before we read what the driver wants, which pairs with its barrier
        // when it enables calls.
        let what = Publication {
            to: self.used.add(layout::used_elem(slot)),
            elems,
            index_at: self.used.add(layout::USED_IDX),
            index,
        };
        // Read each time: the driver moves it as it likes.
        let ask = self.avail.add(if self.event_idx() {
            layout::used_event(self.num)
        } else {
            layout::AVAIL_FLAGS
        });
        let asked = mem.publish(what, ask)?;
        self.next_used = index;
        self.signalled.moved(index, count);
        Ok(asked)
    }

    /// The first time nobody is asked: the driver is called.
    #[cold]
    #[inline(never)]
    fn return_first<M: GuestMemory>(
        &mut self,
        mem: &M,
        elems: &[UsedElem],
        count: u16,
    ) -> Result<Result<u16>> {
        let index = self.next_used.wrapping_add(count);
        self.write_used(mem, 0, elems)?;
        mem.store_u16(self.used.add(layout::USED_IDX), index)?;
        mem.fence();
        self.next_used = index;
        Ok(Err(Error::Fault))
    }

    /// Whether the driver wants a call for what was published, where
    /// [`SplitQueue::publish`] answered `asked`. C: `vhost_notify()`.
    ///
    /// Memory that cannot be read is taken as a wish: a call too many is
    /// harmless.
    #[inline]
    pub(super) fn wants_call(&mut self, asked: Result<u16>) -> bool {
        if self.has(features::NOTIFY_ON_EMPTY) && self.avail_idx == self.next_avail {
            return true;
        }
        if !self.event_idx() {
            return asked.map_or(true, |flags| flags & layout::AVAIL_F_NO_INTERRUPT == 0);
        }

        let new = self.next_used;
        let Some(old) = self.signalled.decide(new) else {
            return true;
        };
        asked.map_or(true, |event| notify::need_event(event, new, old))
    }
}

impl Default for SplitQueue {
    fn default() -> Self {
        Self::new()
    }
}
