// SPDX-License-Identifier: GPL-2.0

//! Round trips: what the guest sends, the host sends back.

use anyhow::{ensure, Result};
use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};
use vhost_driver::CallWhen;
use vhost_uapi::wait_readable;

use crate::args::RrOptions;
use crate::check::Checker;
use crate::failure::{Failure, Patience};
use crate::frame::{Shape, Stamp};
use crate::guest::{RxHalf, TxHalf};
use crate::inject::{Fault, Injection};
use crate::pace::Pacer;
use crate::plan::Plan;
use crate::report::{Measured, Report};
use crate::run::{self, Mode, Station, Stopper};
use crate::session::Session;
use crate::wire::Wire;

/// How long to wait for a call before looking around.
const LOOK_AROUND: Duration = Duration::from_millis(100);

/// Sends packets through the tx ring, and checks and times what comes back in the rx ring.
///
/// # Errors
///
/// What kept it from running; what it found wrong is in the report.
pub fn run(plan: &Plan, options: &RrOptions) -> Result<(Report, Session)> {
    let fault = plan.injection.map(|injection| injection.fault);
    ensure!(
        fault != Some(Fault::Swap) || options.outstanding > 1,
        "--inject swap needs --outstanding 2 or more: one answer at a time cannot come late"
    );
    ensure!(
        !plan.options.no_verify,
        "rr always checks: leave out --no-verify"
    );
    let mut session = run::open(plan, Mode::Rr)?;
    let wire = run::open_wire(plan, &session)?;
    let measured = drive(plan, options, &mut session, &wire)?;
    let report = Report::new("rr", plan, &mut session, measured)?;
    Ok((report, session))
}

fn drive(plan: &Plan, options: &RrOptions, session: &mut Session, wire: &Wire) -> Result<Measured> {
    let station = Station::of(session);
    let stop = AtomicBool::new(false);
    let mut measured = Measured::default();
    let [rx_buffers, tx_buffers] = session.buffers;
    let rx = RxHalf::new(plan, &mut session.rx, rx_buffers);
    let tx = TxHalf::new(plan, &mut session.tx, tx_buffers);
    let mut guest = Guest::new(plan, options, rx, tx);
    guest.rx.refill()?;
    // The fault befalls flow 0, which has its share of the packets only.
    let injection = plan.injection.map(|injection| Injection {
        at: injection.at / u64::from(options.flows),
        ..injection
    });
    let think = Duration::from_micros(options.think);
    thread::scope(|scope| {
        let stopper = Stopper(&stop);
        let host = scope.spawn(|| {
            run::pin_peer(plan)?;
            run::finding(wire.echo(injection, think, &stop))
        });
        let answered = station.traffic(plan, &mut measured, None, || guest.run());
        drop(stopper);
        let echoed = run::join(host)?;

        let mut checker = guest.checker;
        for finding in [answered?, echoed] {
            finding.unwrap_or_else(|what| checker.fail(what));
        }
        let sent: Vec<u64> = guest.flows.iter().map(|flow| flow.next).collect();
        measured.tally = checker.finish(&sent);
        measured.latencies = guest.latencies;
        measured.capture_drops = wire.drops()?;
        Ok(measured)
    })
}

/// Where one flow is.
#[derive(Clone, Debug, Default)]
struct Flow {
    next: u64,
    under_way: u32,
}

/// The driver's loop.
struct Guest<'a> {
    plan: &'a Plan,
    rx: RxHalf<'a>,
    tx: TxHalf<'a>,
    outstanding: u32,
    flows: Vec<Flow>,
    sent: u64,
    /// When each packet under way was sent.
    departures: HashMap<(u32, u64), Instant>,
    latencies: Vec<Duration>,
    checker: Checker,
    shape: Shape,
    until: Option<Instant>,
    pacer: Pacer,
}

impl<'a> Guest<'a> {
    fn new(plan: &'a Plan, options: &RrOptions, rx: RxHalf<'a>, tx: TxHalf<'a>) -> Self {
        let now = Instant::now();
        Self {
            plan,
            rx,
            tx,
            outstanding: options.outstanding,
            flows: (0..options.flows).map(|_| Flow::default()).collect(),
            sent: 0,
            departures: HashMap::new(),
            latencies: Vec::new(),
            checker: Checker::new(options.flows),
            shape: plan.shape.reversed(),
            until: plan.duration.map(|duration| now + duration),
            pacer: plan.pace.start(),
        }
    }

    /// Goes on until every question is answered. Returns how long that took.
    fn run(&mut self) -> Result<Duration, Failure> {
        let start = Instant::now();
        let mut last = start;
        let mut patience = Patience::new(self.plan.stall);
        loop {
            let reaped = self.tx.reap(u16::MAX)?;
            let asked = self.ask()?;
            if asked > 0 {
                self.tx.vring().publish()?;
            }
            let answered = self.drain()?;
            if answered > 0 {
                last = Instant::now();
                self.rx.refill()?;
            }
            if reaped + asked + answered > 0 {
                patience.progress();
                continue;
            }
            if self.is_done()
                && self.departures.is_empty()
                && self.tx.vring().queue.outstanding() == 0
            {
                return Ok(last - start);
            }
            if let Err(stalled) =
                patience.wait(|| format!("{} packets are under way", self.departures.len()))
            {
                // Everything is sent: the check knows what is missing.
                let sent = self.tx.vring().queue.outstanding() == 0;
                return if sent { Ok(last - start) } else { Err(stalled) };
            }
            self.wait()?;
        }
    }

    fn is_done(&self) -> bool {
        self.sent >= self.plan.count || self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Sends one packet of each flow that may have one more under way. Returns how many.
    fn ask(&mut self) -> Result<u64, Failure> {
        let mut asked = 0;
        for number in 0..self.flows.len() {
            if self.is_done() || !self.tx.has_room() {
                break;
            }
            let Flow {
                next: sequence,
                under_way,
            } = self.flows[number];
            if under_way >= self.outstanding {
                continue;
            }
            self.pacer.wait();
            let flow = number as u32; // CAST: At most 256 flows.
            self.tx.push(Stamp { flow, sequence }, false)?;
            self.departures.insert((flow, sequence), Instant::now());
            self.flows[number] = Flow {
                next: sequence + 1,
                under_way: under_way + 1,
            };
            self.sent += 1;
            asked += 1;
        }
        Ok(asked)
    }

    /// Takes the answers that have arrived. Returns how many packets.
    fn drain(&mut self) -> Result<u64, Failure> {
        let now = Instant::now();
        let (checker, shape) = (&mut self.checker, self.shape);
        let (flows, departures, latencies) =
            (&mut self.flows, &mut self.departures, &mut self.latencies);
        self.rx.drain(|header, frame| {
            let Some(stamp) = checker.note(shape.read(header, frame)) else {
                return;
            };
            if let Some(departed) = departures.remove(&(stamp.flow, stamp.sequence)) {
                latencies.push(now.saturating_duration_since(departed));
            }
            if let Some(flow) = flows.get_mut(stamp.flow as usize) {
                flow.under_way = flow.under_way.saturating_sub(1);
            }
        })
    }

    /// Sleeps until an answer comes, or a question has gone if there is no room for more.
    fn wait(&mut self) -> Result<(), Failure> {
        let wants_room = !self.tx.has_room() || (self.is_done() && self.departures.is_empty());
        if !wants_room {
            return self.rx.vring().wait_call(CallWhen::Next, LOOK_AROUND);
        }
        let (rx, tx) = (self.rx.vring(), self.tx.vring());
        if rx.queue.enable_calls(CallWhen::Next) && tx.queue.enable_calls(CallWhen::Next) {
            wait_readable(&[rx.call.as_fd(), tx.call.as_fd()], LOOK_AROUND)?;
            rx.take_calls()?;
            tx.take_calls()?;
        }
        rx.queue.disable_calls();
        tx.queue.disable_calls();
        Ok(())
    }
}
