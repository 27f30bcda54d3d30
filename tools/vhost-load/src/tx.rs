// SPDX-License-Identifier: GPL-2.0

//! Guest to host.

use anyhow::Result;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};
use vhost_driver::CallWhen;
use vhost_uapi::netdev;

use crate::args::Xdp;
use crate::check::{Checker, Tally};
use crate::failure::{Failure, Patience};
use crate::frame::Stamp;
use crate::gate::Gate;
use crate::guest::TxHalf;
use crate::inject::Emission;
use crate::pace::Pacer;
use crate::plan::Plan;
use crate::report::{Measured, Report};
use crate::run::{self, Mode, Station, Stopper};
use crate::session::Session;
use crate::wire::Wire;

/// How long to wait for a call before looking around.
const LOOK_AROUND: Duration = Duration::from_millis(100);

/// Sends packets through the tx ring and checks what comes out of the tap.
///
/// # Errors
///
/// What kept it from running; what it found wrong is in the report.
pub fn run(plan: &Plan) -> Result<(Report, Session)> {
    let mut session = run::open(plan, Mode::Tx)?;
    let report = run_in(plan, &mut session)?;
    Ok((report, session))
}

/// [`run`] in a session of the plan that was not used before.
///
/// # Errors
///
/// As there.
pub fn run_in(plan: &Plan, session: &mut Session) -> Result<Report> {
    let wire = (!plan.options.no_verify)
        .then(|| run::open_wire(plan, session))
        .transpose()?;
    let measured = match &wire {
        Some(wire) => checked(plan, session, wire)?,
        None => counted(plan, session)?,
    };
    Report::new("tx", plan, session, measured)
}

/// How many packets may be under way.
fn window(plan: &Plan, session: &Session) -> u64 {
    if plan.options.xdp == Some(Xdp::Drop) {
        u64::MAX
    } else {
        session.device.backend.tx_window(plan.shape.size)
    }
}

/// A run whose packets are captured and checked.
fn checked(plan: &Plan, session: &mut Session, wire: &Wire) -> Result<Measured> {
    let gate = Gate::new(window(plan, session));
    let stop = AtomicBool::new(false);
    let mut measured = Measured::default();
    thread::scope(|scope| {
        let stopper = Stopper(&stop);
        let capture = scope.spawn(|| run::pin_peer(plan).map(|()| wire.capture(1, &gate, &stop)));
        let sent = drive(plan, session, &gate, &mut measured)?;
        if sent.is_ok() {
            await_capture(plan, &gate);
        }
        drop(stopper);
        let mut checker = run::join(capture)??;
        sent.unwrap_or_else(|what| checker.fail(what));
        measured.tally = finish(plan, checker, gate.total());
        measured.capture_drops = wire.drops()?;
        Ok(measured)
    })
}

/// What is to be said of a capture, `sent` packets having been sent.
fn finish(plan: &Plan, checker: Checker, sent: u64) -> Tally {
    let arriving = plan.arriving(sent);
    let mut tally = checker.finish(&[arriving]);
    if arriving == 0 && tally.received > 0 {
        let received = tally.received;
        tally.violation(|| format!("not dropped: {received} packets arrived"));
    }
    tally
}

/// Waits until everything sent was captured, or nothing more comes: the check says then what is missing.
fn await_capture(plan: &Plan, gate: &Gate) {
    let mut patience = Patience::new(plan.stall);
    let mut seen = gate.seen();
    let drops = plan.options.xdp == Some(Xdp::Drop);
    while !drops && seen < gate.total() && patience.wait(String::new).is_ok() {
        thread::sleep(Duration::from_millis(1));
        if gate.seen() > seen {
            seen = gate.seen();
            patience.progress();
        }
    }
}

/// A run whose packets the interface counts.
fn counted(plan: &Plan, session: &mut Session) -> Result<Measured> {
    let name = run::wire_name(plan, session);
    let packets = || netdev::statistic(&name, "rx_packets");
    let gate = Gate::new(u64::MAX);
    let mut measured = Measured::default();
    let before = packets()?;
    let sent = drive(plan, session, &gate, &mut measured)?;
    let received = packets()?.saturating_sub(before);
    let mut tally = Tally {
        received,
        ..Tally::default()
    };
    match sent {
        Err(what) => tally.violation(|| what),
        Ok(()) if received != plan.arriving(gate.total()) => {
            let (sent, arriving) = (gate.total(), plan.arriving(gate.total()));
            tally.lost = arriving.saturating_sub(received);
            tally.violation(|| format!("lost: {sent} packets sent, {received} counted by {name}"));
        }
        Ok(()) => {}
    }
    measured.tally = tally;
    Ok(measured)
}

/// Sends everything, no more than `gate` lets through. Returns what was found wrong, if anything was.
///
/// # Errors
///
/// A call that the kernel refused.
pub fn drive(
    plan: &Plan,
    session: &mut Session,
    gate: &Gate,
    measured: &mut Measured,
) -> Result<Result<(), String>> {
    let station = Station::of(session);
    let tx = TxHalf::new(plan, &mut session.tx, session.buffers[1]);
    station.traffic(plan, measured, None, || Sender::new(plan, tx, gate).run())
}

/// The driver's loop.
struct Sender<'a> {
    plan: &'a Plan,
    tx: TxHalf<'a>,
    gate: &'a Gate,
    nth: u64,
    until: Option<Instant>,
    pacer: Pacer,
}

impl<'a> Sender<'a> {
    fn new(plan: &'a Plan, tx: TxHalf<'a>, gate: &'a Gate) -> Self {
        let now = Instant::now();
        Self {
            plan,
            tx,
            gate,
            nth: 0,
            until: plan.duration.map(|duration| now + duration),
            pacer: plan.pace.start(),
        }
    }

    /// Sends everything. Returns how long that took, until the device was done with the last packet.
    fn run(&mut self) -> Result<Duration, Failure> {
        let start = Instant::now();
        let mut patience = Patience::new(self.plan.stall);
        let stream = self.plan.options.stream;
        let eager = stream || self.plan.pace.is_paced();
        let when = if stream {
            CallWhen::Next
        } else {
            CallWhen::All
        };
        loop {
            let added = self.fill()?;
            if added > 0 {
                self.tx.vring().publish()?;
            }
            let reaped = if eager || added == 0 {
                self.tx.reap(u16::MAX)?
            } else {
                0
            };
            if added + reaped > 0 {
                patience.progress();
                continue;
            }
            let outstanding = self.tx.vring().queue.outstanding();
            if outstanding == 0 && self.is_done() {
                return Ok(start.elapsed());
            }
            patience.wait(|| {
                format!(
                    "the device has {outstanding} packets, the capture has {} of {}",
                    self.gate.seen(),
                    self.nth
                )
            })?;
            if self.is_done() || self.gate.wait_room() {
                self.tx.vring().wait_call(when, LOOK_AROUND)?;
            }
        }
    }

    fn is_done(&self) -> bool {
        self.nth >= self.plan.total() || self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Adds packets: as many as fit, as make a batch, or as are due. Returns how many.
    ///
    /// Room is made as it is needed, half a ring at a time: to take back a whole one first may take longer than the device
    /// polls for.
    fn fill(&mut self) -> Result<u64, Failure> {
        let whole = self.tx.vring().queue.layout().num;
        let batch = self.plan.options.batch.unwrap_or(u32::from(whole));
        let most = if self.plan.pace.is_paced() { 1 } else { batch };
        let mut added = 0;
        while added < u64::from(most) && !self.is_done() && self.gate.has_room() {
            if !self.tx.has_room() && self.tx.reap(whole.div_ceil(2))? == 0 {
                break;
            }
            self.pacer.wait();
            let Emission { sequence, corrupt } = Emission::new(self.nth, self.plan.injection);
            self.gate.sent(1);
            self.tx.push(Stamp { flow: 0, sequence }, corrupt)?;
            // A device that polls may begin with it; the kick is decided on with the batch.
            self.tx.vring().queue.publish();
            self.nth += 1;
            added += 1;
        }
        Ok(added)
    }
}
