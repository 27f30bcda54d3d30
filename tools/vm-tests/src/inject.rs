// SPDX-License-Identifier: GPL-2.0

//! Calls and runs in which an allocation or a copy fails, by the kernel's fault injection: on a kernel that has it.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use nix::errno::Errno;
use vhost_load::frame::{Found, Stamp};
use vhost_load::session::SessionOptions;
use vhost_load::vring::{RX, TX};
use vhost_load::worker::Worker;
use vhost_uapi::iotlb::{Kind, Message, What, READ};
use vhost_uapi::{features, VhostNet};

use crate::dirty_log::Map;
use crate::patience::{patience, wait_for};
use crate::report::{Report, Test};
use crate::rig::{Rig, BUFFER};
use crate::stop::expect_no_worker;

/// Entries of a ring.
const RING: u16 = 16;
/// What can fail.
const ALLOCATIONS: &[&str] = &["failslab", "fail_page_alloc"];
const COPIES: &[&str] = &["fail_usercopy"];

/// A device without backends, and a log for it.
struct Place {
    rig: Rig,
    log: u64,
    _map: Map,
}

type Call = (&'static str, fn(&Place) -> vhost_uapi::Result);

/// Calls that may be made of a device without backends, again and again.
const CALLS: &[Call] = &[
    ("SET_FEATURES", |at| {
        at.rig.vhost().set_features(1 << features::VERSION_1)
    }),
    ("GET_FEATURES_ARRAY", |at| {
        at.rig.vhost().features_array().map(|_| ())
    }),
    ("SET_FEATURES_ARRAY", |at| {
        at.rig
            .vhost()
            .set_features_array(&[1 << features::VERSION_1])
    }),
    ("SET_MEM_TABLE", |at| {
        at.rig.vhost().set_mem_table(at.rig.table())
    }),
    ("SET_LOG_BASE", |at| at.rig.vhost().set_log_base(at.log)),
    ("SET_LOG_FD", |at| {
        let fd = at.rig.vring(TX).err.as_fd();
        at.rig.vhost().set_log_fd(Some(fd))
    }),
    ("SET_VRING_NUM", |at| {
        at.rig.vhost().set_vring_num(TX, u32::from(RING))
    }),
    ("SET_VRING_BASE", |at| at.rig.vhost().set_vring_base(TX, 0)),
    ("GET_VRING_BASE", |at| {
        at.rig.vhost().vring_base(TX).map(|_| ())
    }),
    ("SET_VRING_KICK", |at| {
        let fd = at.rig.vring(TX).kick.as_fd();
        at.rig.vhost().set_vring_kick(TX, Some(fd))
    }),
    ("SET_VRING_CALL", |at| {
        let fd = at.rig.vring(TX).call.as_fd();
        at.rig.vhost().set_vring_call(TX, Some(fd))
    }),
    ("SET_VRING_ERR", |at| {
        let fd = at.rig.vring(TX).err.as_fd();
        at.rig.vhost().set_vring_err(TX, Some(fd))
    }),
    ("SET_VRING_BUSYLOOP_TIMEOUT", |at| {
        at.rig.vhost().set_vring_busyloop_timeout(TX, 0)
    }),
    ("NET_SET_BACKEND tx", |at| attach(&at.rig, TX)),
    ("NET_SET_BACKEND rx", |at| attach(&at.rig, RX)),
];

/// Runs the tests whose names contain `only`.
pub fn run(node: &Path, only: &str, report: &mut Report) {
    let mut tests = vec![
        Test::new("open: each failure is told, and costs nothing", || {
            let open = |(): &()| VhostNet::open(node, true).map(drop);
            each_failure(|| Ok(()), open)
        }),
        Test::new(
            "an IOTLB update: each failure is told, and costs nothing",
            || updates(node),
        ),
        Test::new(
            "all calls before a backend: each failure is told, and costs nothing",
            || calls(node),
        ),
    ];
    for (kind, name) in [(1, "task"), (0, "kthread")] {
        let name = format!("{name}: SET_OWNER: each failure is told, and costs nothing");
        tests.push(Test::new(name, move || owners(node, kind)));
    }
    for kthread in [false, true] {
        let kind = if kthread { "kthread" } else { "task" };
        for (faults, what) in [
            (
                ALLOCATIONS,
                "allocations of the worker fail: every chain comes back",
            ),
            (
                COPIES,
                "copies of the worker fail: no packet is lost untold",
            ),
        ] {
            let name = format!("{kind}: {what}");
            tests.push(Test::new(name, move || runs(node, kthread, faults)));
        }
    }
    tests.retain(|test| test.name.contains(only));
    report.run_on(1, &tests);
    report.result("no worker is left", &expect_no_worker());
}

fn options(node: &Path) -> SessionOptions {
    SessionOptions {
        node: node.to_owned(),
        features: 1 << features::VERSION_1,
        ring_size: u32::from(RING),
        buffer_bytes: [u64::from(RING) * BUFFER; 2],
        regions: 8,
        ..SessionOptions::default()
    }
}

fn attach(rig: &Rig, index: u32) -> vhost_uapi::Result {
    let backend = rig.session.device.backend.as_fd();
    rig.vhost().set_backend(index, Some(backend))
}

fn set(attr: &str, name: &str, value: &str) -> Result<()> {
    let path = Path::new("/sys/kernel/debug").join(attr).join(name);
    fs::write(&path, value).with_context(|| path.display().to_string())
}

/// Has what can fail do so quietly, and wherever it is called from.
fn prepare() -> Result<()> {
    for attr in ALLOCATIONS.iter().chain(COPIES) {
        set(attr, "verbose", "0")?;
        set(attr, "task-filter", "Y")?;
    }
    for attr in ALLOCATIONS {
        set(attr, "ignore-gfp-wait", "N")?;
    }
    set("fail_page_alloc", "ignore-gfp-highmem", "N")?;
    set("fail_page_alloc", "min-order", "0")
}

/// Makes a call of which the `nth` allocation or copy fails. Says whether one did.
fn with_fault<T>(nth: u32, call: impl FnOnce() -> T) -> Result<(T, bool)> {
    let path = "/proc/thread-self/fail-nth";
    let mut file = File::options().read(true).write(true).open(path)?;
    write!(file, "{nth}")?;
    let result = call();
    // Where the count is not over, this may fail by it.
    let mut left = [0; 16];
    let injected = file
        .read_at(&mut left, 0)
        .is_ok_and(|len| left[..len] == *b"0\n");
    // As this may, once.
    file.write_at(b"0", 0).or_else(|_| file.write_at(b"0", 0))?;
    Ok((result, injected))
}

/// Makes a call again and again, each time with a later failure, until there is none. Where it fails it is made again, and
/// must be served. `ready` makes what it is called with. C answers so, too: EINVAL to a message that it cannot copy.
fn each_failure<T>(
    ready: impl Fn() -> Result<T>,
    call: impl Fn(&T) -> vhost_uapi::Result,
) -> Result<()> {
    const MOST: u32 = 2000;
    let mut refused = 0;
    for nth in 1..MOST {
        let place = ready()?;
        let (result, injected) = with_fault(nth, || call(&place))?;
        let Err(err) = result else {
            if injected {
                continue;
            }
            ensure!(refused > 0, "{nth} calls, and none failed");
            return Ok(());
        };
        ensure!(injected, "failure {nth} was none, and it answers {err}");
        ensure!(
            matches!(err.errno, Errno::ENOMEM | Errno::EFAULT | Errno::EINVAL),
            "failure {nth}: {err}"
        );
        refused += 1;
        call(&place).with_context(|| format!("after failure {nth}"))?;
    }
    bail!("{MOST} failures, and there are more")
}

fn owners(node: &Path, kind: u8) -> Result<()> {
    let ready = || -> Result<VhostNet> {
        let vhost = VhostNet::open(node, true)?;
        vhost.set_fork_from_owner(kind)?;
        Ok(vhost)
    };
    prepare()?;
    each_failure(ready, VhostNet::set_owner)?;
    wait_for(|| expect_no_worker().is_ok()).or_else(|_| expect_no_worker())
}

fn updates(node: &Path) -> Result<()> {
    let platform = SessionOptions {
        features: 1 << features::VERSION_1 | 1 << features::ACCESS_PLATFORM,
        iotlb: Some(4),
        regions: 1,
        ..options(node)
    };
    let rig = Rig::detached(&platform)?;
    prepare()?;
    let message = Message {
        kind: Kind::V2,
        what: What::Update,
        iova: 1 << 40,
        size: 4096,
        uva: 1 << 20,
        access: READ,
    };
    each_failure(|| Ok(()), |()| rig.vhost().send_message(&message))
}

fn calls(node: &Path) -> Result<()> {
    let rig = Rig::detached(&options(node))?;
    let map = Map::new()?;
    let place = Place {
        log: map.base()?,
        rig,
        _map: map,
    };
    prepare()?;
    for (name, call) in CALLS {
        each_failure(|| Ok(&place), |place| call(place)).context(*name)?;
    }
    one_each_way(&place.rig, 0)
}

/// A packet each way, as the ones with this number.
fn one_each_way(rig: &Rig, at: u16) -> Result<()> {
    let slot = at % RING;
    for index in [RX, TX] {
        rig.good(index, at, slot);
        rig.ring(index).publish(at.wrapping_add(1));
        rig.kick(index)?;
    }
    rig.expect_frame(u64::from(at))?;
    rig.send(u64::from(at))?;
    rig.expect_received(at, slot, u64::from(at))
}

/// As many failures as none of these tests comes to.
const TIMES: u32 = 1_000_000;

/// A share of what one task asks for fails, until this is dropped.
struct Failing<'a> {
    faults: &'a [&'a str],
    task: String,
}

impl<'a> Failing<'a> {
    fn new(worker: &Worker, faults: &'a [&'a str]) -> Result<Self> {
        let task = format!("/proc/{}/make-it-fail", worker.tid());
        let this = Self { faults, task };
        fs::write(&this.task, "1").with_context(|| this.task.clone())?;
        for attr in faults {
            set(attr, "times", &TIMES.to_string())?;
            set(attr, "probability", "20")?;
        }
        Ok(this)
    }

    /// How often something has failed.
    fn count(&self) -> Result<u32> {
        let left = |attr: &&str| -> Result<u32> {
            let path = Path::new("/sys/kernel/debug").join(attr).join("times");
            Ok(fs::read_to_string(path)?.trim().parse()?)
        };
        let failed = self.faults.iter().map(|attr| Ok(TIMES - left(attr)?));
        failed.sum()
    }
}

impl Drop for Failing<'_> {
    fn drop(&mut self) {
        let off = |attr: &&str| set(attr, "probability", "0");
        if let Err(err) = self.faults.iter().try_for_each(off) {
            eprintln!("vm-tests: {err:#}");
        }
        // A worker that is gone fails no more.
        let _ = fs::write(&self.task, "0");
    }
}

/// Each packet arrives, or a counter says that it was dropped, or its ring is broken, which its owner is told: then it goes on
/// from there with a backend that is set again.
fn runs(node: &Path, kthread: bool, faults: &[&str]) -> Result<()> {
    const PACKETS: u16 = 400;
    let rig = Rig::new(&SessionOptions {
        kthread: Some(kthread),
        ..options(node)
    })?;
    prepare()?;
    let copies = faults == COPIES;
    let worker = rig.session.worker.as_ref().context("no worker was found")?;
    let failing = Failing::new(worker, faults)?;
    let (mut told, mut received) = (0, 0);
    for at in 0..PACKETS {
        told += u32::from(!sent(&rig, at, copies)?);
        if receive(&rig, received, at)? {
            received += 1;
        } else {
            told += 1;
        }
    }
    let failed = failing.count()?;
    drop(failing);
    // What an allocation was for is seen at the interface only.
    ensure!(failed > 0 && (!copies || told > 0), "nothing failed");
    ensure!(
        received > PACKETS / 4,
        "{received} of {PACKETS} were received"
    );
    ensure!(sent(&rig, PACKETS, true)?, "a packet fails after it");
    ensure!(
        receive(&rig, received, PACKETS)?,
        "no packet is received after it"
    );
    rig.expect_quiet()
}

/// What may come of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Came {
    /// Its chain came back.
    Back,
    /// It is counted as dropped, and its chain kept.
    Dropped,
    /// The ring is broken, as its owner is told.
    Broken,
}

/// Waits for what comes of the packet for avail index `at`; there were so many drops before it.
fn what_comes(rig: &Rig, index: u32, at: u16, drops: u64) -> Result<Came> {
    let came = Cell::new(None);
    let look = || -> Result<Option<Came>> {
        // First, as the others come before it.
        let errors = rig.errors(index)?;
        let back = rig.ring(index).used_idx() == at.wrapping_add(1);
        let dropped = rig.counters()?.drops(index) > drops;
        let came = match (back, dropped, errors > 0) {
            (true, ..) => Some(Came::Back),
            (_, true, _) => Some(Came::Dropped),
            (.., true) => Some(Came::Broken),
            _ => None,
        };
        Ok(came)
    };
    let any = || match look() {
        Ok(None) => false,
        found => {
            came.set(Some(found));
            true
        }
    };
    wait_for(any).with_context(|| format!("packet {at}"))?;
    came.take()
        .context("nothing was seen")??
        .context("nothing came")
}

/// Sends a packet. Says whether it arrived at once; a drop is counted, and a ring that is broken goes on at the next kick. It
/// need not arrive where the network itself may lose it.
fn sent(rig: &Rig, at: u16, arrives: bool) -> Result<bool> {
    const MOST: u32 = 200;
    let slot = at % RING;
    let drops = rig.counters()?.drops(TX);
    rig.good(TX, at, slot);
    rig.ring(TX).publish(at.wrapping_add(1));
    for tries in 0..MOST {
        rig.kick(TX)?;
        if what_comes(rig, TX, at, drops)? == Came::Broken {
            continue;
        }
        rig.expect_used(TX, at.wrapping_add(1))?;
        rig.expect_entry(TX, at, (slot, 0))?;
        if !arrives {
            // Nor may what did arrive fill the wire.
            while rig.next_frame(Duration::ZERO)?.is_some() {}
            return Ok(false);
        }
        if rig.counters()?.drops(TX) > drops {
            return Ok(false);
        }
        // One before it may be there twice, where the ring broke behind it.
        let wanted = Found::Sound(Stamp {
            flow: 0,
            sequence: at.into(),
        });
        loop {
            let found = rig.next_frame(patience())?;
            if found.context("a packet did not leave, and is not counted")? == wanted {
                return Ok(tries == 0);
            }
        }
    }
    bail!("the ring is broken for ever")
}

/// Receives a packet with the chain for avail index `at`. Says whether it arrived; else the chain is there for the next one.
fn receive(rig: &Rig, at: u16, sequence: u16) -> Result<bool> {
    let drops = rig.counters()?.drops(RX);
    rig.good(RX, at, at % RING);
    rig.ring(RX).publish(at.wrapping_add(1));
    rig.kick(RX)?;
    rig.flush()?;
    rig.errors(RX)?;
    rig.send(sequence.into())?;
    let mut came = what_comes(rig, RX, at, drops)?;
    if came == Came::Broken {
        // It is still there, or was lost with the ring.
        rig.kick(RX)?;
        rig.flush()?;
        if rig.ring(RX).used_idx() == at.wrapping_add(1) {
            came = Came::Back;
        }
    }
    if came == Came::Back {
        rig.expect_received(at, at % RING, sequence.into())?;
    }
    Ok(came == Came::Back)
}
