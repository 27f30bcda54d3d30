// SPDX-License-Identifier: GPL-2.0

//! When packets leave.

use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::args::Options;

/// What random times begin with: the same in each run.
const SEED: u64 = 1;

/// How far packets are apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time from one to the next; 0 is as fast as it goes.
    every: Duration,
    /// That is the mean of random times.
    random: bool,
    /// The sender sleeps meanwhile.
    doze: bool,
}

/// When the next packet is due.
#[derive(Debug)]
pub struct Pacer {
    pace: Pace,
    due: Instant,
    rng: Rng,
}

impl Pace {
    /// What options ask for.
    pub fn new(options: &Options) -> Self {
        Self {
            every: Duration::from_micros(options.pace),
            random: options.random,
            doze: options.doze,
        }
    }

    /// Whether there is any time between packets.
    pub fn is_paced(self) -> bool {
        !self.every.is_zero()
    }

    /// The first packet is due now.
    pub fn start(self) -> Pacer {
        Pacer {
            pace: self,
            due: Instant::now(),
            rng: Rng::with_seed(SEED),
        }
    }
}

impl Pacer {
    /// Waits until the next packet is due. Lost time is not made up for.
    pub fn wait(&mut self) {
        if !self.pace.is_paced() {
            return;
        }
        let left = self.due.saturating_duration_since(Instant::now());
        if self.pace.doze && !left.is_zero() {
            thread::sleep(left);
        }
        while Instant::now() < self.due {
            std::hint::spin_loop();
        }
        self.due = self.due.max(Instant::now()) + self.gap();
    }

    #[expect(clippy::float_arithmetic, reason = "an exponential distribution")]
    fn gap(&mut self) -> Duration {
        if self.pace.random {
            let share = 1.0 - self.rng.f64();
            self.pace.every.mul_f64(-share.ln())
        } else {
            self.pace.every
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(random: bool) -> Vec<Duration> {
        let every = Duration::from_micros(25);
        let pace = Pace {
            every,
            random,
            doze: false,
        };
        let mut pacer = pace.start();
        (0..10_000).map(|_| pacer.gap()).collect()
    }

    #[test]
    fn random_times_have_the_mean_and_are_different() {
        let gaps = gaps(true);
        let mean = gaps.iter().sum::<Duration>() / 10_000;
        assert!((24_000..26_000).contains(&mean.as_nanos()), "{mean:?}");
        let longer = gaps.iter().filter(|gap| gap.as_micros() >= 25).count();
        // One in e.
        assert!((3_500..3_850).contains(&longer), "{longer}");
    }

    #[test]
    fn other_times_are_all_the_same() {
        assert!(gaps(false).iter().all(|gap| gap.as_micros() == 25));
    }
}
