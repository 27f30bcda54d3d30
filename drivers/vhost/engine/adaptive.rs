// SPDX-License-Identifier: GPL-2.0

//! Polls as long as that is expected to cost less than to sleep and be woken.
//!
//! A wait costs the time that was polled and, if it was not over by then, the
//! price of a wake-up. Who knew beforehand how long it takes would poll through
//! a wait that is shorter than the price, and sleep at once otherwise: the
//! optimum. Polling for just the price costs at most twice that, whatever
//! comes, and nothing that knows no future can promise less. But it does so
//! even where all waits are long, or all a little too long.
//!
//! So the lengths of the latest waits say which window would have been the
//! cheapest for them, and that is taken as far as *credit* reaches: what the
//! past cost less than twice its optimum. A window that is longer or shorter
//! than the price by some time can lose no more than that time. So all waits
//! together, and those since any moment, never cost more than twice their
//! optimum and the most that the credit can be.

/// Bins of waits by their length.
const BINS: usize = 25;
/// The upper edge of each, in nanoseconds: two to an octave, from 256 ns to 1 ms.
const EDGES: [u64; BINS] = [
    0x100,
    0x180,
    0x200,
    0x300,
    0x400,
    0x600,
    0x800,
    0xc00,
    0x1000,
    0x1800,
    0x2000,
    0x3000,
    0x4000,
    0x6000,
    0x8000,
    0xc000,
    0x1_0000,
    0x1_8000,
    0x2_0000,
    0x3_0000,
    0x4_0000,
    0x6_0000,
    0x8_0000,
    0x10_0000,
    u64::MAX,
];
/// What a new wait counts.
const WEIGHT: u32 = 8;
/// When all waits together count so much, each counts half from then on.
const MEMORY: u32 = 64 * WEIGHT;
/// Credit of a vring that has not polled yet, and the most there is, in prices.
const CREDIT: [u64; 2] = [1, 64];

/// A wait that is over: from the moment when nothing was left to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Nanoseconds until there was something to do again.
    pub length: u64,
    /// Nanoseconds of them that were polled.
    pub polled: u64,
    /// The worker slept then, and had to be woken.
    pub slept: bool,
}

/// The latest waits of about the same length: what they count, and the sum of
/// their lengths, each multiplied by that.
#[derive(Clone, Copy, Debug)]
struct Bin {
    count: u32,
    sum: u64,
}

/// What the waits of a vring were like.
#[derive(Clone, Debug)]
pub struct Adaptive {
    bins: [Bin; BINS],
    count: u32,
    /// Nanoseconds; `None` before the first wait.
    credit: Option<u64>,
}

impl Adaptive {
    /// Of a vring that has not waited yet.
    pub const fn new() -> Self {
        Self {
            bins: [Bin { count: 0, sum: 0 }; BINS],
            count: 0,
            credit: None,
        }
    }

    /// How many nanoseconds to poll now, at most `ceiling`, if to sleep and be
    /// woken costs `price` nanoseconds.
    pub fn window(&self, price: u64, ceiling: u64) -> u64 {
        let [first, _] = CREDIT;
        let credit = self.credit.unwrap_or(price.saturating_mul(first));
        let wanted = self.cheapest(price, ceiling).unwrap_or(price);

        wanted
            .max(price.saturating_sub(credit))
            .min(price.saturating_add(credit))
            .min(ceiling)
    }

    /// The window that would have been the cheapest for the waits that are
    /// remembered. The shortest of several.
    #[inline(never)]
    fn cheapest(&self, price: u64, ceiling: u64) -> Option<u64> {
        if self.count == 0 {
            return None;
        }
        let (mut longer, mut polled) = (u64::from(self.count), 0_u64);
        let (mut least, mut window) = (longer.saturating_mul(price), 0);

        for (bin, &edge) in self.bins.iter().zip(&EDGES) {
            let edge = edge.min(ceiling);
            let count = u64::from(bin.count);
            // The ceiling may lie within a bin.
            if count != 0 && bin.sum <= count.saturating_mul(edge) {
                longer = longer.saturating_sub(count);
                polled = polled.saturating_add(bin.sum);
                let lost = longer.saturating_mul(edge.saturating_add(price));
                let cost = polled.saturating_add(lost);
                if cost < least {
                    (least, window) = (cost, edge);
                }
            }
            if edge == ceiling {
                break;
            }
        }
        Some(window)
    }

    /// Learns from a wait, when a wake-up cost `price` nanoseconds.
    #[inline(never)]
    pub fn learn(&mut self, wait: Wait, price: u64) {
        let [first, most] = CREDIT;
        let credit = self.credit.unwrap_or(price.saturating_mul(first));
        let optimum = wait.length.min(price);
        let woken = if wait.slept { price } else { 0 };
        let credit = credit
            .saturating_add(optimum.saturating_mul(2))
            .saturating_sub(wait.polled.saturating_add(woken));
        self.credit = Some(credit.min(price.saturating_mul(most)));

        if self.count >= MEMORY {
            self.forget();
        }
        let mut bins = self.bins.iter_mut().zip(&EDGES);
        if let Some((bin, _)) = bins.find(|(_, edge)| wait.length <= **edge) {
            let sum = wait.length.saturating_mul(WEIGHT.into());
            bin.count = bin.count.saturating_add(WEIGHT);
            bin.sum = bin.sum.saturating_add(sum);
            self.count = self.count.saturating_add(WEIGHT);
        }
    }

    /// Lets all that is remembered count half.
    fn forget(&mut self) {
        self.count = 0;
        for bin in &mut self.bins {
            let mean = bin.sum.checked_div(bin.count.into()).unwrap_or(0);
            bin.count >>= 1;
            bin.sum = mean.saturating_mul(bin.count.into());
            self.count = self.count.saturating_add(bin.count);
        }
    }
}

impl Default for Adaptive {
    fn default() -> Self {
        Self::new()
    }
}
