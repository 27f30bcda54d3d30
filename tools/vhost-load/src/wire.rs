// SPDX-License-Identifier: GPL-2.0

//! The host's end of the wire: on the tap's interface, or on the one that its packets come out of.

use crate::check::Checker;
use crate::failure::{Failure, Patience};
use crate::frame::{self, Found, Shape, Stamp};
use crate::gate::Gate;
use crate::inject::{self, Emission, Injection};
use crate::line::{Line, SOCKET_BUFFER};
use crate::pace::Pace;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How often a thread that waits looks whether it is over.
const LOOK_AROUND: Duration = Duration::from_millis(50);

/// The host's end of the wire.
#[derive(Debug)]
pub struct Wire {
    line: Line,
    /// Shape of the frames that are received here.
    shape: Shape,
}

/// How many frames of `size` bytes a socket surely holds: twice their size for what the kernel adds.
pub fn frames_that_fit(size: usize) -> u64 {
    const OVERHEAD: u64 = 2048;
    const MOST: u64 = 4096;
    let each = 2 * (size as u64) + OVERHEAD; // CAST: Widens.
    (u64::from(SOCKET_BUFFER.unsigned_abs()) / each).clamp(1, MOST)
}

/// What a sender on the host is to do.
#[derive(Clone, Copy, Debug)]
pub struct Sending {
    /// Frames; a fault may make them one more or less.
    pub count: u64,
    /// Not longer than this.
    pub until: Option<Instant>,
    /// When each leaves.
    pub pace: Pace,
    /// A fault to make.
    pub injection: Option<Injection>,
    /// Whether each frame is written anew; if not, all are the same.
    pub verified: bool,
    /// How long to wait for a receiver that does not receive.
    pub patience: Duration,
}

impl Wire {
    /// Makes the end of a wire: frames of `shape` arrive through `line`, and the reverse leaves.
    pub fn new(line: Line, shape: Shape) -> Self {
        Self { line, shape }
    }

    /// Room for a header and the largest frame.
    fn packet(&self) -> Vec<u8> {
        vec![0; self.line.header_size() + frame::SIZES.end]
    }

    /// Receives and checks until `stop`, and then what is there.
    ///
    /// # Errors
    ///
    /// Those of recv(2).
    pub fn capture(&self, flows: u32, gate: &Gate, stop: &AtomicBool) -> Result<Checker, Failure> {
        let mut checker = Checker::new(flows);
        let mut packet = self.packet();
        loop {
            let over = stop.load(Ordering::Acquire);
            let Some(len) = self.line.receive(&mut packet)? else {
                if over {
                    return Ok(checker);
                }
                self.line.wait(LOOK_AROUND)?;
                continue;
            };
            let received = &packet[..len.min(packet.len())];
            let (header, frame) = received.split_at(self.line.header_size().min(len));
            let before = checker.tally().received;
            checker.note(self.shape.read(header, frame));
            gate.saw(checker.tally().received - before);
        }
    }

    /// Frames that the socket had no room for.
    ///
    /// # Errors
    ///
    /// None that an open socket gives.
    pub fn drops(&self) -> Result<u64, Failure> {
        self.line.drops()
    }

    /// Sends frames to the guest, no more than `gate` lets through.
    ///
    /// # Errors
    ///
    /// [`Failure::Stalled`] if the guest receives nothing; those of send(2).
    pub fn send(&self, sending: &Sending, gate: &Gate, stop: &AtomicBool) -> Result<(), Failure> {
        let shape = self.shape.reversed();
        let total = Emission::total(sending.count, sending.injection);
        let mut packet = Outgoing::new(&shape, self.line.header_size());
        let mut patience = Patience::new(sending.patience);
        let mut pace = sending.pace.start();
        let mut nth = 0;
        while nth < total && !stop.load(Ordering::Relaxed) {
            if sending.until.is_some_and(|until| Instant::now() >= until) {
                break;
            }
            if !gate.wait_room() {
                patience.wait(|| format!("the guest received {} of {nth} packets", gate.seen()))?;
                continue;
            }
            patience.progress();
            pace.wait();
            if sending.verified || nth == 0 {
                packet.fill(&shape, Emission::new(nth, sending.injection));
            }
            let turn = gate.turn();
            // Counted first: the guest may have it before the call returns.
            gate.sent(1);
            while !self.line.send(&packet.bytes)? {
                patience.wait(|| format!("the tap's queue takes no more after {nth} packets"))?;
                std::thread::yield_now();
            }
            drop(turn);
            nth += 1;
        }
        Ok(())
    }

    /// Sends back whatever arrives, until `stop`. A fault befalls an answer of flow 0.
    ///
    /// # Errors
    ///
    /// Those of recv(2) and send(2).
    pub fn echo(
        &self,
        injection: Option<Injection>,
        think: Duration,
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        let mut packet = self.packet();
        let mut held: Option<Vec<u8>> = None;
        while !stop.load(Ordering::Relaxed) {
            let Some(len) = self.line.receive(&mut packet)? else {
                self.line.wait(LOOK_AROUND)?;
                continue;
            };
            let len = len.min(packet.len());
            if !think.is_zero() {
                std::thread::sleep(think);
            }
            self.answer(&mut packet[..len], injection, &mut held)?;
        }
        Ok(())
    }

    fn answer(
        &self,
        packet: &mut [u8],
        injection: Option<Injection>,
        held: &mut Option<Vec<u8>>,
    ) -> Result<(), Failure> {
        let Some((header, frame)) = packet.split_at_mut_checked(self.line.header_size()) else {
            return Ok(());
        };
        // Questions of ours that are not sound are answered as they are: the guest is who checks.
        let found = self.shape.read(header, frame);
        if found == Found::Foreign {
            return Ok(());
        }
        self.shape.answer(frame);
        let hit = |injection: &Injection| {
            found
                == Found::Sound(Stamp {
                    flow: 0,
                    sequence: injection.at,
                })
        };
        match injection.filter(hit).map(|injection| injection.fault) {
            Some(inject::Fault::Lose) => return Ok(()),
            Some(inject::Fault::Swap) => {
                *held = Some(packet.to_vec());
                return Ok(());
            }
            Some(inject::Fault::Corrupt) => inject::corrupt(packet),
            Some(inject::Fault::Duplicate) => self.push(packet)?,
            None => {}
        }
        self.push(packet)?;
        if let Some(packet) = held.take() {
            self.push(&packet)?;
        }
        Ok(())
    }

    fn push(&self, packet: &[u8]) -> Result<(), Failure> {
        while !self.line.send(packet)? {
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// A packet to be sent: header and frame.
struct Outgoing {
    header_size: usize,
    frame: Vec<u8>,
    bytes: Vec<u8>,
}

impl Outgoing {
    fn new(shape: &Shape, header_size: usize) -> Self {
        let header = &shape.header()[..header_size];
        Self {
            header_size,
            frame: Vec::with_capacity(shape.size),
            bytes: header.to_vec(),
        }
    }

    fn fill(&mut self, shape: &Shape, emission: Emission) {
        let sequence = emission.sequence;
        shape.write(Stamp { flow: 0, sequence }, &mut self.frame);
        if emission.corrupt {
            inject::corrupt(&mut self.frame);
        }
        self.bytes.truncate(self.header_size);
        self.bytes.extend_from_slice(&self.frame);
    }
}
