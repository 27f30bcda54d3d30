// SPDX-License-Identifier: GPL-2.0

//! What the adaptive policy promises.

use poll_sim::machine::Times;
use poll_sim::policy::Policy;
use poll_sim::report::{arrivals, QueuesRow};
use poll_sim::trace::Trace;
use poll_sim::{waits, US};

/// Prices of a wake-up, in microseconds.
const PRICES: [u64; 6] = [2, 5, 10, 20, 30, 80];
const COUNT: usize = 10_000;
const ADAPTIVE: Policy = Policy::Adaptive(500);

#[test]
fn no_trace_costs_more_than_twice_its_optimum() {
    for trace in Trace::all() {
        for price in PRICES {
            for seed in 0..2 {
                let gaps = trace.gaps(COUNT, seed).unwrap();
                let cost = waits::run(&gaps, ADAPTIVE, price * US);
                assert!(
                    cost.cost <= 2 * cost.optimum,
                    "{trace}, price {price} us: {} for {}",
                    cost.cost,
                    cost.optimum
                );
            }
        }
    }
}

#[test]
fn no_constant_gap_costs_more_than_the_better_of_never_and_always() {
    for us in 1..=200 {
        let gaps = Trace::Constant(us).gaps(600, 1).unwrap();
        for price in PRICES {
            let run = |policy| {
                let warm = waits::run(&gaps[..100], policy, price * US).cost;
                waits::run(&gaps, policy, price * US).cost - warm
            };
            let best = run(Policy::Fixed(0)).min(run(Policy::Forever));
            let adaptive = run(ADAPTIVE);
            assert!(
                adaptive * 10 <= best * 11,
                "{us} us, price {price} us: {adaptive} is above {best}"
            );
        }
    }
}

/// The same of gaps that are not constant, against every fixed window: with some slack, as it has to find out.
#[test]
fn no_fixed_window_is_much_better_on_any_trace() {
    for trace in Trace::all() {
        for price in PRICES {
            let gaps = trace.gaps(COUNT, 7).unwrap();
            let adaptive = waits::run(&gaps, ADAPTIVE, price * US).cost;
            for fixed in Policy::all() {
                if matches!(fixed, Policy::Adaptive(_)) {
                    continue;
                }
                let cost = waits::run(&gaps, fixed, price * US).cost;
                assert!(
                    adaptive * 10 <= cost * 13,
                    "{trace}, price {price} us: {adaptive}, but {fixed} takes {cost}"
                );
            }
        }
    }
}

#[test]
fn packets_at_random_need_few_kicks_where_wake_ups_cost_more() {
    let gaps = Trace::Poisson(25).gaps(COUNT, 1).unwrap();
    let cost = waits::run(&gaps, ADAPTIVE, 40 * US);
    assert!(cost.woken * 20 <= cost.events, "{} kicks", cost.woken);
}

#[test]
fn ping_pong_with_long_gaps_is_hardly_polled() {
    let gaps = Trace::PingPong(1000).gaps(COUNT, 1).unwrap();
    let polled = |policy| waits::run(&gaps, policy, 30 * US).polled;
    assert!(polled(ADAPTIVE) * 10 <= polled(Policy::Fixed(50)));
}

#[test]
fn continuous_polling_needs_no_kick_and_ends() {
    let mut gaps = Trace::Constant(3).gaps(COUNT, 1).unwrap();
    let pause = 50_000 * US;
    gaps.push(pause);
    let cost = waits::run(&gaps, Policy::Continuous(20, 1000), 30 * US);
    // Until the rate is known, and after the pause.
    assert!(cost.woken < 200, "{} kicks", cost.woken);
    let busy: u64 = gaps[..COUNT].iter().sum();
    assert!(cost.polled <= busy + 1000 * US, "{} ns polled", cost.polled);
}

#[test]
fn queues_that_share_cpus_are_not_worse_off_for_polling() {
    let times = Times {
        price: 20 * US,
        service: 3 * US,
        slice: 4_000 * US,
    };
    for trace in [
        Trace::Poisson(200),
        Trace::PingPong(60),
        Trace::Bursts(8, 2, 400),
    ] {
        for queues in [1, 2, 5, 16, 64] {
            let arrivals = arrivals(&trace, queues, 500, 1).unwrap();
            for cpus in [1, 2, 4, 8] {
                let run = |policy| QueuesRow::new(&arrivals, cpus, policy, times).load;
                let (never, adaptive) = (run(Policy::Fixed(0)), run(ADAPTIVE));
                assert_eq!(adaptive.events, never.events);
                assert!(
                    adaptive.late <= never.late + never.late / 10,
                    "{trace}, {queues} queues on {cpus} CPUs: {} ns late, {} without polling",
                    adaptive.late,
                    never.late
                );
            }
        }
    }
}

#[test]
fn a_time_of_no_trace_is_refused() {
    for text in [
        "",
        "poisson",
        "poisson:x",
        "constant:0",
        "bursts:1:2",
        "file",
        "constant:1:2",
    ] {
        assert!(text.parse::<Trace>().is_err(), "{text}");
    }
    for trace in Trace::all() {
        assert_eq!(trace.to_string().parse(), Ok(trace));
    }
    for policy in Policy::all() {
        assert_eq!(policy.to_string().parse(), Ok(policy));
    }
}
