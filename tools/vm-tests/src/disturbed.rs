// SPDX-License-Identifier: GPL-2.0

//! Interfaces that go down, change and go away under a device's traffic.
//!
//! Packets may be lost then. Afterwards the worker sleeps, every chain was returned or is where the device says that it goes
//! on, and where there is an interface again there is traffic again.

use std::os::fd::AsFd;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{ensure, Context, Result};
use vhost_driver::GuestMemory;
use vhost_load::backend::{Backend, BackendOptions, Kind};
use vhost_load::session::{Device, Session, SessionOptions};
use vhost_load::vring::{RX, TX};
use vhost_uapi::{features, netdev, PacketSocket, XdpAction, XdpLink};

use crate::found::ip;
use crate::patience::scaled;
use crate::pump::{shape, Pump, Side};
use crate::report::{Report, Test};

/// How often something is done under traffic.
const ROUNDS: usize = 4;
/// How long a disturbance lasts, and the pause behind it.
const WHILE: Duration = Duration::from_millis(15);

/// A backend, and the interfaces that it takes. They are `dist0`, its peer `dist1` and the macvtap `distm`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bed {
    Tap,
    /// A tap with a limit on its send buffer.
    LimitedTap,
    Macvtap,
    Packet,
}

/// What happens.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// One call of ip(8), and one that undoes it.
    Toggle(&'static [&'static str], &'static [&'static str]),
    /// The queue is detached and attached.
    Requeue,
    /// An XDP program comes and goes.
    Xdp,
    /// An interface is deleted, for good.
    Gone(&'static str),
}

const MTU: Event = Event::Toggle(&["dist0", "mtu", "576"], &["dist0", "mtu", "1500"]);
const DOWN: Event = Event::Toggle(&["dist0", "down"], &["dist0", "up"]);
const PEER_DOWN: Event = Event::Toggle(&["dist1", "down"], &["dist1", "up"]);
const RING: Event = Event::Toggle(
    &["dist0", "txqueuelen", "3"],
    &["dist0", "txqueuelen", "500"],
);
const OWN_DOWN: Event = Event::Toggle(&["distm", "down"], &["distm", "up"]);
const OWN_RING: Event = Event::Toggle(
    &["distm", "txqueuelen", "3"],
    &["distm", "txqueuelen", "500"],
);

/// Runs the tests whose names contain `only`.
pub fn run(node: &Path, only: &str, report: &mut Report) {
    let gone = Event::Gone("dist0");
    let tap = [
        ("its link goes down", DOWN),
        ("its MTU changes", MTU),
        ("its ring changes", RING),
        ("its queue is detached", Event::Requeue),
        ("an XDP program comes and goes", Event::Xdp),
        ("it is deleted", gone),
    ];
    let macvtap = [
        ("its link goes down", OWN_DOWN),
        ("its ring changes", OWN_RING),
        ("the link below goes down", DOWN),
        ("the peer's link goes down", PEER_DOWN),
        ("the MTU below changes", MTU),
        ("it is deleted", Event::Gone("distm")),
        ("the interface below is deleted", gone),
        ("the peer is deleted", Event::Gone("dist1")),
    ];
    let packet = [
        ("its link goes down", DOWN),
        ("the peer's link goes down", PEER_DOWN),
        ("its MTU changes", MTU),
        ("its interface is deleted", gone),
        ("the peer is deleted", Event::Gone("dist1")),
    ];
    let mut tests = Vec::new();
    for (bed, name, events) in [
        (Bed::Tap, "tap", &tap[..]),
        (Bed::LimitedTap, "tap, finite sndbuf", &tap),
        (Bed::Macvtap, "macvtap", &macvtap),
        (Bed::Packet, "packet socket", &packet),
    ] {
        for (what, event) in events {
            let test = Test::new(format!("{name}: {what}"), move || {
                disturbed(node, bed, *event)
            });
            tests.push(test);
        }
    }
    tests.retain(|test| test.name.contains(only));
    report.run_on(1, &tests);
}

/// Interfaces that go away with it.
struct Links;

impl Links {
    fn new(bed: Bed) -> Result<Self> {
        let links = Self;
        if matches!(bed, Bed::Tap | Bed::LimitedTap) {
            return Ok(links);
        }
        ip(&[
            "link", "add", "dist0", "type", "veth", "peer", "name", "dist1",
        ])?;
        for name in ["dist0", "dist1"] {
            netdev::disable_ipv6(name)?;
            netdev::set_up(name)?;
        }
        if bed == Bed::Macvtap {
            let below = ["link", "add", "link", "dist0", "name", "distm"];
            ip(&[&below[..], &["address", GUEST_ADDRESS, "type", "macvtap"]].concat())?;
        }
        Ok(links)
    }
}

/// The address that packets to the guest have ([`vhost_load::frame::GUEST`]).
const GUEST_ADDRESS: &str = "02:00:00:00:56:01";

impl Drop for Links {
    fn drop(&mut self) {
        for name in ["dist0", "distm"] {
            // Some are gone already.
            let _ = ip(&["link", "del", name]);
        }
    }
}

fn backend_options(bed: Bed) -> BackendOptions {
    let (kind, ifname) = match bed {
        Bed::Tap | Bed::LimitedTap => (Kind::Tap, "dist0"),
        Bed::Macvtap => (Kind::Macvtap, "distm"),
        Bed::Packet => (Kind::Packet, "dist0"),
    };
    BackendOptions {
        kind,
        ifname: Some(ifname.to_owned()),
        multi_queue: matches!(bed, Bed::Tap | Bed::LimitedTap),
        sndbuf: (bed == Bed::LimitedTap).then_some(100_000),
        ..BackendOptions::default()
    }
}

fn wire(bed: Bed) -> Result<PacketSocket> {
    let name = match bed {
        Bed::Tap | Bed::LimitedTap => "dist0",
        Bed::Macvtap | Bed::Packet => "dist1",
    };
    Ok(PacketSocket::open(
        netdev::index(name)?,
        shape().protocol(),
    )?)
}

fn disturbed(node: &Path, bed: Bed, event: Event) -> Result<()> {
    const NUM: u32 = 64;
    let links = Links::new(bed)?;
    let session = Session::open(&SessionOptions {
        node: node.to_owned(),
        features: 1 << features::VERSION_1 | 1 << features::EVENT_IDX,
        ring_size: NUM,
        buffer_bytes: [u64::from(NUM) << 11; 2],
        backend: backend_options(bed),
        ..SessionOptions::default()
    })?;
    let device = &session.device;
    device.attach()?;
    let [first, second] = session.buffers;
    let (rx, tx) = (Side::new(session.rx, first), Side::new(session.tx, second));
    let pump = Pump::start(rx, tx, wire(bed)?);
    pump.expect_traffic()?;

    happen(&device.backend, event, ROUNDS, || sleep(WHILE))?;
    let gone = matches!(event, Event::Gone(_));
    if !gone {
        pump.expect_traffic().context("when it was over")?;
    }
    let (rx, tx) = pump.stop()?;
    let vrings = [&rx.vring, &tx.vring];
    let kick = || vrings.iter().try_for_each(|vring| vring.kick.signal());
    let worker = session.worker.as_ref().context("no worker was found")?;
    let quiet = || -> Result<()> {
        const LOOK: Duration = Duration::from_millis(200);
        const ALLOWED: Duration = Duration::from_millis(10);
        kick()?;
        sleep(WHILE);
        let cpu = || worker.cpu_time().context("the worker is gone");
        let before = cpu()?;
        sleep(LOOK);
        let spent = cpu()?.saturating_sub(before);
        ensure!(spent < scaled(ALLOWED), "the worker spins: {spent:?}");
        Ok(())
    };
    let mut result = quiet();
    if !gone {
        happen(&device.backend, event, 1, || {
            if result.is_ok() {
                result = quiet().context("meanwhile");
            }
        })?;
    }
    result?;

    device.detach()?;
    drop(links);
    go_on(bed, device, &session.memory, rx, tx)
}

/// With another backend a device goes on where it was.
fn go_on(bed: Bed, device: &Device, memory: &GuestMemory, rx: Side, tx: Side) -> Result<()> {
    for vring in [&rx.vring, &tx.vring] {
        device.reload_base(memory, vring.queue.layout(), vring.index)?;
    }
    let _links = Links::new(bed)?;
    let other = Backend::open(&backend_options(bed), 1 << features::VERSION_1)?;
    for index in [RX, TX] {
        device.vhost.set_backend(index, Some(other.as_fd()))?;
    }
    let pump = Pump::start(rx, tx, wire(bed)?);
    pump.expect_traffic().context("with another backend")?;
    pump.stop()?;
    Ok(())
}

/// Has something happen, `rounds` times; calls `meanwhile` each time before it is undone.
fn happen(
    backend: &Backend,
    event: Event,
    rounds: usize,
    mut meanwhile: impl FnMut(),
) -> Result<()> {
    let set = |args: &[&str]| ip(&[&["link", "set"], args].concat());
    for _ in 0..rounds {
        match event {
            Event::Toggle(once, back) => {
                set(once)?;
                meanwhile();
                set(back)?;
            }
            Event::Requeue => {
                backend.set_attached(false)?;
                meanwhile();
                backend.set_attached(true)?;
            }
            Event::Xdp => {
                let index = netdev::index(backend.name())?;
                let link = XdpLink::attach(index, XdpAction::Pass)?;
                meanwhile();
                drop(link);
            }
            Event::Gone(name) => {
                ip(&["link", "del", name])?;
                meanwhile();
                return Ok(());
            }
        }
        sleep(WHILE);
    }
    Ok(())
}
