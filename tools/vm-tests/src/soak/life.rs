// SPDX-License-Identifier: GPL-2.0

//! One device from its opening to its end: a guest and a host that send each other packets, and who changes the device.

use std::collections::BTreeMap;
use std::fmt::{self, Display, Formatter};
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, sleep, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context, Result};
use clap::Parser;
use serde::{Deserialize, Serialize};
use vhost_driver::CallWhen;
use vhost_load::args::{Cli, Mode};
use vhost_load::check::{Checker, Tally};
use vhost_load::frame::Stamp;
use vhost_load::guest::{RxHalf, TxHalf};
use vhost_load::line::Line;
use vhost_load::plan::Plan;
use vhost_load::session::{Device, Session};
use vhost_uapi::netdev;

use super::change::{Change, Target};
use crate::dice::Dice;
use crate::patience::{patience, wait_at_most};

/// How long a thread that finds nothing to do waits.
const PAUSE: Duration = Duration::from_millis(2);
/// Most packets of a burst.
const BURST: u64 = 64;

/// Packets of one way.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Way {
    sent: u64,
    /// Of these, what only a device could drop.
    wrong: u64,
    pub(super) arrived: u64,
    /// Dropped by the device, by its counters' names.
    dropped: BTreeMap<String, u64>,
    /// Counted as dropped by the tap.
    tap: u64,
}

/// What became of devices.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub(super) struct Account {
    pub(super) lives: u64,
    /// To the guest, to the host.
    pub(super) ways: [Way; 2],
    pub(super) changes: BTreeMap<Change, u64>,
}

impl Way {
    pub(super) fn add(&mut self, other: &Self) {
        self.sent += other.sent;
        self.wrong += other.wrong;
        self.arrived += other.arrived;
        self.tap += other.tap;
        for (reason, count) in &other.dropped {
            *self.dropped.entry(reason.clone()).or_default() += count;
        }
    }

    fn dropped(&self) -> u64 {
        self.dropped.values().sum()
    }

    fn balances(&self) -> bool {
        self.sent == self.arrived + self.dropped() + self.tap
    }
}

impl Display for Way {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self {
            sent,
            wrong,
            arrived,
            tap,
            ..
        } = self;
        let reasons = self.dropped.iter().filter(|(_, count)| **count > 0);
        let reasons: Vec<String> = reasons
            .map(|(why, count)| format!("{why} {count}"))
            .collect();
        let (dropped, reasons) = (self.dropped(), reasons.join(", "));
        write!(f, "sent {sent} ({wrong} wrong ones) = arrived {arrived} + dropped by the device {dropped} ({reasons}) + by the tap {tap}")
    }
}

/// Where devices live, and until when.
pub(super) struct Place<'a> {
    pub(super) node: &'a Path,
    pub(super) until: Instant,
}

/// What the threads of a device know of each other.
#[derive(Default)]
struct Shared {
    /// Nobody shall send any more.
    quiet: AtomicBool,
    /// Nobody does.
    rest: [AtomicBool; 2],
    /// All end.
    over: AtomicBool,
    /// Sent, wrong and arrived, as in [`Account::ways`].
    sent: [AtomicU64; 2],
    wrong: [AtomicU64; 2],
    arrived: [AtomicU64; 2],
}

const TO_GUEST: usize = 0;
const TO_HOST: usize = 1;

impl Shared {
    fn is(flag: &AtomicBool) -> bool {
        flag.load(Ordering::Acquire)
    }

    /// How many packets to send now.
    fn burst(&self, way: usize, dice: &mut Dice) -> u64 {
        if !Self::is(&self.quiet) {
            return dice.roll(BURST);
        }
        self.rest[way].store(true, Ordering::Release);
        0
    }

    /// What was sent that a receiver may get.
    fn good(&self, way: usize) -> u64 {
        let get = |counts: &[AtomicU64; 2]| counts[way].load(Ordering::Acquire);
        get(&self.sent) - get(&self.wrong)
    }

    /// Runs one of the threads; when it fails, all end.
    fn run<T>(&self, what: impl FnOnce(&Self) -> Result<T>) -> Result<T> {
        what(self).inspect_err(|_| self.over.store(true, Ordering::Release))
    }
}

/// Options of `vhost-load` that make a device.
fn arguments(node: &Path, dice: &mut Dice) -> Vec<String> {
    let mut features = vec!["version_1"];
    if dice.roll(8) == 0 {
        features.clear();
    }
    for feature in ["event_idx", "indirect", "mrg_rxbuf", "in_order"] {
        // Legacy drivers know no order.
        if dice.coin() && (feature != "in_order" || features.contains(&"version_1")) {
            features.push(feature);
        }
    }
    if features.is_empty() {
        features.push("none");
    }
    let mut args: Vec<String> = ["vhost-load", "rx", "--buffers", "64", "--device"]
        .map(str::to_owned)
        .into();
    args.push(node.to_string_lossy().into_owned());
    let mut add = |option: &str, value: &dyn Display| args.push(format!("--{option}={value}"));
    add("features", &features.join(","));
    add("size", &dice.pick(64, &[60, 256, 1514, 9000, 65535]));
    add("ring-size", &dice.pick(256, &[64, 128, 1024]));
    add("chain", &dice.pick(1, &[2, 4]));
    add("busyloop", &dice.pick(0, &[5, 50, 2000]));
    add("kthread", &dice.coin());
    if dice.coin() {
        add("sndbuf", &200_000);
    }
    match dice.roll(6) {
        0 => add("iotlb", &64),
        1 => {
            add("take", &2000);
            args.push("--iommu".to_owned());
        }
        _ => add("regions", &dice.pick(1, &[2, 16])),
    }
    args
}

fn plan(args: &[String]) -> Result<Plan> {
    match Cli::try_parse_from(args)?.mode {
        Mode::Rx(options) => Plan::new(&options),
        Mode::Tx(_) | Mode::Rr(_) => bail!("no plan for rx"),
    }
}

impl Place<'_> {
    /// A device that lives for some seconds.
    ///
    /// # Errors
    ///
    /// A call that failed, a packet that is not what was sent, or an account that does not balance; with what the device was.
    pub(super) fn live(&self, dice: &mut Dice) -> Result<Account> {
        let args = arguments(self.node, dice);
        let until = self
            .until
            .min(Instant::now() + Duration::from_secs(2 + dice.roll(12)));
        let lived = plan(&args).and_then(|plan| live(&plan, until, dice));
        lived.with_context(|| args.join(" "))
    }
}

fn live(plan: &Plan, until: Instant, dice: &mut Dice) -> Result<Account> {
    let mut session = Session::open(&plan.session)?;
    let device = std::sync::Arc::clone(&session.device);
    let tap = device.backend.name();
    let line = Line::packet(tap, plan.shape.protocol(), true)?;
    let target = Target::new(plan, &session)?;
    let books = Books::open(&device)?;
    device.attach()?;
    let shared = Shared::default();
    let mut seeds = [(); 3].map(|()| Dice::new(dice.bits()));
    let [guest_dice, host_dice, change_dice] = &mut seeds;
    let Session {
        rx, tx, buffers, ..
    } = &mut session;
    let [rx_buffers, tx_buffers] = *buffers;
    let rx = RxHalf::new(plan, rx, rx_buffers);
    let tx = TxHalf::new(plan, tx, tx_buffers);
    let (tallies, changes) = thread::scope(|scope| -> Result<_> {
        let shared = &shared;
        let (line, device) = (&line, &device);
        let sender = scope.spawn(|| shared.run(|shared| guest_sends(tx, guest_dice, shared)));
        let receiver = scope.spawn(|| shared.run(|shared| guest_receives(rx, plan, shared)));
        let host = scope.spawn(|| shared.run(|shared| host(line, plan, host_dice, shared)));
        let iommu = device.iommu.as_ref().map(|iommu| {
            let every = plan.options.take.map(Duration::from_micros);
            let serve =
                move |shared: &Shared| Ok(iommu.serve(&device.vhost, every, &shared.over)?);
            scope.spawn(move || shared.run(serve))
        });
        let changed = changes(&target, device, until, change_dice, shared);
        shared.quiet.store(true, Ordering::Release);
        let balanced =
            changed.and_then(|changes| books.balance(device, line, shared).map(|()| changes));
        shared.over.store(true, Ordering::Release);
        let arrived = join(receiver);
        let captured = join(host);
        let ended = join(sender).and(iommu.map_or(Ok(()), |thread| join(thread).map(|_| ())));
        // What a thread met is why nothing balances.
        let tallies = [arrived?, captured?];
        ended?;
        Ok((tallies, balanced?))
    })?;
    let ways = books.ways(&device, &line, &shared)?;
    for (tally, way) in tallies.iter().zip(&ways) {
        sound(tally, way)?;
    }
    Ok(Account {
        lives: 1,
        ways,
        changes,
    })
}

fn join<T>(thread: ScopedJoinHandle<'_, Result<T>>) -> Result<T> {
    let panicked = |_| Err(anyhow!("a thread of a device panicked"));
    thread.join().unwrap_or_else(panicked)
}

/// What is missing is what was dropped.
fn sound(tally: &Tally, way: &Way) -> Result<()> {
    let lost = way.sent - way.wrong - way.arrived;
    let wrong = tally.reordered + tally.corrupted + tally.duplicated;
    ensure!(
        wrong == 0 && tally.lost == lost,
        "{way}; {} missing, {wrong} wrong: {:?}",
        tally.lost,
        tally.first
    );
    Ok(())
}

/// Sends bursts, and takes back what was sent.
fn guest_sends(mut tx: TxHalf<'_>, dice: &mut Dice, shared: &Shared) -> Result<()> {
    let mut sequence = 0;
    while !Shared::is(&shared.over) {
        for _ in 0..shared.burst(TO_HOST, dice) {
            if !tx.has_room() {
                break;
            }
            // Counted first: the host may have it before the call returns.
            shared.sent[TO_HOST].fetch_add(1, Ordering::AcqRel);
            if dice.roll(50) == 0 {
                shared.wrong[TO_HOST].fetch_add(1, Ordering::AcqRel);
                let writable = dice.coin();
                tx.push_wrong(if writable { 60 } else { 5 }, writable)?;
                continue;
            }
            tx.push(Stamp { flow: 0, sequence }, false)?;
            sequence += 1;
        }
        tx.vring().publish()?;
        if tx.reap(u16::MAX)? == 0 {
            tx.vring().wait_call(CallWhen::Next, PAUSE)?;
        }
    }
    Ok(())
}

fn guest_receives(mut rx: RxHalf<'_>, plan: &Plan, shared: &Shared) -> Result<Tally> {
    let shape = plan.shape.reversed();
    let mut checker = Checker::new(1);
    while !Shared::is(&shared.over) {
        rx.refill()?;
        let came = rx.drain(|header, frame| {
            checker.note(shape.read(header, frame));
        })?;
        shared.arrived[TO_GUEST].store(checker.tally().received, Ordering::Release);
        if came == 0 {
            rx.vring().wait_call(CallWhen::Next, PAUSE)?;
        }
    }
    Ok(checker.finish(&[shared.good(TO_GUEST)]))
}

/// Sends bursts to the guest, and takes what it sends.
fn host(line: &Line, plan: &Plan, dice: &mut Dice, shared: &Shared) -> Result<Tally> {
    let shape = plan.shape.reversed();
    let mut checker = Checker::new(1);
    let (mut packet, mut frame) = (vec![0; line.header_size() + 65_536], Vec::new());
    let mut sequence = 0;
    while !Shared::is(&shared.over) {
        while let Some(len) = line.receive(&mut packet)? {
            let received = &packet[..len.min(packet.len())];
            let (header, frame) = received.split_at(line.header_size().min(received.len()));
            checker.note(plan.shape.read(header, frame));
        }
        shared.arrived[TO_HOST].store(checker.tally().received, Ordering::Release);
        for _ in 0..shared.burst(TO_GUEST, dice) {
            shape.write(Stamp { flow: 0, sequence }, &mut frame);
            let whole = [&shape.header()[..line.header_size()], &frame[..]].concat();
            shared.sent[TO_GUEST].fetch_add(1, Ordering::AcqRel);
            // Whether it is refused or not: one that is has been dropped by the tap.
            line.send(&whole)?;
            sequence += 1;
        }
        line.wait(Duration::from_micros(dice.roll(4) * 500))?;
    }
    Ok(checker.finish(&[shared.good(TO_HOST)]))
}

/// Changes the device until then. Returns what was changed how often.
fn changes(
    target: &Target,
    device: &Device,
    until: Instant,
    dice: &mut Dice,
    shared: &Shared,
) -> Result<BTreeMap<Change, u64>> {
    let [first, others @ ..] = Change::ALL;
    let mut made = BTreeMap::new();
    while Instant::now() < until && !Shared::is(&shared.over) {
        let change = dice.pick(first, &others);
        let changed = target.change(device, change, dice);
        if changed.with_context(|| format!("{change:?}"))? {
            *made.entry(change).or_default() += 1;
        }
        sleep(Duration::from_micros(dice.roll(40) * 500));
    }
    Ok(made)
}

/// The tap's account as it was when the device began.
struct Books {
    tap: [u64; 2],
}

impl Books {
    fn open(device: &Device) -> Result<Self> {
        let tap = taps_drops(device)?;
        Ok(Self { tap })
    }

    fn ways(&self, device: &Device, line: &Line, shared: &Shared) -> Result<[Way; 2]> {
        let tap = taps_drops(device)?;
        ensure!(line.drops()? == 0, "the wire's socket has dropped packets");
        let way = |name: &str, at: usize| -> Result<Way> {
            let get = |counts: &[AtomicU64; 2]| counts[at].load(Ordering::Acquire);
            Ok(Way {
                sent: get(&shared.sent),
                wrong: get(&shared.wrong),
                arrived: get(&shared.arrived),
                dropped: drops(device, name)?,
                tap: tap[at] - self.tap[at],
            })
        };
        Ok([way("rx", TO_GUEST)?, way("tx", TO_HOST)?])
    }

    /// Waits until nothing is under way.
    fn balance(&self, device: &Device, line: &Line, shared: &Shared) -> Result<()> {
        let balances = || {
            let ways = || self.ways(device, line, shared);
            let balance = || ways().is_ok_and(|ways| ways.iter().all(Way::balances));
            Shared::is(&shared.over) || (shared.rest.iter().all(Shared::is) && balance())
        };
        // There are many threads for few CPUs.
        let waited = wait_at_most(patience() * 20, balances);
        let [rx, tx] = self.ways(device, line, shared)?;
        waited.with_context(|| format!("to the guest: {rx}; to the host: {tx}"))
    }
}

/// What the tap has dropped on the way to the guest, and to the host.
fn taps_drops(device: &Device) -> Result<[u64; 2]> {
    let name = device.backend.name();
    Ok([
        netdev::statistic(name, "tx_dropped")?,
        netdev::statistic(name, "rx_dropped")?,
    ])
}

/// What the device has dropped of a ring's packets, by reason.
fn drops(device: &Device, ring: &str) -> Result<BTreeMap<String, u64>> {
    let fd = device.vhost.as_fd().as_raw_fd();
    let text = fs::read_to_string(format!("/proc/self/fdinfo/{fd}"))?;
    let prefix = format!("vhost-{ring}-drop-");
    let drop = |line: &str| {
        let (reason, count) = line.strip_prefix(&prefix)?.split_once(":\t")?;
        Some((reason.to_owned(), count.parse().ok()?))
    };
    let drops: BTreeMap<_, _> = text.lines().filter_map(drop).collect();
    ensure!(!drops.is_empty(), "the device counts no drops");
    Ok(drops)
}
