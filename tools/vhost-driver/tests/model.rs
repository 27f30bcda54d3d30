// SPDX-License-Identifier: GPL-2.0

//! The driver against a device model that reads the same memory as virtio 1.3, section 2.7 lays it out, with numbers of its own.

use proptest::prelude::*;
use std::collections::VecDeque;
use std::sync::atomic::Ordering::Relaxed;
use vhost_driver::{
    CallWhen, Error, Gpa, GuestMemory, Indirect, RingFeatures, RingLayout, Segment, Used, Virtqueue,
};

/// A device that does what the specification says, one step when asked.
struct Device {
    memory: GuestMemory,
    num: u64,
    desc: u64,
    avail: u64,
    used: u64,
    seen: u16,
    used_idx: u16,
}

/// A piece of a chain as the device sees it: address, length, whether the device may write.
type Piece = (u64, u32, bool);

impl Device {
    fn new(queue: &Virtqueue, start: u16) -> Self {
        let ring = queue.layout();
        Self {
            memory: queue.memory().clone(),
            num: u64::from(ring.num),
            desc: ring.desc.0,
            avail: ring.avail.0,
            used: ring.used.0,
            seen: start,
            used_idx: start,
        }
    }

    fn u16_at(&self, at: u64) -> u16 {
        self.memory.load_u16(Gpa(at), Relaxed)
    }

    fn read_desc(&self, at: u64) -> (Piece, u16, u16) {
        let mut bytes = [0; 16];
        self.memory.read(Gpa(at), &mut bytes);
        let flags = u16::from_le_bytes([bytes[12], bytes[13]]);
        let next = u16::from_le_bytes([bytes[14], bytes[15]]);
        let len = u32::from_le_bytes(bytes[8..12].try_into().unwrap());
        let addr = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        ((addr, len, flags & 2 != 0), flags, next)
    }

    fn walk(&self, table: u64, entries: u64, first: u16) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut index = first;
        loop {
            assert!(
                u64::from(index) < entries,
                "descriptor {index} of {entries}"
            );
            let (piece, flags, next) = self.read_desc(table + 16 * u64::from(index));
            if flags & 4 != 0 {
                assert_eq!(flags & 3, 0, "an indirect descriptor has no other flag");
                assert_eq!(piece.1 % 16, 0);
                return self.walk(piece.0, u64::from(piece.1 / 16), 0);
            }
            pieces.push(piece);
            if flags & 1 == 0 {
                return pieces;
            }
            assert!(
                pieces.len() < usize::try_from(entries).unwrap(),
                "chain loops"
            );
            index = next;
        }
    }

    /// The next chain that the driver made available.
    fn next(&mut self) -> Option<(u16, Vec<Piece>)> {
        if self.u16_at(self.avail + 2) == self.seen {
            return None;
        }
        let slot = u64::from(self.seen) % self.num;
        let head = self.u16_at(self.avail + 4 + 2 * slot);
        self.seen = self.seen.wrapping_add(1);
        Some((head, self.walk(self.desc, self.num, head)))
    }

    fn put_used(&mut self, head: u32, len: u32) {
        let at = self.used + 4 + 8 * (u64::from(self.used_idx) % self.num);
        self.memory.store_u32(Gpa(at), head);
        self.memory.store_u32(Gpa(at + 4), len);
        self.used_idx = self.used_idx.wrapping_add(1);
        self.memory
            .store_u16(Gpa(self.used + 2), self.used_idx, Relaxed);
    }

    fn set_avail_event(&self, index: u16) {
        self.memory
            .store_u16(Gpa(self.used + 4 + 8 * self.num), index, Relaxed);
    }

    fn used_event(&self) -> u16 {
        self.u16_at(self.avail + 4 + 2 * self.num)
    }

    fn avail_flags(&self) -> u16 {
        self.u16_at(self.avail)
    }
}

const TABLE_ENTRIES: u16 = 4;

fn queue(num: u16, features: RingFeatures, start: u16) -> (Virtqueue, Device) {
    let ring_size = RingLayout::size(num).next_multiple_of(16);
    let indirect_size = Indirect::size(num, TABLE_ENTRIES);
    let size = usize::try_from(ring_size + indirect_size).unwrap();
    let memory = GuestMemory::new(&[size], Some(Gpa(0x10_0000))).unwrap();
    let ring = RingLayout::new(u32::from(num), memory.base()).unwrap();
    let queue = Virtqueue::new(memory, ring, features, start).unwrap();
    let device = Device::new(&queue, start);
    (queue, device)
}

fn indirect(num: u16) -> RingFeatures {
    let tables = Gpa(0x10_0000) + RingLayout::size(num).next_multiple_of(16);
    let indirect = Some(Indirect {
        tables,
        entries: TABLE_ENTRIES,
    });
    RingFeatures {
        indirect,
        ..EVENT_IDX
    }
}

const EVENT_IDX: RingFeatures = RingFeatures {
    event_idx: true,
    indirect: None,
    notify_on_empty: false,
    in_order: false,
};
const FLAGS: RingFeatures = RingFeatures {
    event_idx: false,
    indirect: None,
    notify_on_empty: false,
    in_order: false,
};

fn segment(addr: u64, len: u32, writable: bool) -> Segment {
    Segment {
        addr: Gpa(addr),
        len,
        writable,
    }
}

/// One step of a random run.
#[derive(Clone, Debug)]
enum Step {
    /// Add a chain of so many readable and so many writable segments.
    Add(u8, u8),
    Publish,
    /// The device takes what is available, and returns so many of what it has, from the end that is chosen.
    Use {
        count: u8,
        newest_first: bool,
    },
    Pop,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0u8..4, 0u8..4).prop_map(|(readable, writable)| Step::Add(readable, writable)),
        1 => Just(Step::Publish),
        2 => (1u8..8, any::<bool>()).prop_map(|(count, newest_first)| Step::Use { count, newest_first }),
        2 => Just(Step::Pop),
    ]
}

/// What both sides should know of a chain.
struct Expected {
    token: u32,
    pieces: Vec<Piece>,
}

/// A driver and a device, and where each chain is between them.
struct Pair {
    queue: Virtqueue,
    device: Device,
    token: u32,
    added: VecDeque<Expected>,
    published: VecDeque<Expected>,
    held: VecDeque<(u16, Expected)>,
    used: VecDeque<Used>,
}

impl Pair {
    fn new(num: u16, features: RingFeatures, start: u16) -> Self {
        let (queue, device) = queue(num, features, start);
        Self {
            queue,
            device,
            token: 0,
            added: VecDeque::new(),
            published: VecDeque::new(),
            held: VecDeque::new(),
            used: VecDeque::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Add(readable, writable) => self.add(u32::from(*readable), u32::from(*writable)),
            Step::Publish => {
                self.queue.publish();
                self.published.append(&mut self.added);
            }
            Step::Use {
                count,
                newest_first,
            } => {
                self.fetch();
                (0..*count).for_each(|_| self.put_used(*newest_first));
            }
            Step::Pop => assert_eq!(self.queue.pop_used().unwrap(), self.used.pop_front()),
        }
        let mine = self.added.len() + self.published.len();
        let outstanding = mine + self.held.len() + self.used.len();
        assert_eq!(usize::from(self.queue.outstanding()), outstanding);
    }

    fn add(&mut self, readable: u32, writable: u32) {
        let count = readable + writable;
        let base = u64::from(self.token) * 8;
        let at = |i: u32| segment(base + u64::from(i), 1 + i, i >= readable);
        let segments: Vec<Segment> = (0..count).map(at).collect();
        let room = self.queue.has_room(segments.len());
        match self.queue.add(&segments, self.token) {
            Ok(()) => {
                assert!(room);
                let piece = |s: &Segment| (s.addr.0, s.len, s.writable);
                self.added.push_back(Expected {
                    token: self.token,
                    pieces: segments.iter().map(piece).collect(),
                });
                self.token += 1;
            }
            Err(Error::BadChain) => assert_eq!(count, 0),
            Err(Error::Full { .. }) => assert!(!room),
            Err(err) => panic!("{err}"),
        }
    }

    /// The device takes all that is available, and nothing else.
    fn fetch(&mut self) {
        while let Some((head, pieces)) = self.device.next() {
            let expected = self.published.pop_front();
            let expected = expected.expect("nothing unpublished is seen");
            assert_eq!(pieces, expected.pieces);
            self.held.push_back((head, expected));
        }
        assert!(self.published.is_empty());
    }

    /// The device returns one chain, filled to the end.
    fn put_used(&mut self, newest_first: bool) {
        let taken = if newest_first {
            self.held.pop_back()
        } else {
            self.held.pop_front()
        };
        let Some((head, Expected { token, pieces })) = taken else {
            return;
        };
        let writable = pieces.iter().filter(|piece| piece.2);
        let len = writable.map(|piece| piece.1).sum();
        self.device.put_used(u32::from(head), len);
        self.used.push_back(Used { token, len });
    }
}

proptest! {
    #[test]
    fn device_sees_every_chain_and_driver_gets_each_back_once(
        order in 0u32..6,
        start in prop_oneof![Just(0u16), Just(65530), any::<u16>()],
        with_indirect: bool,
        steps in prop::collection::vec(step(), 1..400),
    ) {
        let num = 1 << order;
        let features = if with_indirect { indirect(num) } else { EVENT_IDX };
        let mut pair = Pair::new(num, features, start);
        steps.iter().for_each(|step| pair.step(step));
    }

    #[test]
    fn kick_is_wanted_if_the_event_is_among_what_was_published(start: u16, count in 0u16..16, ahead in -20i32..20) {
        let (mut queue, device) = queue(16, EVENT_IDX, start);
        for token in 0..count {
            queue.add(&[segment(0, 1, false)], u32::from(token)).unwrap();
        }
        device.set_avail_event(start.wrapping_add_signed(i16::try_from(ahead).unwrap()));
        queue.publish();
        prop_assert_eq!(queue.wants_kick(), (0..i32::from(count)).contains(&ahead));
        prop_assert!(!queue.wants_kick(), "decided once");
    }
}

#[test]
fn ring_goes_round_past_the_end_of_the_index() {
    let (mut queue, mut device) = queue(8, EVENT_IDX, 0);
    for token in 0..70_000 {
        queue
            .add(&[segment(1, 2, false), segment(3, 4, true)], token)
            .unwrap();
        queue.publish();
        let (head, pieces) = device.next().unwrap();
        assert_eq!(pieces, [(1, 2, false), (3, 4, true)]);
        device.put_used(u32::from(head), 4);
        assert_eq!(queue.pop_used().unwrap(), Some(Used { token, len: 4 }));
    }
}

#[test]
fn chain_of_two_takes_one_descriptor_if_indirect() {
    let (mut queue, mut device) = queue(2, indirect(2), 0);
    let two = [segment(0, 1, false), segment(1, 1, false)];
    queue.add(&two, 0).unwrap();
    queue.add(&two, 1).unwrap();
    assert!(matches!(
        queue.add(&two[..1], 2),
        Err(Error::Full { wanted: 1, free: 0 })
    ));
    queue.publish();
    assert_eq!(device.next().unwrap().1.len(), 2);
    assert_eq!(device.next().unwrap().1.len(), 2);
    assert!(device.next().is_none());
}

#[test]
fn readable_behind_writable_is_refused() {
    let (mut queue, _) = queue(4, EVENT_IDX, 0);
    let result = queue.add(&[segment(0, 1, true), segment(1, 1, false)], 0);
    assert!(matches!(result, Err(Error::BadChain)));
}

#[test]
fn flags_say_whether_to_kick_without_event_idx() {
    let (mut queue, device) = queue(4, FLAGS, 0);
    queue.add(&[segment(0, 1, false)], 0).unwrap();
    queue.publish();
    assert!(queue.wants_kick());
    device.memory.store_u16(Gpa(device.used), 1, Relaxed);
    queue.add(&[segment(0, 1, false)], 1).unwrap();
    queue.publish();
    assert!(!queue.wants_kick());
}

#[test]
fn call_for_the_next_is_one_event_ahead() {
    let (mut queue, mut device) = queue(4, EVENT_IDX, 65535);
    queue.add(&[segment(0, 1, false)], 0).unwrap();
    queue.add(&[segment(0, 1, false)], 1).unwrap();
    queue.publish();
    assert!(queue.enable_calls(CallWhen::Next));
    assert_eq!(device.used_event(), 65535);
    let (head, _) = device.next().unwrap();
    device.put_used(u32::from(head), 0);
    assert!(!queue.enable_calls(CallWhen::Next), "it is there already");
    queue.disable_calls();
    assert_eq!((device.used_event(), device.avail_flags()), (65534, 0));
}

#[test]
fn call_for_all_waits_for_the_last() {
    let (mut queue, mut device) = queue(4, EVENT_IDX, 0);
    for token in 0..4 {
        queue.add(&[segment(0, 1, false)], token).unwrap();
    }
    queue.publish();
    for _ in 0..4 {
        assert!(queue.enable_calls(CallWhen::All));
        assert_eq!(device.used_event(), 3);
        let (head, _) = device.next().unwrap();
        device.put_used(u32::from(head), 0);
    }
    assert!(!queue.enable_calls(CallWhen::All));
}

#[test]
fn call_on_empty_needs_no_enabled_calls() {
    let features = RingFeatures {
        notify_on_empty: true,
        ..FLAGS
    };
    let (mut queue, device) = queue(4, features, 0);
    queue.add(&[segment(0, 1, false)], 0).unwrap();
    queue.publish();
    assert!(queue.enable_calls(CallWhen::All));
    assert_eq!(device.avail_flags(), 1);
    assert!(queue.enable_calls(CallWhen::Next));
    assert_eq!(device.avail_flags(), 0);
}

#[test]
fn device_that_breaks_the_rules_is_named() {
    let (mut jumping, mut device) = queue(4, EVENT_IDX, 0);
    device.put_used(0, 0);
    let err = jumping.pop_used().unwrap_err();
    assert!(matches!(
        err,
        Error::UsedIndexJumped {
            from: 0,
            to: 1,
            outstanding: 0
        }
    ));

    let (mut wild, mut device) = queue(4, EVENT_IDX, 0);
    wild.add(&[segment(0, 1, false)], 0).unwrap();
    device.put_used(0x1_0000, 0);
    assert!(matches!(
        wild.pop_used(),
        Err(Error::NotOutstanding {
            index: 0,
            id: 0x1_0000
        })
    ));

    let (mut twice, mut device) = queue(4, EVENT_IDX, 0);
    twice.add(&[segment(0, 1, false)], 0).unwrap();
    twice.add(&[segment(0, 1, false)], 1).unwrap();
    device.put_used(0, 0);
    device.put_used(0, 0);
    assert!(twice.pop_used().unwrap().is_some());
    assert!(matches!(
        twice.pop_used(),
        Err(Error::NotOutstanding { index: 1, id: 0 })
    ));

    let (mut long, mut device) = queue(4, EVENT_IDX, 0);
    long.add(&[segment(0, 9, false), segment(9, 7, true)], 0)
        .unwrap();
    device.put_used(0, 8);
    assert!(matches!(
        long.pop_used(),
        Err(Error::UsedTooLong {
            index: 0,
            len: 8,
            room: 7
        })
    ));
}
