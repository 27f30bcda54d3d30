// SPDX-License-Identifier: GPL-2.0

use proptest::prelude::*;
use vhost_engine::engine::adaptive::{Adaptive, Wait};

const FOREVER: u64 = u64::MAX;

/// What waits cost, and what they would cost at least.
#[derive(Default)]
struct Cost {
    spent: u64,
    optimum: u64,
    polled: u64,
}

/// Lets a wait of `length` come; the window is watched exactly.
fn wait(adaptive: &mut Adaptive, cost: &mut Cost, length: u64, price: u64, ceiling: u64) -> bool {
    let window = adaptive.window(price, ceiling);
    let slept = length > window;
    let polled = length.min(window);
    let wait = Wait {
        length,
        polled,
        slept,
    };
    adaptive.learn(wait, price);
    cost.polled += polled;
    cost.spent += polled + if slept { price } else { 0 };
    cost.optimum += length.min(price);
    !slept
}

#[test]
fn the_first_window_is_the_price() {
    let adaptive = Adaptive::new();
    assert_eq!(adaptive.window(12_345, FOREVER), 12_345);
    assert_eq!(adaptive.window(12_345, 1000), 1000);
    assert_eq!(adaptive.window(0, FOREVER), 0);
}

#[test]
fn constant_waits_cost_what_the_better_of_never_and_always_does() {
    for price in [3_000, 10_000, 30_000, 77_777, 150_000] {
        for us in 1..=200 {
            let length = us * 1000;
            let mut adaptive = Adaptive::new();
            for _ in 0..100 {
                wait(&mut adaptive, &mut Cost::default(), length, price, FOREVER);
            }
            let mut cost = Cost::default();
            for _ in 0..200 {
                wait(&mut adaptive, &mut cost, length, price, FOREVER);
            }
            let best = 200 * length.min(price);
            assert!(
                cost.spent * 10 <= best * 11,
                "{us} us, price {price}: {} is above {best}",
                cost.spent
            );
        }
    }
}

#[test]
fn long_waits_are_not_polled() {
    let mut adaptive = Adaptive::new();
    let mut cost = Cost::default();
    for _ in 0..1000 {
        wait(&mut adaptive, &mut cost, 1_000_000, 20_000, FOREVER);
    }
    assert!(cost.polled <= 20_000, "{} ns were polled", cost.polled);
}

#[test]
fn what_changes_is_learnt_within_some_waits() {
    let mut adaptive = Adaptive::new();
    for (length, polls) in [(5_000, true), (500_000, false), (7_000, true)] {
        let won: Vec<bool> = (0..1000)
            .map(|_| wait(&mut adaptive, &mut Cost::default(), length, 20_000, FOREVER))
            .collect();
        let last = won.iter().rposition(|&won| won != polls);
        assert!(last < Some(40), "{length}: as before at wait {last:?}");
    }
}

#[test]
fn a_short_wait_among_long_ones_is_polled_for_alone() {
    // Bursts of eight, then a long wait.
    let mut adaptive = Adaptive::new();
    let mut cost = Cost::default();
    for at in 0..9_000 {
        let length = if at % 9 == 8 { 400_000 } else { 2_000 };
        wait(&mut adaptive, &mut cost, length, 20_000, FOREVER);
    }
    assert!(
        cost.spent * 100 < cost.optimum * 115,
        "{} {}",
        cost.spent,
        cost.optimum
    );
}

#[test]
fn the_ceiling_within_a_bin_is_of_use() {
    let mut adaptive = Adaptive::new();
    for _ in 0..100 {
        wait(&mut adaptive, &mut Cost::default(), 49_500, 60_000, 50_000);
    }
    assert_eq!(adaptive.window(60_000, 50_000), 50_000);
    let mut adaptive = Adaptive::new();
    for _ in 0..100 {
        wait(&mut adaptive, &mut Cost::default(), 50_500, 60_000, 50_000);
    }
    assert_eq!(adaptive.window(60_000, 50_000), 0);
}

fn lengths() -> impl Strategy<Value = Vec<u64>> {
    let one = prop_oneof![
        0..2_000_u64,
        0..40_000_u64,
        0..2_000_000_u64,
        Just(u64::MAX)
    ];
    let runs = prop::collection::vec((one, 1..40_usize), 1..60);
    runs.prop_map(|runs| {
        let run = |(length, count)| std::iter::repeat_n(length, count);
        runs.into_iter().flat_map(run).collect()
    })
}

proptest! {
    #[test]
    fn waits_cost_at_most_twice_the_optimum_and_a_wake_up(
        lengths in lengths(),
        price in 1..200_000_u64,
    ) {
        let (mut adaptive, mut cost) = (Adaptive::new(), Cost::default());
        for length in lengths {
            wait(&mut adaptive, &mut cost, length, price, FOREVER);
            prop_assert!(cost.spent <= 2 * cost.optimum + price);
        }
    }

    /// An adversary who knows the window makes each wait a little longer than it.
    #[test]
    fn an_adversary_gains_no_more(
        price in 1..200_000_u64,
        choices in prop::collection::vec(0..4_u8, 1..2000),
    ) {
        let (mut adaptive, mut cost) = (Adaptive::new(), Cost::default());
        for choice in choices {
            let window = adaptive.window(price, FOREVER);
            let length = match choice {
                0 => window + 1,
                1 => window,
                2 => 1,
                _ => price * 10,
            };
            wait(&mut adaptive, &mut cost, length, price, FOREVER);
            prop_assert!(cost.spent <= 2 * cost.optimum + price);
        }
    }

    #[test]
    fn since_any_moment_waits_cost_at_most_twice_the_optimum_and_the_credit(
        before in lengths(),
        after in lengths(),
        price in 1..200_000_u64,
    ) {
        let mut adaptive = Adaptive::new();
        for length in before {
            wait(&mut adaptive, &mut Cost::default(), length, price, FOREVER);
        }
        let mut cost = Cost::default();
        for length in after {
            wait(&mut adaptive, &mut cost, length, price, FOREVER);
            prop_assert!(cost.spent <= 2 * cost.optimum + 64 * price);
        }
    }

    #[test]
    fn any_numbers_will_do(
        waits in prop::collection::vec(any::<(u64, u64, bool, u64, u64)>(), 0..200),
    ) {
        let mut adaptive = Adaptive::new();
        for (length, polled, slept, price, ceiling) in waits {
            adaptive.learn(Wait { length, polled, slept }, price);
            prop_assert!(adaptive.window(price, ceiling) <= ceiling);
        }
    }
}
