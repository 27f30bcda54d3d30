// SPDX-License-Identifier: GPL-2.0

//! Whether everything that was sent arrives once, in order and unharmed.

use std::collections::BTreeSet;

use crate::frame::{Found, Stamp};

/// A gap in the sequence larger than this is no gap but a wrong number.
const MAX_GAP: u64 = 1 << 20;

/// What was seen, and the first thing that was wrong.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Frames of ours, sound or not.
    pub received: u64,
    /// Frames that never came.
    pub lost: u64,
    /// Frames that came after a later one.
    pub reordered: u64,
    /// Frames that came changed.
    pub corrupted: u64,
    /// Frames that came again.
    pub duplicated: u64,
    /// Frames of others.
    pub foreign: u64,
    /// The first violation.
    pub first: Option<String>,
}

impl Tally {
    /// Notes a violation; the first is kept.
    pub fn violation(&mut self, what: impl FnOnce() -> String) {
        self.first.get_or_insert_with(what);
    }
}

/// Checks the frames of some flows as they arrive.
#[derive(Debug)]
pub struct Checker {
    flows: Vec<Flow>,
    tally: Tally,
}

#[derive(Clone, Debug, Default)]
struct Flow {
    next: u64,
    missing: BTreeSet<u64>,
}

impl Checker {
    /// Expects `flows` flows, each from sequence number 0.
    pub fn new(flows: u32) -> Self {
        Self {
            flows: (0..flows).map(|_| Flow::default()).collect(),
            tally: Tally::default(),
        }
    }

    /// Notes a violation that shows elsewhere than in a payload; the first is kept.
    pub fn fail<T: Default>(&mut self, what: String) -> T {
        self.tally.violation(|| what);
        T::default()
    }

    /// Takes note of packets that nobody looks at.
    pub fn count(&mut self, packets: u64) {
        self.tally.received += packets;
        if let Some(flow) = self.flows.first_mut() {
            flow.next += packets;
        }
    }

    /// What was seen up to now.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Takes note of one received frame. Returns its stamp if it was sound, of a known flow, and new.
    pub fn note(&mut self, found: Found) -> Option<Stamp> {
        let stamp = match found {
            Found::Foreign => {
                self.tally.foreign += 1;
                return None;
            }
            Found::Corrupted(what) => {
                self.tally.received += 1;
                return self.corrupted(what);
            }
            Found::Sound(stamp) => stamp,
        };
        self.tally.received += 1;
        let Stamp { flow, sequence } = stamp;
        let known = usize::try_from(flow)
            .ok()
            .and_then(|flow| self.flows.get_mut(flow));
        let Some(state) = known else {
            return self.corrupted(format!(
                "packet {sequence} of flow {flow}, which there is not"
            ));
        };
        let expected = state.next;
        if sequence > expected.saturating_add(MAX_GAP) {
            return self.corrupted(format!(
                "packet {sequence} of flow {flow}, where {expected} is next"
            ));
        }
        if sequence >= expected {
            state.missing.extend(expected..sequence);
            state.next = sequence + 1;
        } else if state.missing.remove(&sequence) {
            self.tally.reordered += 1;
            self.tally.violation(|| {
                format!(
                    "reordered: packet {sequence} of flow {flow} came after packet {}",
                    expected - 1
                )
            });
        } else {
            self.tally.duplicated += 1;
            self.tally
                .violation(|| format!("duplicated: packet {sequence} of flow {flow} came again"));
            return None;
        }
        Some(stamp)
    }

    fn corrupted(&mut self, what: String) -> Option<Stamp> {
        self.tally.corrupted += 1;
        self.tally.violation(|| format!("corrupted: {what}"));
        None
    }

    /// Closes the account: `sent` frames of each flow were sent, in order of the flows.
    pub fn finish(mut self, sent: &[u64]) -> Tally {
        for (number, (flow, sent)) in self.flows.iter_mut().zip(sent).enumerate() {
            flow.missing.extend(flow.next..*sent);
            // A frame that came corrupted cannot be told from a missing one: it is in `missing`, and counted already.
            self.tally.lost += flow.missing.len() as u64; // CAST: Widens.
            if let Some(first) = flow.missing.first().filter(|_| self.tally.corrupted == 0) {
                let count = flow.missing.len();
                self.tally.violation(|| {
                    format!("lost: packet {first} of flow {number} never came ({count} lost)")
                });
            }
        }
        self.tally.lost = self.tally.lost.saturating_sub(self.tally.corrupted);
        self.tally
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(arrived: &[u64], sent: u64) -> Tally {
        let mut checker = Checker::new(1);
        for sequence in arrived {
            checker.note(Found::Sound(Stamp {
                flow: 0,
                sequence: *sequence,
            }));
        }
        checker.finish(&[sent])
    }

    #[test]
    fn all_in_order_is_no_violation() {
        assert_eq!(
            tally(&[0, 1, 2], 3),
            Tally {
                received: 3,
                ..Tally::default()
            }
        );
    }

    #[test]
    fn each_violation_has_its_name() {
        let lost = tally(&[0, 2], 3);
        assert_eq!((lost.lost, lost.reordered, lost.duplicated), (1, 0, 0));
        assert!(lost.first.unwrap().starts_with("lost: packet 1 "));

        let end = tally(&[0, 1], 4);
        assert_eq!(end.lost, 2);

        let swapped = tally(&[0, 2, 1], 3);
        assert_eq!(
            (swapped.lost, swapped.reordered, swapped.duplicated),
            (0, 1, 0)
        );
        assert!(swapped.first.unwrap().starts_with("reordered: packet 1 "));

        let twice = tally(&[0, 1, 1, 2], 3);
        assert_eq!((twice.lost, twice.reordered, twice.duplicated), (0, 0, 1));
        assert!(twice.first.unwrap().starts_with("duplicated: packet 1 "));
    }

    #[test]
    fn corrupted_frame_is_not_lost_too() {
        let mut checker = Checker::new(1);
        checker.note(Found::Sound(Stamp {
            flow: 0,
            sequence: 0,
        }));
        checker.note(Found::Corrupted("bad".to_owned()));
        checker.note(Found::Sound(Stamp {
            flow: 0,
            sequence: 2,
        }));
        let tally = checker.finish(&[3]);
        assert_eq!((tally.received, tally.corrupted, tally.lost), (3, 1, 0));
        assert_eq!(tally.first.unwrap(), "corrupted: bad");
    }

    #[test]
    fn wild_numbers_are_corruption() {
        let mut checker = Checker::new(1);
        assert_eq!(
            checker.note(Found::Sound(Stamp {
                flow: 1,
                sequence: 0
            })),
            None
        );
        assert_eq!(
            checker.note(Found::Sound(Stamp {
                flow: 0,
                sequence: u64::MAX
            })),
            None
        );
        assert_eq!(checker.tally().corrupted, 2);
    }

    #[test]
    fn flows_are_apart() {
        let mut checker = Checker::new(2);
        for (flow, sequence) in [(0, 0), (1, 0), (1, 1), (0, 1)] {
            assert!(checker
                .note(Found::Sound(Stamp { flow, sequence }))
                .is_some());
        }
        assert_eq!(checker.finish(&[2, 2]).first, None);
    }
}
