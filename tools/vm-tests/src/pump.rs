// SPDX-License-Identifier: GPL-2.0

//! Traffic in both directions that goes on whatever happens to the device.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{anyhow, Result};
use vhost_driver::Gpa;
use vhost_load::failure::Failure;
use vhost_load::frame::{Shape, Stamp};
use vhost_load::vring::{Buffers, Cut, Vring, RX, TX};
use vhost_uapi::PacketSocket;

use crate::patience::{wait_for, what_goes_on};
use crate::rig::{FRAME, HEADER, PACKET};

/// Bytes of a buffer.
const STRIDE: u64 = 2048;
/// How long a thread that finds nothing to do sleeps.
const PAUSE: Duration = Duration::from_micros(500);

/// Threads that play the guest's driver and the host's end of the wire.
#[derive(Debug)]
pub struct Pump {
    stop: Arc<AtomicBool>,
    moved: Arc<[AtomicU64; 2]>,
    guest: JoinHandle<Result<(Side, Side), Failure>>,
    host: JoinHandle<Result<()>>,
}

/// The shape of the frames that the guest sends.
pub fn shape() -> Shape {
    Shape::plain(FRAME as usize) // CAST: 64.
}

/// A header of `header` zeroes and a frame.
fn zero_and(shape: &Shape, header: usize) -> Vec<u8> {
    let (flow, sequence) = (0, 0);
    let mut frame = Vec::new();
    shape.write(Stamp { flow, sequence }, &mut frame);
    let mut packet = vec![0; header];
    packet.extend(frame);
    packet
}

/// A packet of the guest, as it is in its buffer.
pub(crate) fn packet() -> Vec<u8> {
    zero_and(&shape(), HEADER as usize) // CAST: 12.
}

/// A packet for the guest, as the wire takes it.
pub(crate) fn packet_to_guest() -> Vec<u8> {
    zero_and(&shape().reversed(), PacketSocket::HEADER_SIZE)
}

impl Pump {
    /// Starts traffic over both rings.
    pub fn start(mut rx: Side, mut tx: Side, wire: PacketSocket) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let moved = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let guest = {
            let (stop, moved) = (Arc::clone(&stop), Arc::clone(&moved));
            let drive = move || {
                while !stop.load(Ordering::Relaxed) {
                    let mut now = 0;
                    for (side, moved) in [&mut rx, &mut tx].into_iter().zip(moved.iter()) {
                        let returned = side.turn()?;
                        moved.fetch_add(returned, Ordering::Relaxed);
                        now += returned;
                    }
                    if now == 0 {
                        std::thread::sleep(PAUSE);
                    }
                }
                Ok((rx, tx))
            };
            std::thread::spawn(move || {
                drive().inspect_err(|err| println!("#   traffic: guest: {err}"))
            })
        };
        let host = {
            let stop = Arc::clone(&stop);
            let drive = move || host(&wire, &stop);
            std::thread::spawn(move || {
                drive().inspect_err(|err| println!("#   traffic: host: {err:#}"))
            })
        };
        Self {
            stop,
            moved,
            guest,
            host,
        }
    }

    /// Waits until packets have moved in both directions.
    ///
    /// # Errors
    ///
    /// They do not.
    pub fn expect_traffic(&self) -> Result<()> {
        const ENOUGH: u64 = 20;
        let count = |index: usize| self.moved[index].load(Ordering::Relaxed);
        let before = [count(0), count(1)];
        let enough = |index: usize| count(index) >= before[index] + ENOUGH;
        let moved = wait_for(|| enough(0) && enough(1));
        moved.map_err(|_| {
            let [rx, tx] = [count(0) - before[0], count(1) - before[1]];
            let state = what_goes_on();
            anyhow!("traffic stands still: {rx} packets received, {tx} sent{state}")
        })
    }

    /// Ends the traffic. Returns the rings, rx first.
    ///
    /// # Errors
    ///
    /// The device broke the rules of a ring meanwhile.
    pub fn stop(self) -> Result<(Side, Side)> {
        self.stop.store(true, Ordering::Relaxed);
        let panicked = |_| anyhow!("a traffic thread panicked");
        self.host.join().map_err(panicked)??;
        Ok(self.guest.join().map_err(panicked)??)
    }
}

/// A ring and its buffers.
#[derive(Debug)]
pub struct Side {
    /// The ring.
    pub vring: Vring,
    buffers: Buffers,
}

impl Side {
    /// A ring whose buffers begin at `base`, all of them free.
    pub fn new(vring: Vring, base: Gpa) -> Self {
        if vring.index == TX {
            let packet = packet();
            for slot in 0..u64::from(vring.queue.layout().num) {
                vring.queue.memory().write(base + slot * STRIDE, &packet);
            }
        }
        let count = u32::from(vring.queue.layout().num);
        let buffers = Buffers::new(base, STRIDE, count);
        Self { vring, buffers }
    }

    /// Takes back what was used, and fills the ring up. Says how many chains came back.
    fn turn(&mut self) -> Result<u64, Failure> {
        let mut returned = 0;
        while let Some(used) = self.vring.pop_used()? {
            self.buffers.put(used.token);
            returned += 1;
        }
        let writable = self.vring.index == RX;
        let len = if writable { STRIDE as u32 } else { PACKET }; // CAST: 2048.
        let cut = Cut {
            header: HEADER,
            descriptors: 1,
        };
        let mut segments = Vec::new();
        let index = self.vring.index;
        while let Some(slot) = self.buffers.take() {
            cut.segments(self.buffers.address(slot), len, writable, &mut segments);
            let added = self.vring.queue.add(&segments, slot);
            added.map_err(|source| Failure::Device { index, source })?;
        }
        self.vring.publish()?;
        Ok(returned)
    }
}

/// Sends frames to the guest, and takes those that it sends. An interface that is down refuses both, for as long as it is.
fn host(wire: &PacketSocket, stop: &AtomicBool) -> Result<()> {
    let packet = packet_to_guest();
    let mut received = [0; 256];
    while !stop.load(Ordering::Relaxed) {
        let sent = wire.send(&packet).unwrap_or(false);
        let taken = wire.receive(&mut received).is_ok_and(|len| len.is_some());
        if !sent && !taken {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(())
}
