// SPDX-License-Identifier: GPL-2.0

//! Host to guest.

use anyhow::Result;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};
use vhost_driver::CallWhen;

use crate::check::Checker;
use crate::failure::{Failure, Patience};
use crate::gate::Gate;
use crate::guest::RxHalf;
use crate::plan::Plan;
use crate::report::{Measured, Report};
use crate::run::{self, Mode, Station, Stopper};
use crate::session::Session;
use crate::wire::{Sending, Wire};

/// How long to wait for a call before looking around.
const LOOK_AROUND: Duration = Duration::from_millis(50);

/// Sends packets into the tap and checks what arrives in the rx ring.
///
/// # Errors
///
/// What kept it from running; what it found wrong is in the report.
pub fn run(plan: &Plan) -> Result<(Report, Session)> {
    let mut session = run::open(plan, Mode::Rx)?;
    let wire = run::open_wire(plan, &session)?;
    let window = if plan.options.flood {
        u64::MAX
    } else {
        session.device.backend.rx_window(plan.shape.size)?
    };
    let gate = Gate::new(window);
    let measured = drive(plan, &mut session, &wire, &gate)?;
    let report = Report::new("rx", plan, &mut session, measured)?;
    Ok((report, session))
}

fn drive(plan: &Plan, session: &mut Session, wire: &Wire, gate: &Gate) -> Result<Measured> {
    let stop = AtomicBool::new(false);
    let mut measured = Measured::default();
    thread::scope(|scope| {
        let stopper = Stopper(&stop);
        let host = scope.spawn(|| {
            run::pin_peer(plan)?;
            let sent = wire.send(&sending(plan), gate, &stop);
            gate.close();
            run::finding(sent)
        });
        let received = receive(plan, session, gate, &mut measured);
        drop(stopper);
        let sent = run::join(host)?;

        let (received, mut checker) = received?;
        for finding in [received, sent] {
            finding.unwrap_or_else(|what| checker.fail(what));
        }
        measured.tally = checker.finish(&[plan.sequences(gate.total())]);
        Ok(measured)
    })
}

/// Receives until the sender has closed the gate and everything is here. Returns what was found wrong, if anything was, and
/// what arrived.
///
/// # Errors
///
/// A call that the kernel refused.
pub fn receive(
    plan: &Plan,
    session: &mut Session,
    gate: &Gate,
    measured: &mut Measured,
) -> Result<(Result<(), String>, Checker)> {
    let station = Station::of(session);
    let rx = RxHalf::new(plan, &mut session.rx, session.buffers[0]);
    let mut receiver = Receiver::new(plan, rx, gate);
    receiver.rx.refill()?;
    let received = station.traffic(plan, measured, Some(gate), || receiver.run())?;
    Ok((received, receiver.checker))
}

fn sending(plan: &Plan) -> Sending {
    Sending {
        count: plan.count,
        until: plan.duration.map(|duration| Instant::now() + duration),
        pace: plan.pace,
        injection: plan.injection,
        patience: plan.stall,
        verified: !plan.options.no_verify,
    }
}

/// The driver's loop.
struct Receiver<'a> {
    plan: &'a Plan,
    rx: RxHalf<'a>,
    gate: &'a Gate,
    checker: Checker,
}

impl<'a> Receiver<'a> {
    fn new(plan: &'a Plan, rx: RxHalf<'a>, gate: &'a Gate) -> Self {
        let checker = Checker::new(1);
        Self {
            plan,
            rx,
            gate,
            checker,
        }
    }

    /// Receives until the host has sent its last and everything is here. Returns how long that took.
    fn run(&mut self) -> Result<Duration, Failure> {
        let start = Instant::now();
        let mut last = start;
        let mut patience = Patience::new(self.plan.stall);
        loop {
            if self.drain()? > 0 {
                last = Instant::now();
                patience.progress();
                self.rx.refill()?;
                continue;
            }
            if self.gate.is_finished() {
                return Ok(last - start);
            }
            let (seen, sent) = (self.gate.seen(), self.gate.total());
            let waited = patience.wait(|| format!("{seen} of {sent} packets arrived"));
            if waited.is_err() && self.gate.is_closed() {
                // All were sent: the check knows which are missing.
                return Ok(last - start);
            }
            waited?;
            self.rx.vring().wait_call(CallWhen::Next, LOOK_AROUND)?;
        }
    }

    /// Takes what has arrived. Returns how many packets.
    fn drain(&mut self) -> Result<u64, Failure> {
        let checker = &mut self.checker;
        if self.plan.options.no_verify {
            let count = self.rx.drain(|_, _| {})?;
            checker.count(count);
            self.gate.saw(count);
            return Ok(count);
        }
        let shape = self.plan.shape.reversed();
        let before = checker.tally().received;
        let count = self.rx.drain(|header, frame| {
            checker.note(shape.read(header, frame));
        })?;
        self.gate.saw(checker.tally().received - before);
        Ok(count)
    }
}
