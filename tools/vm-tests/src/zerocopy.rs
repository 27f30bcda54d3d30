// SPDX-License-Identifier: GPL-2.0

//! Zero-copy transmit: packets that stay in the guest's memory while something holds them. The script makes a macvtap,
//! [`TAP`], above [`HOLD`], whose queue discipline here holds what it is told to.

mod owner;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use vhost_load::backend::{Backend, BackendOptions, Kind};
use vhost_load::frame::{Shape, Stamp};
use vhost_load::session::SessionOptions;
use vhost_load::vring::TX;
use vhost_uapi::{features, netdev, PacketOptions, PacketSocket};

use crate::dirty_log::{log_used, pages, used_ring, Map};
use crate::found::{ip, run_command};
use crate::patience::{patience, wait_for};
use crate::raw_ring::Desc;
use crate::report::{Report, Test};
use crate::rig::{Rig, HEADER};

pub use owner::{main, Stop};

/// The macvtap.
const TAP: &str = "mvh0";
/// The interface below it.
const HOLD: &str = "hold0";
/// The other end of that.
const WIRE: &str = "hold1";
/// Bytes of a frame that is worth it.
const LONG: usize = 1514;
/// Entries of the ring.
const RING: u32 = 256;
/// Packets that may be in flight: a quarter of the ring, and one.
const LIMIT: u16 = 65;
/// Where a change of a frame is not seen by who copies its beginning.
const DEEP: usize = 1000;

/// Runs the tests whose names contain `only`.
pub fn run(node: &Path, only: &str, report: &mut Report) {
    let mut tests = vec![
        Test::new("no more than 65 are in flight, in order", || held(node)),
        Test::new("they are read where they are", || in_place(node)),
        Test::new("SET_BACKEND(-1) waits for them", || {
            waits(node, Stop::Detach)
        }),
        Test::new("another backend waits for them", || {
            waits(node, Stop::Replace)
        }),
        Test::new("RESET_OWNER waits for them", || {
            waits(node, Stop::ResetOwner)
        }),
        Test::new("close waits for them", || waits(node, Stop::Close)),
        Test::new("they are logged when they are returned", || logged(node)),
        Test::new("an interface that is down refuses them", || refused(node)),
        Test::new("a receiver that does not read holds them", || unread(node)),
        Test::new("one that is mirrored is returned once", || mirrored(node)),
    ];
    if owner::is_ours(node) {
        // C waits for ever, or returns copies too early.
        for stop in [Stop::Close, Stop::Detach] {
            let name = format!("kill -9 in {stop:?} does not wait, and the module does");
            tests.push(Test::new(name, move || owner::killed(node, stop)));
        }
        tests.push(Test::new("a macvtap goes away", || deleted(node)));
        tests.push(Test::new("in order, copies wait for them", || {
            in_order(node)
        }));
    }
    tests.retain(|test| test.name.contains(only));
    report.run_on(1, &tests);
}

/// A device on the macvtap `name`.
fn options(node: &Path, name: &str) -> SessionOptions {
    SessionOptions {
        node: node.to_owned(),
        ring_size: RING,
        buffer_bytes: [64 << 10, 2 << 20],
        backend: BackendOptions {
            kind: Kind::Macvtap,
            ifname: Some(name.to_owned()),
            ..BackendOptions::default()
        },
        ..SessionOptions::default()
    }
}

/// What the interface below the macvtap does with packets.
struct Hold;

impl Hold {
    /// It holds them: its bucket has 1,600 bytes, which a frame here takes.
    fn new() -> Result<Self> {
        let held = [
            "root", "tbf", "rate", "100bit", "burst", "1600", "limit", "4m",
        ];
        qdisc("replace", &held)?;
        send(LONG)?;
        Ok(Self)
    }

    /// It sends them.
    fn release(&self) -> Result<()> {
        let open = [
            "root", "tbf", "rate", "10gbit", "burst", "4m", "limit", "4m",
        ];
        qdisc("change", &open)?;
        send(64)
    }
}

impl Drop for Hold {
    /// It drops them.
    fn drop(&mut self) {
        let _ = qdisc("del", &["root"]);
    }
}

/// Sends a frame of zeroes through the queue discipline.
fn send(len: usize) -> Result<()> {
    let options = PacketOptions {
        vnet_hdr_size: None,
        bypass: false,
    };
    let protocol = Shape::plain(LONG).protocol();
    let socket = PacketSocket::open_with(netdev::index(HOLD)?, protocol, options)?;
    ensure!(socket.send(&vec![0; len])?, "{HOLD} takes no frame");
    Ok(())
}

fn qdisc(act: &str, args: &[&str]) -> Result<()> {
    run_command("tc", &[&["qdisc", act, "dev", HOLD], args].concat()).map(|_| ())
}

/// Offers `count` packets of `len` bytes from avail index `at` on, and kicks.
fn offer(rig: &Rig, at: u16, count: u16, len: usize) -> Result<()> {
    let shape = Shape::plain(len);
    for index in at..at + count {
        let slot = index % rig.ring(TX).num();
        let addr = rig.buffer(TX, slot);
        let mut packet = vec![0; HEADER as usize]; // CAST: 12.
        let mut frame = Vec::new();
        let stamp = Stamp {
            flow: 0,
            sequence: index.into(),
        };
        shape.write(stamp, &mut frame);
        packet.extend(frame);
        rig.session.memory.write(addr, &packet);
        let len = packet.len() as u32; // CAST: A packet.
        rig.ring(TX).desc(
            slot,
            Desc {
                addr,
                len,
                flags: 0,
                next: 0,
            },
        );
        rig.ring(TX).avail(index, slot);
    }
    rig.ring(TX).publish(at + count);
    rig.kick(TX)
}

/// Offers packets of which as many as may be are held.
fn fill(rig: &Rig) -> Result<()> {
    offer(rig, 0, 200, LONG)?;
    rig.expect_used(TX, 200 - LIMIT)
}

fn held(node: &Path) -> Result<()> {
    let rig = Rig::new(&options(node, TAP))?;
    let hold = Hold::new()?;
    let before = rig.counters()?;
    fill(&rig)?;
    rig.counters()?
        .expect(&before, TX, "zerocopy-in-flight", LIMIT.into())?;
    for at in 0..200 - LIMIT {
        rig.expect_entry(TX, at, (at + LIMIT, 0))?;
    }
    // Short ones pass.
    offer(&rig, 200, 10, 240)?;
    rig.expect_used(TX, 210 - LIMIT)?;
    rig.expect_quiet()?;

    drop(hold);
    rig.expect_used(TX, 210)?;
    for at in 0..LIMIT {
        rig.expect_entry(TX, 210 - LIMIT + at, (at, 0))?;
    }
    let after = rig.counters()?;
    after.expect(&before, TX, "zerocopy-in-flight", 0)?;
    after.expect(&before, TX, "zerocopy-sent", LIMIT.into())?;
    after.expect(&before, TX, "zerocopy-copied", (200 - LIMIT).into())?;
    after.expect(&before, TX, "zerocopy-errors", 0)?;
    after.expect(&before, TX, "packets", 210)
}

fn in_place(node: &Path) -> Result<()> {
    let wire = PacketSocket::open(netdev::index(WIRE)?, Shape::plain(LONG).protocol())?;
    wire.set_rcvbuf(4 << 20)?;
    let rig = Rig::new(&options(node, TAP))?;
    let hold = Hold::new()?;
    let before = rig.counters()?;
    fill(&rig)?;
    let at = u64::from(HEADER) + DEEP as u64; // CAST: A constant.
    for slot in 0..200 {
        rig.session
            .memory
            .write(rig.buffer(TX, slot) + at, &[0xee; 8]);
    }
    hold.release()?;
    let mut changed = 0;
    for sequence in 0..200 {
        let frame = next_long(&wire)?;
        let mut wanted = Vec::new();
        Shape::plain(LONG).write(Stamp { flow: 0, sequence }, &mut wanted);
        if frame[DEEP..DEEP + 8] == [0xee; 8] {
            changed += 1;
            wanted[DEEP..DEEP + 8].fill(0xee);
        }
        ensure!(frame == wanted, "packet {sequence} is not as it was sent");
    }
    ensure!(
        changed == LIMIT,
        "{changed} packets were read late, not {LIMIT}"
    );
    rig.expect_used(TX, 200)?;
    // A veth copies what goes through it, so that the next ones are copied at once.
    offer(&rig, 200, 100, LONG)?;
    rig.expect_used(TX, 300)?;
    let after = rig.counters()?;
    after.expect(&before, TX, "zerocopy-errors", LIMIT.into())?;
    after.expect(&before, TX, "zerocopy-copied", (300 - LIMIT).into())
}

/// The next frame of the guest.
fn next_long(wire: &PacketSocket) -> Result<Vec<u8>> {
    let end = Instant::now() + patience();
    let mut packet = vec![0; 4096];
    loop {
        match wire.receive(&mut packet)? {
            // The others have another length, or no content.
            Some(len) if len == PacketSocket::HEADER_SIZE + LONG => {
                let frame = &packet[PacketSocket::HEADER_SIZE..len];
                if frame.iter().any(|byte| *byte != 0) {
                    return Ok(frame.to_vec());
                }
            }
            Some(_) => {}
            None => {
                let left = end.saturating_duration_since(Instant::now());
                ensure!(!left.is_zero(), "a packet did not arrive");
                wire.wait(left)?;
            }
        }
    }
}

fn waits(node: &Path, stop: Stop) -> Result<()> {
    let rig = Rig::new(&options(node, TAP))?;
    let hold = Hold::new()?;
    fill(&rig)?;
    let other = Backend::open(&options(node, TAP).backend, options(node, TAP).features)?;
    let memory = rig.session.memory.clone();
    let (entries, ring) = (rig.ring(TX).clone(), rig.ring(TX).clone());
    let over = AtomicBool::new(false);
    let base = std::thread::scope(|scope| {
        let stopping = scope.spawn(|| {
            let base = owner::stop(rig, stop, &other);
            over.store(true, Ordering::Release);
            base
        });
        std::thread::sleep(Duration::from_millis(200));
        let early = over.load(Ordering::Acquire);
        let returned = ring.used_idx();
        drop(hold);
        let base = stopping.join();
        ensure!(!early, "it did not wait");
        ensure!(
            returned == 200 - LIMIT,
            "{returned} chains were returned before"
        );
        base.map_err(|_| anyhow::anyhow!("the thread panicked"))?
    })?;
    if let Some(base) = base {
        ensure!(base == 200, "the ring's base is {base}, not 200");
        ensure!(
            entries.used_idx() == 200,
            "{} of 200 chains were returned",
            entries.used_idx()
        );
    }
    drop(memory);
    Ok(())
}

/// A chain that is returned late is logged then; all are when SET_BACKEND(-1) returns.
fn logged(node: &Path) -> Result<()> {
    let rig = Rig::new(&options(node, TAP))?;
    let map = Map::new()?;
    rig.vhost().set_log_base(map.base()?)?;
    log_used(&rig, TX, true)?;
    let ring = used_ring(&rig, TX);
    let entry = |at: u16| ring.start + 4 + u64::from(at) % u64::from(RING) * 8;
    let mut at = 0;
    for detach in [false, true] {
        let hold = Hold::new()?;
        offer(&rig, at, 200, LONG)?;
        rig.expect_used(TX, at + 200 - LIMIT)?;
        // No call that waits for the worker: C's waits for the packets, too.
        rig.expect_quiet()?;
        map.take();
        std::thread::scope(|scope| -> Result<()> {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                drop(hold);
            });
            if detach {
                rig.vhost().set_backend(TX, None)?;
                ensure!(rig.ring(TX).used_idx() == at + 200, "it did not wait");
                return Ok(());
            }
            rig.expect_used(TX, at + 200)?;
            rig.flush()
        })?;
        let logged = map.take();
        let index = ring.start + 2;
        let changed = (at + 200 - LIMIT..at + 200).map(entry).chain([index]);
        let wanted: BTreeSet<u64> = changed.flat_map(|at| pages(&(at..at + 2))).collect();
        ensure!(
            logged.is_superset(&wanted),
            "pages {logged:x?} are logged, not {wanted:x?}"
        );
        let may: BTreeSet<u64> = pages(&ring).collect();
        ensure!(logged.is_subset(&may), "{logged:x?} are logged");
        at += 200;
    }
    Ok(())
}

fn refused(node: &Path) -> Result<()> {
    let rig = Rig::new(&SessionOptions {
        backend: BackendOptions::default(),
        ..options(node, "")
    })?;
    let tap = rig.session.device.backend.name().to_owned();
    netdev::set_down(&tap)?;
    let before = rig.counters()?;
    offer(&rig, 0, 20, LONG)?;
    rig.expect_used(TX, 20)?;
    for at in 0..20 {
        rig.expect_entry(TX, at, (at, 0))?;
    }
    rig.counters()?.expect(&before, TX, "drop-refused", 20)?;
    netdev::set_up(&tap)?;
    offer(&rig, 20, 20, LONG)?;
    wait_for(|| drain(&rig.wire).is_ok() && rig.ring(TX).used_idx() == 40)
        .context("it does not take them when it is up again")
}

/// A packet socket has the packets themselves in its queue.
fn unread(node: &Path) -> Result<()> {
    let rig = Rig::new(&SessionOptions {
        backend: BackendOptions::default(),
        ..options(node, "")
    })?;
    rig.wire.set_rcvbuf(4 << 20)?;
    offer(&rig, 0, 200, LONG)?;
    rig.expect_used(TX, 200 - LIMIT)?;
    for sequence in 0..200 {
        let mut wanted = Vec::new();
        Shape::plain(LONG).write(Stamp { flow: 0, sequence }, &mut wanted);
        ensure!(
            next_long(&rig.wire)? == wanted,
            "packet {sequence} is not as it was sent"
        );
    }
    rig.expect_used(TX, 200)
}

/// A copy of a packet counted as another one, and took the device away from the first (CVE-2026-74310).
fn mirrored(node: &Path) -> Result<()> {
    let rig = Rig::new(&options(node, TAP))?;
    let hold = Hold::new()?;
    qdisc("add", &["clsact"])?;
    let mirror = ["filter", "add", "dev", HOLD, "egress", "matchall", "action"];
    let to = ["mirred", "egress", "mirror", "dev", WIRE];
    let result = run_command("tc", &[&mirror[..], &to].concat()).and_then(|_| {
        let before = rig.counters()?;
        offer(&rig, 0, 200, LONG)?;
        // Both have a copy by now.
        rig.expect_used(TX, 200)?;
        for at in 0..200 {
            rig.expect_entry(TX, at, (at, 0))?;
        }
        drop(hold);
        rig.expect_quiet()?;
        ensure!(rig.ring(TX).used_idx() == 200, "some came back again");
        let after = rig.counters()?;
        after.expect(&before, TX, "packets", 200)?;
        after.expect_more(&before, TX, "zerocopy-errors")?;
        after.expect(&before, TX, "zerocopy-in-flight", 0)
    });
    qdisc("del", &["clsact"])?;
    result?;
    rig.vhost().set_backend(TX, None)?;
    Ok(())
}

fn drain(wire: &PacketSocket) -> Result<()> {
    let mut packet = [0; 16];
    while wire.receive(&mut packet)?.is_some() {}
    Ok(())
}

fn in_order(node: &Path) -> Result<()> {
    let rig = Rig::new(&SessionOptions {
        features: 1 << features::VERSION_1 | 1 << features::IN_ORDER,
        ..options(node, TAP)
    })?;
    let hold = Hold::new()?;
    let before = rig.counters()?;
    offer(&rig, 0, 200, LONG)?;
    wait_for(|| {
        matches!(
            rig.counters()
                .map(|now| now.expect(&before, TX, "packets", 200)),
            Ok(Ok(()))
        )
    })
    .context("not all were sent")?;
    rig.expect_used(TX, 0)?;
    drop(hold);
    rig.expect_used(TX, 200)?;
    for at in 0..200 {
        rig.expect_entry(TX, at, (at, 0))?;
    }
    Ok(())
}

/// A macvtap that is deleted takes packets and drops them. Nothing may wait for those.
fn deleted(node: &Path) -> Result<()> {
    for round in 0..10 {
        let name = "mvgone0";
        let link = ["link", "add", "link", HOLD, "name", name, "type", "macvtap"];
        ip(&[&link[..], &["mode", "bridge"]].concat())?;
        let rig = Rig::new(&options(node, name))?;
        let before = rig.counters()?;
        let deleted = AtomicBool::new(false);
        let mut at = 0;
        std::thread::scope(|scope| -> Result<()> {
            let deleting = scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(round));
                let result = ip(&["link", "del", name]);
                deleted.store(true, Ordering::Release);
                result
            });
            let mut more = 3;
            while more > 0 {
                if deleted.load(Ordering::Acquire) {
                    more -= 1;
                } else if at >= 50_000 {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
                offer(&rig, at, 100, LONG)?;
                at += 100;
                rig.expect_used(TX, at)?;
            }
            match deleting.join() {
                Ok(result) => result,
                Err(_) => bail!("the thread panicked"),
            }
        })?;
        let after = rig.counters()?;
        after.expect(&before, TX, "zerocopy-in-flight", 0)?;
        after.expect_more(&before, TX, "zerocopy-sent")?;
        rig.vhost().set_backend(TX, None)?;
        ensure!(
            rig.vhost().vring_base(TX)? == u32::from(at),
            "chains are lost"
        );
    }
    Ok(())
}
