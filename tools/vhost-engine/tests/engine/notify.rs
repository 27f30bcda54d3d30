// SPDX-License-Identifier: GPL-2.0

use proptest::prelude::*;
use vhost_engine::engine::notify::{need_event, Signalled};

use crate::rig::cases;

/// Section 2.7.7.2, word by word: an element was placed at index `event`.
fn placed_at(event: u16, new: u16, old: u16) -> bool {
    let mut index = old;
    while index != new {
        if index == event {
            return true;
        }
        index = index.wrapping_add(1);
    }
    false
}

#[test]
fn the_formula_is_the_spec_s_for_every_event_near_a_wrap() {
    for old in [0_u16, 1, 32767, 32768, 65530, 65535] {
        for count in [0_u16, 1, 2, 64, 300] {
            let new = old.wrapping_add(count);
            for event in 0..=u16::MAX {
                let wanted = placed_at(event, new, old);
                assert_eq!(need_event(event, new, old), wanted, "{event} {old} {new}");
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(300))]

    #[test]
    fn the_formula_is_the_spec_s(event: u16, new: u16, old: u16) {
        prop_assert_eq!(need_event(event, new, old), placed_at(event, new, old));
    }

    /// The decision covers all since the last one, however many publishes that
    /// were; if they are more than all indices, it is to call.
    #[test]
    fn a_decision_covers_all_that_was_published_since_the_last(
        start: u16,
        steps in prop::collection::vec(1_u16..1100, 1..120),
        event: u16,
    ) {
        let mut signalled = Signalled::none();
        prop_assert_eq!(signalled.decide(start), None);
        let mut new = start;
        let mut total = 0_u32;
        for step in steps {
            new = new.wrapping_add(step);
            total += u32::from(step);
            signalled.moved(new, step);
        }
        match signalled.decide(new) {
            Some(old) => {
                prop_assert!(total <= 65535);
                prop_assert_eq!(old, start);
                let wanted = (0..total).any(|i| start.wrapping_add(i as u16) == event);
                prop_assert_eq!(need_event(event, new, old), wanted);
            }
            None => prop_assert!(total >= 65536),
        }
    }
}

#[test]
fn the_first_decision_has_nothing_to_go_by() {
    let mut signalled = Signalled::none();
    assert_eq!(signalled.decide(7), None);
    assert_eq!(signalled.decide(9), Some(7));
}

#[test]
fn an_index_that_jumps_past_the_last_decision_forgets_it() {
    let mut signalled = Signalled::none();
    signalled.decide(10);
    signalled.moved(9, 65535);
    assert_eq!(signalled, {
        let mut kept = Signalled::none();
        kept.decide(10);
        kept
    });
    signalled.moved(11, 2);
    assert_eq!(signalled, Signalled::none());
}
