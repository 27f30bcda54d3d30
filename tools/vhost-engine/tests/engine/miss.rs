// SPDX-License-Identifier: GPL-2.0

use proptest::prelude::*;
use vhost_engine::engine::addr::Iova;
use vhost_engine::engine::error::Access;
use vhost_engine::engine::miss::*;

use crate::rig::cases;

fn miss(iova: u64) -> Miss {
    Miss {
        iova: Iova(iova),
        access: Access::Read,
        v2: false,
    }
}

/// A message as `struct vhost_msg` lays it out.
fn bytes(kind: u32, [iova, size, uva]: [u64; 3], access: u8, what: u8) -> [u8; MSG_MIN] {
    let mut bytes = [0xee; MSG_MIN];
    bytes[..4].copy_from_slice(&kind.to_ne_bytes());
    bytes[8..16].copy_from_slice(&iova.to_ne_bytes());
    bytes[16..24].copy_from_slice(&size.to_ne_bytes());
    bytes[24..32].copy_from_slice(&uva.to_ne_bytes());
    bytes[32] = access;
    bytes[33] = what;
    bytes
}

#[test]
fn both_kinds_of_messages_are_read_alike() {
    for kind in [1, 2] {
        let update = Message::Update {
            iova: 5,
            size: 6,
            uva: 7,
            access: 3,
        };
        let parsed = Message::parse(&bytes(kind, [5, 6, 7], 3, 2));
        assert_eq!(parsed, Some(update));
        let parsed = Message::parse(&bytes(kind, [5, 6, 7], 3, 3));
        assert_eq!(parsed, Some(Message::Invalidate { iova: 5, size: 6 }));
    }
}

#[test]
fn unknown_kinds_and_updates_of_nothing_are_no_messages() {
    for kind in [0, 3, 0x0100_0000] {
        assert_eq!(Message::parse(&bytes(kind, [5, 6, 7], 3, 2)), None);
    }
    assert_eq!(Message::parse(&bytes(1, [5, 0, 7], 3, 2)), None);
    let invalidate = Message::Invalidate { iova: 5, size: 0 };
    assert_eq!(
        Message::parse(&bytes(1, [5, 0, 7], 3, 3)),
        Some(invalidate),
        "it is refused later, with another errno"
    );
    for what in [0, 1, 4, 5, 6, 255] {
        assert_eq!(
            Message::parse(&bytes(2, [5, 6, 7], 3, what)),
            Some(Message::Other)
        );
    }
}

#[test]
fn a_miss_has_its_kind_address_and_access_and_zeroes_else() {
    for v2 in [false, true] {
        for (access, bit) in [(Access::Read, 1), (Access::Write, 2)] {
            let iova = Iova(0x1122_3344_5566_7788);
            let found = Miss { iova, access, v2 }.message();
            let mut wanted = [0; MSG_BYTES];
            wanted[0] = 1 + u8::from(v2);
            wanted[8..16].copy_from_slice(&iova.0.to_ne_bytes());
            wanted[32] = bit;
            wanted[33] = 1;
            assert_eq!(found, wanted);
        }
    }
}

#[test]
fn a_vring_asks_once_until_it_is_answered() {
    let mut misses = Misses::<2>::new();
    assert!(misses.ask(0, miss(5)) && !misses.ask(0, miss(6)));
    assert!(misses.ask(1, miss(7)));
    assert!(!misses.ask(2, miss(7)), "there is no such vring");
    assert_eq!(misses.answer(0, 99), [false; 2], "nobody has read them");
    assert_eq!(misses.read().unwrap().1, miss(5));
    assert!(!misses.ask(0, miss(6)), "it was read, not answered");
    assert_eq!(misses.answer(0, 99), [true, false]);
    assert!(misses.ask(0, miss(6)));
    assert_eq!(misses.read().unwrap().1, miss(7), "the oldest first");
    assert_eq!(misses.read().unwrap().1, miss(6));
    assert!(misses.read().is_none() && !misses.is_readable());
    assert_eq!(misses.answer(6, 7), [true; 2]);
}

#[test]
fn a_miss_that_is_lost_can_be_asked_again_but_not_the_one_after() {
    let mut misses = Misses::<2>::new();
    misses.ask(1, miss(5));
    let (old, _) = misses.read().unwrap();
    misses.lose(old);
    assert!(misses.ask(1, miss(5)));
    misses.lose(old);
    assert!(!misses.ask(1, miss(6)), "the new one is still there");
    assert_eq!(misses.clear(), [false, true]);
    assert!(!misses.is_readable() && misses.ask(1, miss(6)));
    misses.forget(0);
    assert!(misses.is_readable());
    misses.forget(1);
    misses.forget(2);
    assert!(!misses.is_readable());
    assert_eq!(misses.clear(), [false; 2]);
}

proptest! {
    #![proptest_config(cases(1000))]

    /// The model is C's: two lists.
    #[test]
    fn misses_are_as_two_lists(steps in prop::collection::vec((0_u8..5, 0_usize..3, 0_u64..40, 0_u64..20), 0..60)) {
        let mut real = Misses::<3>::new();
        let (mut unread, mut pending) = (Vec::new(), Vec::<(usize, u64)>::new());
        for (what, vring, iova, more) in steps {
            match what {
                0 | 1 => {
                    let mut asked = unread.iter().chain(&pending);
                    let free = !asked.any(|entry| entry.0 == vring);
                    prop_assert_eq!(real.ask(vring, miss(iova)), free);
                    if free {
                        unread.push((vring, iova));
                    }
                }
                2 => {
                    let found = real.read().map(|(_, miss)| miss.iova.0);
                    let wanted = (!unread.is_empty()).then(|| unread.remove(0));
                    prop_assert_eq!(found, wanted.map(|entry| entry.1));
                    pending.extend(wanted);
                }
                3 => {
                    let found = real.answer(iova, iova + more);
                    let inside = |entry: &(usize, u64)| (iova..=iova + more).contains(&entry.1);
                    let mut wanted = [false; 3];
                    for entry in pending.iter().filter(|entry| inside(entry)) {
                        wanted[entry.0] = true;
                    }
                    pending.retain(|entry| !inside(entry));
                    prop_assert_eq!(found, wanted);
                }
                _ if more == 0 => {
                    let had = |vring| unread.iter().chain(&pending).any(|entry| entry.0 == vring);
                    prop_assert_eq!(real.clear(), [had(0), had(1), had(2)]);
                    unread.clear();
                    pending.clear();
                }
                _ => {}
            }
            prop_assert_eq!(real.is_readable(), !unread.is_empty());
        }
    }
}
