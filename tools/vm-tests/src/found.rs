// SPDX-License-Identifier: GPL-2.0

//! Faults that were found by looking for them, so that they stay away. Each test says what its fault was.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::process::{Command, Output};
use std::sync::mpsc;
use std::thread::{scope, sleep};
use std::time::{Duration, Instant};

use anyhow::{bail, ensure, Context, Result};
use nix::errno::Errno;
use vhost_load::frame::MAX_PLAIN;
use vhost_load::session::SessionOptions;
use vhost_load::vring::{RX, TX};
use vhost_uapi::{features, netdev, numbers, PacketSocket, StuckPage, VhostNet};

use crate::arrays;
use crate::iotlb;
use crate::patience::{patience, scaled, wait_for};
use crate::raw_ring::{Desc, NEXT, WRITE};
use crate::report::{Report, Test};
use crate::rig::{name, Rig, BUFFER, FRAME};
use crate::stuck;

/// A short window, in microseconds, and one that no test waits for.
const WINDOW: u32 = 20_000;
const LONG_WINDOW: u32 = 8_000_000;
/// For what is to come at once, on a machine however slow.
const GENEROUS: Duration = Duration::from_secs(5);

/// Calls that read an argument, each on the device's way to something else.
const CALLS: &[u64] = &[
    numbers::SET_FEATURES,
    numbers::SET_MEM_TABLE,
    numbers::SET_VRING_NUM,
    numbers::SET_VRING_BASE,
    numbers::GET_VRING_BASE,
    numbers::SET_VRING_ADDR,
    numbers::SET_VRING_KICK,
    numbers::SET_VRING_BUSYLOOP_TIMEOUT,
    numbers::NET_SET_BACKEND,
];

/// Calls that wait for no owner, each with what it answers as text.
const ANYBODY: &[fn(&VhostNet) -> vhost_uapi::Result<String>] = &[
    |vhost| {
        let set = vhost.set_vring_busyloop_timeout(TX, 1);
        set.map(|()| String::new())
    },
    |vhost| Ok(format!("kind {}\n", vhost.fork_from_owner()?)),
    |vhost| {
        let set = vhost.set_fork_from_owner(0);
        Ok(format!("set {:?}\n", set.map_err(|err| err.errno)))
    },
];

type OfIotlb = (&'static str, fn(&Path) -> Result<()>);
const IOTLB: &[OfIotlb] = &[
    (
        "IOTLB: the other vring stops: what waited asks again",
        iotlb::forgotten,
    ),
    (
        "IOTLB: a ring over the end of the address space is broken, not asked for",
        iotlb::over_the_end,
    ),
    (
        "IOTLB: entries for memory that is not there cost their packet, or break the ring",
        iotlb::nowhere,
    ),
    (
        "IOTLB: messages do not wait for a window of 3 s",
        iotlb::windows,
    ),
];

/// Runs the tests whose names contain `only`.
pub fn run(node: &Path, only: &str, report: &mut Report) {
    let mut tests = Vec::new();
    for (what, order) in [("rx first", [RX, TX]), ("tx first", [TX, RX])] {
        let name = format!("windows of both rings, kicked together, {what}: they rest");
        tests.push(Test::new(name, move || rest(node, order)));
    }
    for index in [TX, RX] {
        for window in [0, WINDOW] {
            let name = format!(
                "{}: a window of 8 s, open, set to {window} us: it ends",
                name(index)
            );
            tests.push(Test::new(name, move || shortened(node, index, window)));
        }
    }
    for request in CALLS {
        let call = numbers::name(*request);
        let name = format!("{call} stuck at its argument: fdinfo, window and kind answer");
        tests.push(Test::new(name, move || stuck(node, *request)));
    }
    for set in [false, true] {
        let call = if set { "set" } else { "get" };
        let name = format!("features {call} as an array without end: a signal ends it");
        tests.push(Test::new(name, move || arrays::interrupted(node, set)));
    }
    tests.push(Test::new(
        "VHOST_SET_FORK_FROM_OWNER stuck at its argument: others own, and it is refused",
        move || late(node),
    ));
    tests.push(Test::new("rx: chains of 1,023 empty buffers", move || {
        empty_buffers(node)
    }));
    tests.push(Test::new("tx: a writable socket refuses", move || {
        refused(node)
    }));
    tests.push(Test::new(
        "rx: the interface of a packet socket goes down and comes up",
        move || down_and_up(node),
    ));
    tests.push(Test::new(
        "an owner is killed while its worker waits for its memory",
        move || stuck::killed(node),
    ));
    for (name, run) in IOTLB {
        tests.push(Test::new(*name, move || run(node)));
    }
    tests.retain(|test| test.name.contains(only));
    report.run_on(1, &tests);
}

fn options(node: &Path) -> SessionOptions {
    SessionOptions {
        node: node.to_owned(),
        features: 1 << features::VERSION_1,
        ring_size: 16,
        buffer_bytes: [16 * BUFFER; 2],
        ..SessionOptions::default()
    }
}

fn cpu_time(rig: &Rig) -> Result<Duration> {
    let worker = rig.session.worker.as_ref();
    let worker = worker.context("no worker was found")?;
    worker.cpu_time().context("the worker is gone")
}

/// Two rings that poll took each other's turn for work, and kept each other from sleeping for ever.
fn rest(node: &Path, order: [u32; 2]) -> Result<()> {
    let rig = Rig::new(&SessionOptions {
        busyloop: Some(WINDOW),
        ..options(node)
    })?;
    for _ in 0..5 {
        for index in order {
            rig.kick(index)?;
        }
        sleep(Duration::from_millis(1));
    }
    // What is left of one window, then one of each ring.
    sleep(Duration::from_micros(u64::from(WINDOW)) * 5);
    let before = rig.counters()?;
    rig.expect_quiet()?;
    let after = rig.counters()?;
    for index in [RX, TX] {
        after.expect(&before, index, "runs", 0)?;
    }
    Ok(())
}

/// A window that was open went on for as long as it was once set to.
fn shortened(node: &Path, index: u32, window: u32) -> Result<()> {
    let rig = Rig::new(&SessionOptions {
        busyloop: Some(LONG_WINDOW),
        ..options(node)
    })?;
    let before = cpu_time(&rig)?;
    rig.kick(index)?;
    let spins = || cpu_time(&rig).is_ok_and(|now| now - before > Duration::from_millis(20));
    wait_for(spins).context("there is no window to end")?;
    for index in [RX, TX] {
        rig.vhost().set_vring_busyloop_timeout(index, window)?;
    }
    sleep(Duration::from_micros(u64::from(WINDOW)) * 5);
    rig.expect_quiet()?;
    if index == TX {
        ensure!(
            rig.ring(TX).wants_kick(0, 1),
            "the window is over, and no kick is wanted"
        );
    }
    Ok(())
}

/// Who read fdinfo, or called what others than the owner may, waited for a lock that an owner had while its argument was not
/// there: unkillably.
fn stuck(node: &Path, request: u64) -> Result<()> {
    let vhost = VhostNet::open(node, true)?;
    vhost.set_owner()?;
    let fd = vhost.as_fd().as_raw_fd();
    let fdinfo = format!("/proc/{}/fdinfo/{fd}", std::process::id());
    let page = StuckPage::new()?;
    let (vhost, page) = (&vhost, &page);
    scope(|scope| {
        scope.spawn(move || page.ioctl(vhost, request));
        let answers = || {
            page.wait(patience())
                .context("the call does not look at its argument")?;
            let (done, answers) = mpsc::channel();
            for call in ANYBODY {
                let done = done.clone();
                scope.spawn(move || done.send(call(vhost).map_err(Into::into)));
            }
            scope.spawn(move || done.send(run_command("cat", &[&fdinfo])));
            let mut text = String::new();
            for _ in 0..=ANYBODY.len() {
                let answer = answers.recv_timeout(scaled(GENEROUS));
                text += &answer.context("a call or fdinfo waits for the call that is stuck")??;
            }
            for wanted in ["kind 1\n", "set Err(EBUSY)\n"] {
                ensure!(text.contains(wanted), "{text:?} instead of {wanted:?}");
            }
            let owner = format!("vhost-owner:\t{}\n", std::process::id());
            ensure!(text.contains(&owner), "fdinfo does not name the owner");
            Ok(())
        };
        let result = answers();
        // The scope ends when all of them do.
        page.release()?;
        result
    })
}

/// A call that needs no owner kept others from becoming it.
fn late(node: &Path) -> Result<()> {
    let vhost = VhostNet::open(node, true)?;
    let page = StuckPage::new()?;
    let (vhost, page) = (&vhost, &page);
    scope(|scope| {
        let stuck = scope.spawn(|| page.ioctl(vhost, numbers::SET_FORK_FROM_OWNER));
        let touched = page.wait(patience());
        let (done, owned) = mpsc::channel();
        scope.spawn(move || done.send(vhost.set_owner()));
        let owned = owned.recv_timeout(scaled(GENEROUS));
        page.release()?;
        touched.context("the call does not look at its argument")?;
        owned.context("SET_OWNER waits for the call that is stuck")??;
        let refused = stuck.join();
        ensure!(
            matches!(refused, Ok(Err(Errno::EBUSY))),
            "the call answers {refused:?} with an owner"
        );
        ensure!(vhost.fork_from_owner()? == 1, "the kind has changed");
        Ok(())
    })
}

/// A packet looked at 1,024 chains of 1,024 descriptors before it was dropped, and a run took 256 of those.
fn empty_buffers(node: &Path) -> Result<()> {
    const PACKETS: u64 = 20;
    /// The fault took 2.7 s of virtual time.
    const ALLOWED: Duration = Duration::from_millis(400);
    const NUM: u16 = 2048;
    const CHAIN: u16 = 1024;
    let rig = Rig::new(&SessionOptions {
        features: 1 << features::VERSION_1 | 1 << features::MRG_RXBUF,
        ring_size: u32::from(NUM),
        ..options(node)
    })?;
    let ring = rig.ring(RX);
    for slot in 0..CHAIN {
        let last = slot == CHAIN - 1;
        ring.desc(
            slot,
            Desc {
                addr: rig.buffer(RX, 0),
                len: u32::from(last),
                flags: if last { WRITE } else { WRITE | NEXT },
                next: slot + 1,
            },
        );
    }
    for at in 0..NUM {
        ring.avail(at, 0);
    }
    ring.publish(NUM);
    rig.flush()?;
    let (before, cpu) = (rig.counters()?, cpu_time(&rig)?);

    let packet = packet(MAX_PLAIN);
    for _ in 0..PACKETS {
        ensure!(rig.wire.send(&packet)?, "the wire is full");
    }
    let start = Instant::now();
    let base = rig.vhost().vring_base(RX)?;
    let took = start.elapsed();
    ensure!(
        took < scaled(GENEROUS),
        "GET_VRING_BASE waited for {took:?}"
    );
    ensure!(base == 0, "base is {base}: a packet went into one byte");
    let dropped = || {
        rig.counters()?
            .expect(&before, RX, "drop-oversize", PACKETS)
    };
    wait_for(|| dropped().is_ok()).or_else(|_| dropped())?;
    rig.expect_quiet()?;
    let spent = cpu_time(&rig)? - cpu;
    ensure!(
        spent < scaled(ALLOWED),
        "the worker spent {spent:?} on {PACKETS} packets"
    );
    Ok(())
}

/// A socket that can be written and has no room was tried again for ever.
fn refused(node: &Path) -> Result<()> {
    let link = Link::new(&["name", "found0", "type", "dummy"])?;
    ip(&["link", "set", "found0", "carrier", "off"])?;
    link.up("found0")?;
    let socket = link.socket("found0")?;
    let rig = detached(node)?;
    rig.vhost().set_backend(TX, Some(socket.as_fd()))?;
    rig.flush()?;
    let before = rig.counters()?;
    rig.good(TX, 0, 0);
    rig.ring(TX).publish(1);
    rig.kick(TX)?;
    rig.expect_used(TX, 1)?;
    rig.expect_quiet()?;
    rig.counters()?.expect(&before, TX, "drop-refused", 1)?;
    ensure!(rig.ring(TX).wants_kick(1, 2), "no kick is wanted");
    rig.vhost().set_backend(TX, None)?;
    Ok(())
}

/// A socket in error was never listened to again, and no kick was wanted either.
fn down_and_up(node: &Path) -> Result<()> {
    let link = Link::new(&["name", "found0", "type", "veth", "peer", "name", "found1"])?;
    link.up("found0")?;
    link.up("found1")?;
    let (near, far) = (link.socket("found0")?, link.socket("found1")?);
    let rig = detached(node)?;
    let ring = rig.ring(RX);
    for at in 0..ring.num() {
        rig.good(RX, at, at);
    }
    ring.publish(ring.num());
    rig.vhost().set_backend(RX, Some(near.as_fd()))?;
    rig.flush()?;
    let packet = packet(FRAME as usize); // CAST: 64.
    let send = || -> Result<()> {
        // Carrier comes a little later than the interface.
        wait_for(|| far.send(&packet).is_ok_and(|sent| sent)).context("the wire is down")
    };
    send()?;
    rig.expect_used(RX, 1)?;

    ip(&["link", "set", "found0", "down"])?;
    rig.kick(RX)?;
    rig.flush()?;
    rig.expect_quiet()?;
    ip(&["link", "set", "found0", "up"])?;
    for used in 2..7 {
        send()?;
        rig.expect_used(RX, used)?;
    }
    rig.expect_quiet()?;
    rig.vhost().set_backend(RX, None)?;
    Ok(())
}

/// A frame to everybody, of no protocol, as a packet socket takes it.
fn packet(size: usize) -> Vec<u8> {
    let mut packet = vec![0; PacketSocket::HEADER_SIZE];
    packet.resize(PacketSocket::HEADER_SIZE + size, 0xff);
    packet
}

/// A device without a backend whose packets have the header of a packet socket: that of virtio before 1.0.
fn detached(node: &Path) -> Result<Rig> {
    Rig::detached(&SessionOptions {
        features: 0,
        ..options(node)
    })
}

/// Interfaces that go with it: `found0`, and its peer if it has one.
struct Link;

impl Link {
    fn new(what: &[&str]) -> Result<Self> {
        ip(&[&["link", "add"], what].concat())?;
        Ok(Self)
    }

    fn up(&self, name: &str) -> Result<()> {
        netdev::disable_ipv6(name)?;
        Ok(netdev::set_up(name)?)
    }

    fn socket(&self, name: &str) -> Result<PacketSocket> {
        const ALL: u16 = 3; // ETH_P_ALL
        Ok(PacketSocket::open(netdev::index(name)?, ALL)?)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Err(err) = ip(&["link", "del", "found0"]) {
            eprintln!("vm-tests: {err:#}");
        }
    }
}

/// Runs ip(8).
pub(crate) fn ip(args: &[&str]) -> Result<()> {
    run_command("ip", args).map(|_| ())
}

/// Runs a program; returns what it printed.
pub(crate) fn run_command(program: &str, args: &[&str]) -> Result<String> {
    let output = Command::new(program).args(args).output();
    let Output {
        status,
        stdout,
        stderr,
    } = output.with_context(|| program.to_owned())?;
    if !status.success() {
        bail!(
            "{program} {}: {}",
            args.join(" "),
            String::from_utf8_lossy(&stderr).trim()
        );
    }
    Ok(String::from_utf8(stdout)?)
}
