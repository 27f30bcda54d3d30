// SPDX-License-Identifier: GPL-2.0

//! Ways in which vhost-net, or who it hands packets to, went wrong once in other hands. Each test says what is right.

use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use vhost_load::frame::{Found, Shape, Stamp};
use vhost_load::session::SessionOptions;
use vhost_load::vring::{RX, TX};
use vhost_uapi::{features, netdev, PacketSocket, XdpAction, XdpLink};

use crate::found::ip;
use crate::patience::wait_for;
use crate::races::kernel_memory;
use crate::raw_ring::Desc;
use crate::report::{Report, Test};
use crate::rig::{Rig, BUFFER, FRAME, HEADER, PACKET};
use crate::stop::{paused, Pause};

/// Entries of a ring.
const RING: u16 = 16;
/// Frames that the ring of a tap holds.
const QUEUE: u64 = 64;

/// Runs the tests whose names contain `only`. Cgroups are below `/sys/fs/cgroup`, a cgroup2 file system.
pub fn run(node: &Path, only: &str, report: &mut Report) {
    let mut tests = vec![
        Test::new(
            "frames shorter than Ethernet's header are dropped, with their memory (CVE-2024-41090, CVE-2026-46321)",
            || short_frames(node),
        ),
        Test::new(
            "a tap's ring is full at SET_BACKEND(-1): what was taken from it and does not fit is counted",
            || full_ring(node, false),
        ),
        Test::new("the same with frames that XDP has put there", || {
            full_ring(node, true)
        }),
    ];
    for (kthread, kind) in [(false, "task"), (true, "kthread")] {
        for (pause, how) in [
            (Pause::Signal, "SIGSTOP"),
            (Pause::Freezer, "a frozen cgroup"),
        ] {
            for (window, when) in [(0, ""), (3_000_000, " in a window of 3 s")] {
                let name = format!("{kind}: {how} stops an owner{when}, it goes on, it is killed");
                tests.push(Test::new(name, move || {
                    paused(node, kthread, window, pause)
                }));
            }
        }
    }
    tests.retain(|test| test.name.contains(only));
    report.run_on(1, &tests);
}

fn options(node: &Path, wanted: u128) -> SessionOptions {
    SessionOptions {
        node: node.to_owned(),
        features: 1 << features::VERSION_1 | wanted,
        ring_size: u32::from(RING),
        buffer_bytes: [u64::from(RING) * BUFFER; 2],
        ..SessionOptions::default()
    }
}

/// A tap parsed the addresses of frames that had none, and kept the memory of those that it did not like.
fn short_frames(node: &Path) -> Result<()> {
    /// Bytes of Ethernet's header: each frame is shorter.
    const ETH_HLEN: u16 = 14;
    const ROUNDS: u64 = 4000;
    let rig = Rig::new(&options(node, 0))?;
    let mut at = 0_u16;
    let mut round = || -> Result<()> {
        let sequence = u64::from(at);
        rig.good(TX, at, 0);
        for size in 0..ETH_HLEN {
            let (slot, size) = (size + 1, u32::from(size));
            let len = HEADER + size;
            rig.ring(TX).desc(
                slot,
                Desc {
                    len,
                    ..rig.whole(TX, slot)
                },
            );
            rig.ring(TX).avail(at.wrapping_add(slot), slot);
        }
        let count = ETH_HLEN + 1;
        rig.ring(TX).publish(at.wrapping_add(count));
        rig.kick(TX)?;
        rig.expect_frame(sequence)?;
        rig.expect_used(TX, at.wrapping_add(count))?;
        for nth in 0..count {
            rig.expect_entry(TX, at.wrapping_add(nth), (nth, 0))?;
        }
        at = at.wrapping_add(count);
        Ok(())
    };
    // What is allocated once is there then.
    round()?;
    let before = kernel_memory()?;
    for _ in 0..ROUNDS {
        round()?;
    }
    let after = kernel_memory()?;
    // With its headroom and what is kept behind it a frame takes half a KiB at least.
    let frames = ROUNDS * u64::from(ETH_HLEN);
    ensure!(
        after < before + frames / 4,
        "{frames} frames, and the kernel has {after} KiB instead of {before}"
    );
    Ok(())
}

/// The ends of a veth, if frames for the guest come by XDP.
struct Veth(Option<XdpLink>);

impl Veth {
    const ENDS: [&'static str; 2] = ["faults0", "faults1"];

    /// What comes in at the first end is redirected to the interface of this name.
    fn new(to: &str) -> Result<Self> {
        let [near, far] = Self::ENDS;
        ip(&["link", "add", near, "type", "veth", "peer", "name", far])?;
        let mut this = Self(None);
        for name in Self::ENDS {
            netdev::disable_ipv6(name)?;
            netdev::set_up(name)?;
        }
        let action = XdpAction::Redirect(netdev::index(to)?);
        this.0 = Some(XdpLink::attach(netdev::index(near)?, action)?);
        Ok(this)
    }
}

impl Drop for Veth {
    fn drop(&mut self) {
        if let Err(err) = ip(&["link", "del", Self::ENDS[0]]) {
            eprintln!("vm-tests: {err:#}");
        }
    }
}

/// Who fills the ring of a tap.
struct Host<'a> {
    tap: &'a str,
    wire: PacketSocket,
    shape: Shape,
    veth: Option<Veth>,
}

impl<'a> Host<'a> {
    fn new(tap: &'a str, xdp: bool) -> Result<Self> {
        let veth = if xdp { Some(Veth::new(tap)?) } else { None };
        let shape = Shape::plain(FRAME as usize).reversed(); // CAST: 64.
        let [_, far] = Veth::ENDS;
        let ifindex = netdev::index(if xdp { far } else { tap })?;
        let wire = PacketSocket::open(ifindex, shape.protocol())?;
        Ok(Self {
            tap,
            wire,
            shape,
            veth,
        })
    }

    /// Sends the frames from this number on until the ring is full; answers the first number that had no room.
    fn fill(&self, from: u64) -> Result<u64> {
        let dropped = || netdev::statistic(self.tap, "tx_dropped");
        let before = dropped()?;
        let mut frame = Vec::new();
        for sequence in from..from + 4 * QUEUE {
            self.shape.write(Stamp { flow: 0, sequence }, &mut frame);
            let packet = [&[0; PacketSocket::HEADER_SIZE], &frame[..]].concat();
            let sent = self.wire.send(&packet)?;
            if self.veth.is_some() {
                // The next one would be in one batch with it, of which one drop is counted.
                sleep(Duration::from_millis(1));
            }
            if dropped()? > before {
                return Ok(sequence);
            }
            ensure!(sent, "{} refuses a frame, and does not count it", self.tap);
        }
        bail!("{} is never full", self.tap)
    }
}

/// Frames that were taken in advance did not go back where there was no room any more, were not counted, and were freed as
/// what they were not.
fn full_ring(node: &Path, xdp: bool) -> Result<()> {
    /// So many chains take one packet.
    const PIECES: u16 = 4;
    let rig = Rig::detached(&options(node, 1 << features::MRG_RXBUF))?;
    let tap = rig.session.device.backend.name();
    ip(&["link", "set", tap, "txqueuelen", &QUEUE.to_string()])?;
    let host = Host::new(tap, xdp)?;
    let full = host.fill(0)?;
    ensure!(
        full == QUEUE,
        "{tap} has room for {full} frames, not {QUEUE}"
    );
    for slot in 0..RING {
        let len = PACKET.div_ceil(u32::from(PIECES));
        rig.ring(RX).desc(
            slot,
            Desc {
                len,
                ..rig.whole(RX, slot)
            },
        );
        rig.ring(RX).avail(slot, slot);
    }
    rig.ring(RX).publish(RING);
    let before = rig.counters()?;
    attach(&rig)?;
    rig.expect_used(RX, RING)?;
    rig.flush()?;
    let end = host.fill(full)?;
    ensure!(end > full, "the worker has taken nothing in advance");
    rig.vhost().set_backend(RX, None)?;

    let delivered = u64::from(RING / PIECES);
    let lost = end - full - delivered;
    ensure!(lost > 0, "there is room for what was taken");
    rig.counters()?.expect(&before, RX, "drop-stop", lost)?;
    receive_rest(&rig, &host.shape, delivered + lost..end)
}

fn attach(rig: &Rig) -> Result<()> {
    let backend = rig.session.device.backend.as_fd();
    Ok(rig.vhost().set_backend(RX, Some(backend))?)
}

/// What is in the tap's ring arrives, in order, and nothing else.
fn receive_rest(rig: &Rig, shape: &Shape, wanted: Range<u64>) -> Result<()> {
    let ring = rig.ring(RX);
    let layout = rig.session.rx.queue.layout();
    rig.session
        .device
        .reload_base(&rig.session.memory, layout, RX)?;
    let mut at = RING;
    let offer = |at: u16| {
        rig.good(RX, at, at % RING);
        ring.publish(at + 1);
    };
    (at..at + RING).for_each(offer);
    attach(rig)?;
    for sequence in wanted {
        rig.expect_used_reached(RX, at)?;
        let mut packet = [0; PACKET as usize]; // CAST: 76.
        rig.session
            .memory
            .read(rig.buffer(RX, at % RING), &mut packet);
        let (header, frame) = packet.split_at(HEADER as usize); // CAST: 12.
        let found = shape.read(header, frame);
        let next = Found::Sound(Stamp { flow: 0, sequence });
        ensure!(
            found == next,
            "packet {sequence} should be next, not {found:?}"
        );
        offer(at + RING);
        rig.kick(RX)?;
        at += 1;
    }
    rig.flush()?;
    wait_for(|| rig.expect_quiet().is_ok()).context("it does not rest")?;
    let used = ring.used_idx();
    ensure!(used == at, "{} more packets came", used.wrapping_sub(at));
    Ok(())
}
