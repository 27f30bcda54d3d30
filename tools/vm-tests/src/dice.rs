// SPDX-License-Identifier: GPL-2.0

//! Random numbers that come again.

/// A small generator (xorshift), the same each time.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The numbers of a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.rotate_left(23)
    }

    /// A number below `sides`.
    pub fn roll(&mut self, sides: u64) -> u64 {
        self.bits() % sides
    }

    /// One of two.
    pub fn coin(&mut self) -> bool {
        self.roll(2) == 1
    }

    /// One of these; the first if there is no other.
    pub fn pick<T: Copy>(&mut self, first: T, others: &[T]) -> T {
        let at = self.roll(others.len() as u64 + 1); // CAST: Widens.
        let other = at.checked_sub(1).and_then(|at| others.get(at as usize)); // CAST: Below the length.
        other.copied().unwrap_or(first)
    }

    /// Puts things into a random order.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for last in (1..things.len()).rev() {
            let other = self.roll(last as u64 + 1) as usize; // CAST: Widens; not above `last`.
            things.swap(last, other);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_and_another_does_not() {
        let order = |seed| {
            let mut things: Vec<u32> = (0..50).collect();
            Dice::new(seed).shuffle(&mut things);
            things
        };
        assert_eq!(order(1), order(1));
        assert_ne!(order(1), order(2));
        let mut sorted = order(1);
        sorted.sort_unstable();
        assert_eq!(sorted, (0..50).collect::<Vec<_>>());
    }

    #[test]
    fn all_are_picked() {
        let mut dice = Dice::new(0);
        let picked: Vec<u32> = (0..100).map(|_| dice.pick(1, &[2, 3])).collect();
        assert!([1, 2, 3].iter().all(|wanted| picked.contains(wanted)));
    }
}
