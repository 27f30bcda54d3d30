// SPDX-License-Identifier: GPL-2.0

//! Faults made on purpose, to prove that the check sees them.

use clap::ValueEnum;

/// What to do to one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Fault {
    /// Flip a bit of it.
    Corrupt,
    /// Send it after the next one.
    Swap,
    /// Do not send it.
    Lose,
    /// Send it twice.
    Duplicate,
}

/// A fault, and the frame it befalls.
#[derive(Clone, Copy, Debug)]
pub struct Injection {
    /// What to do.
    pub fault: Fault,
    /// Sequence number of the frame.
    pub at: u64,
}

/// A frame to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emission {
    /// Its sequence number.
    pub sequence: u64,
    /// Whether to flip a bit after its checksum was made.
    pub corrupt: bool,
}

impl Emission {
    /// The frame that is sent as number `nth`, counted from 0.
    pub fn new(nth: u64, injection: Option<Injection>) -> Self {
        let mut emission = Self {
            sequence: nth,
            corrupt: false,
        };
        let Some(Injection { fault, at }) = injection else {
            return emission;
        };
        match fault {
            Fault::Corrupt => emission.corrupt = nth == at,
            Fault::Swap if nth == at => emission.sequence = at + 1,
            Fault::Swap if nth == at + 1 => emission.sequence = at,
            Fault::Lose if nth >= at => emission.sequence = nth + 1,
            Fault::Duplicate if nth > at => emission.sequence = nth - 1,
            Fault::Swap | Fault::Lose | Fault::Duplicate => {}
        }
        emission
    }

    /// How many frames are sent if `count` are meant to be.
    pub fn total(count: u64, injection: Option<Injection>) -> u64 {
        match injection.map(|injection| injection.fault) {
            Some(Fault::Lose) => count.saturating_sub(1),
            Some(Fault::Duplicate) => count + 1,
            Some(Fault::Corrupt | Fault::Swap) | None => count,
        }
    }
}

/// Flips a bit near the end of a frame.
pub fn corrupt(frame: &mut [u8]) {
    if let Some(byte) = frame.last_mut() {
        *byte ^= 0x10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(count: u64, fault: Fault, at: u64) -> Vec<u64> {
        let injection = Some(Injection { fault, at });
        let total = Emission::total(count, injection);
        (0..total)
            .map(|nth| Emission::new(nth, injection).sequence)
            .collect()
    }

    #[test]
    fn each_fault_does_what_it_says() {
        assert_eq!(sent(5, Fault::Swap, 2), [0, 1, 3, 2, 4]);
        assert_eq!(sent(5, Fault::Lose, 2), [0, 1, 3, 4]);
        assert_eq!(sent(5, Fault::Duplicate, 2), [0, 1, 2, 2, 3, 4]);
        assert_eq!(sent(5, Fault::Corrupt, 2), [0, 1, 2, 3, 4]);
        let corrupt = Some(Injection {
            fault: Fault::Corrupt,
            at: 2,
        });
        assert!(Emission::new(2, corrupt).corrupt && !Emission::new(3, corrupt).corrupt);
    }
}
