// SPDX-License-Identifier: GPL-2.0

use vhost_engine::engine::policy::{price, Plan, Policy, Poll, Settings};

const US: u64 = 1_000;
/// Nanoseconds from a wake-up to the run.
const DELAY: u64 = 5 * US;

const FIXED: Settings = Settings {
    policy: Policy::Fixed,
    window: 50,
    competitor: false,
    guest: false,
    start_rate: 10,
    stop_idle: 1000,
};
const ADAPTIVE: Settings = Settings {
    policy: Policy::Adaptive,
    window: 200,
    ..FIXED
};
const CONTINUOUS: Settings = Settings {
    policy: Policy::Continuous,
    ..FIXED
};

#[test]
fn policies_are_numbered_as_in_the_header() {
    for (number, name) in ["fixed", "adaptive", "continuous"].iter().enumerate() {
        let policy = Policy::from_number(number as u32).unwrap();
        assert_eq!((policy.name(), policy.number()), (*name, number as u32));
    }
    assert_eq!(Policy::from_number(3), None);
    assert_eq!(Policy::from_number(u32::MAX), None);
}

#[test]
fn a_cap_is_on_all_times() {
    let capped = FIXED.capped(7);
    assert_eq!((capped.window, capped.stop_idle), (7, 7));
    assert_eq!(FIXED.capped(u32::MAX), FIXED);
}

#[test]
fn the_adaptive_policy_always_gives_way() {
    assert!(ADAPTIVE.gives_way() && !FIXED.gives_way() && !CONTINUOUS.gives_way());
    let competitor = Settings {
        competitor: true,
        ..FIXED
    };
    assert!(competitor.gives_way());
}

#[test]
fn a_fixed_window_is_what_was_set() {
    let mut poll = Poll::new();
    assert_eq!(poll.plan(&FIXED, 0, 0, DELAY), Plan::Poll(50));
    let none = Settings { window: 0, ..FIXED };
    assert_eq!(poll.plan(&none, 0, 0, DELAY), Plan::Sleep);
    let long = Settings {
        window: u32::MAX,
        ..FIXED
    };
    assert_eq!(poll.plan(&long, 0, 0, DELAY), Plan::Poll(u32::MAX.into()));
    assert!(!poll.waits());
}

#[test]
fn a_delay_is_worth_eight_of_itself_within_reason() {
    assert_eq!(price(6 * US), 48 * US);
    assert_eq!(price(0), 40 * US, "not measured yet");
    assert_eq!(price(u64::MAX), 400 * US);
}

/// Lets waits of `length` come, as the module does; says how often the worker slept.
fn waits(poll: &mut Poll, now: &mut u64, count: u32, length: u64) -> u32 {
    let mut slept = 0;
    for _ in 0..count {
        let window = match poll.plan(&ADAPTIVE, *now, 0, DELAY) {
            Plan::Poll(units) => units * 1024,
            Plan::Sleep => 0,
            Plan::Turn(_) => panic!("it is not continuous"),
        };
        assert!(poll.waits());
        let won = length <= window;
        if window > 0 {
            poll.polled(window.min(length), won, DELAY);
        }
        *now += length;
        if !won {
            poll.over(*now, true, DELAY);
            slept += 1;
        }
        assert!(!poll.waits());
    }
    slept
}

#[test]
fn the_adaptive_policy_learns_from_what_the_module_tells_it() {
    let (mut poll, mut now) = (Poll::new(), 1_000_000);
    assert!(waits(&mut poll, &mut now, 100, 20 * US) <= 1);
    assert!(poll.chosen() >= 20 * US);
    let slept = waits(&mut poll, &mut now, 100, 1000 * US);
    assert_eq!(slept, 100);
    assert_eq!(poll.chosen(), 0, "such waits are not polled");
    assert!(waits(&mut poll, &mut now, 100, 20 * US) < 40);
}

#[test]
fn a_wait_ends_when_the_next_begins() {
    // The ring was looked at once more, and had something.
    let mut poll = Poll::new();
    for _ in 0..50 {
        poll.plan(&ADAPTIVE, 0, 0, DELAY);
    }
    let Plan::Poll(units) = poll.plan(&ADAPTIVE, 0, 0, DELAY) else {
        panic!("short waits are polled")
    };
    assert!(units <= 1);
}

#[test]
fn a_clock_that_goes_back_is_no_wait() {
    let mut poll = Poll::new();
    poll.plan(&ADAPTIVE, 1_000_000, 0, DELAY);
    poll.over(0, true, DELAY);
    assert!(!poll.waits());
}

#[test]
fn continuous_polling_takes_turns_and_says_how_long_they_were() {
    let mut poll = Poll::new();
    // Not before the rate is known: until then as fixed.
    assert_eq!(poll.plan(&CONTINUOUS, 1_000_000, 0, 0), Plan::Poll(50));
    assert_eq!(poll.plan(&CONTINUOUS, 2_000_000, 10, 0), Plan::Turn(0));
    assert_eq!(poll.plan(&CONTINUOUS, 2_000_300, 10, 0), Plan::Turn(300));
    assert_eq!(poll.plan(&CONTINUOUS, 2_000_700, 11, 0), Plan::Turn(400));
    // The last packet was seen at 2,000,700.
    let idle = 1000 * 1024;
    let now = 2_000_700 + idle;
    assert_eq!(poll.plan(&CONTINUOUS, now, 11, 0), Plan::Turn(idle));
    assert_eq!(poll.plan(&CONTINUOUS, now + 1, 11, 0), Plan::Poll(50));
    let none = Settings {
        window: 0,
        ..CONTINUOUS
    };
    assert_eq!(poll.plan(&none, now + 2, 11, 0), Plan::Sleep);
}

#[test]
fn what_is_in_the_way_ends_continuous_polling() {
    let mut poll = Poll::new();
    poll.stop(1_000_000, 0);
    assert_eq!(poll.plan(&CONTINUOUS, 2_000_000, 10, 0), Plan::Turn(0));
    poll.stop(2_000_000, 10);
    assert_eq!(poll.plan(&CONTINUOUS, 2_000_001, 10, 0), Plan::Poll(50));
}
