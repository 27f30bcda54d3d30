// SPDX-License-Identifier: GPL-2.0

//! What all modes share: set-up, the threads beside the driver, the end.

use anyhow::{ensure, Context, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;
use vhost_driver::{GuestMemory, RingLayout};
use vhost_uapi::{mark, Mark};

use crate::args::Xdp;
use crate::failure::Failure;
use crate::gate::Gate;
use crate::line::Line;
use crate::plan::Plan;
use crate::report::Measured;
use crate::session::{Device, Session};
use crate::vring::{RX, TX};
use crate::wire::Wire;
use crate::worker::{self, Worker};

/// Tells the threads beside the driver to end, when it is dropped at the latest.
#[derive(Debug)]
pub struct Stopper<'a>(pub &'a AtomicBool);

impl Drop for Stopper<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What a run does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Guest to host.
    Tx,
    /// Host to guest.
    Rx,
    /// Both ways.
    Rr,
}

/// Checks that the options mean something to this mode.
fn check_mode(plan: &Plan, mode: Mode) -> Result<()> {
    let options = &plan.options;
    let refusals = [
        (options.flood && mode != Mode::Rx, "--flood is for rx"),
        (
            options.xdp == Some(Xdp::Drop) && mode != Mode::Tx,
            "--xdp drop is for tx: it drops what the guest sends",
        ),
        (
            options.requeue.is_some() && mode == Mode::Rr,
            "--requeue is for tx and rx: answers to a queue that is detached are dropped",
        ),
        (
            options.calls_on && mode == Mode::Rr,
            "--calls-on is for tx and rx: rr waits for two rings at a time",
        ),
    ];
    for (refused, why) in refusals {
        ensure!(!refused, why);
    }
    Ok(())
}

/// Opens the session of a plan, and puts driver and worker on their CPUs.
///
/// # Errors
///
/// Those of the set-up.
pub fn open(plan: &Plan, mode: Mode) -> Result<Session> {
    check_mode(plan, mode)?;
    let mut session = Session::open(&plan.session)?;
    for vring in [&mut session.rx, &mut session.tx] {
        vring.set_calls_on(plan.options.calls_on);
        vring.set_settle(Duration::from_micros(plan.options.settle));
    }
    if let Some(cpu) = plan.options.worker_cpu {
        let worker = session
            .worker
            .as_ref()
            .context("--worker-cpu: no thread named vhost-TID was found")?;
        worker
            .pin(cpu)
            .with_context(|| format!("--worker-cpu {cpu}"))?;
    }
    if let Some(cpu) = plan.options.cpu {
        worker::pin_self(cpu).with_context(|| format!("--cpu {cpu}"))?;
    }
    Ok(session)
}

/// Name of the interface at the other end of the wire.
pub fn wire_name(plan: &Plan, session: &Session) -> String {
    let own = session.device.backend.name();
    plan.options.wire.as_deref().unwrap_or(own).to_owned()
}

/// Opens the other end of the wire, for frames as the guest sends them.
///
/// # Errors
///
/// Those of [`Line`].
pub fn open_wire(plan: &Plan, session: &Session) -> Result<Wire> {
    let name = wire_name(plan, session);
    let line = if plan.options.tunnel {
        Line::bridged(&name)
    } else {
        Line::packet(&name, plan.shape.protocol(), !plan.options.flood)
    };
    let line = line.context("the other end of the wire")?;
    Ok(Wire::new(line, plan.shape))
}

/// Puts a thread of the host's side on its CPU.
///
/// # Errors
///
/// EINVAL if there is no such CPU.
pub fn pin_peer(plan: &Plan) -> Result<()> {
    match plan.options.peer_cpu {
        Some(cpu) => worker::pin_self(cpu).with_context(|| format!("--peer-cpu {cpu}")),
        None => Ok(()),
    }
}

/// What other threads than the driver's need of a session.
#[derive(Debug)]
pub struct Station {
    device: Arc<Device>,
    memory: GuestMemory,
    rings: [RingLayout; 2],
    worker: Option<Worker>,
}

impl Station {
    /// Notes where everything is.
    pub fn of(session: &Session) -> Self {
        Self {
            device: Arc::clone(&session.device),
            memory: session.memory.clone(),
            rings: [*session.rx.queue.layout(), *session.tx.queue.layout()],
            worker: session.worker.clone(),
        }
    }

    fn cpu_time(&self) -> Option<Duration> {
        self.worker.as_ref().and_then(Worker::cpu_time)
    }

    fn sleeps(&self) -> Option<u64> {
        self.worker.as_ref().and_then(Worker::sleeps)
    }

    /// Attaches the backend and runs `driver`, which returns how long it took. If the plan has it so, the backend, or its
    /// queue, is detached and attached meanwhile; the latter while `gate` lets nothing pass, as an interface drops what it
    /// has no queue for. Returns what was found wrong, if anything was.
    ///
    /// # Errors
    ///
    /// A call that the kernel refused.
    pub fn traffic(
        &self,
        plan: &Plan,
        measured: &mut Measured,
        gate: Option<&Gate>,
        driver: impl FnOnce() -> Result<Duration, Failure>,
    ) -> Result<Result<(), String>> {
        let stop = AtomicBool::new(false);
        self.device.attach()?;
        let (before, sleeps) = (self.cpu_time(), self.sleeps());
        thread::scope(|scope| {
            let stopper = Stopper(&stop);
            let stop = &stop;
            let every = plan.options.reattach.map(Duration::from_millis);
            let reattach = every.map(|every| scope.spawn(move || self.reattach(every, stop)));
            let every = plan.options.requeue.map(Duration::from_millis);
            let requeue = every.map(|every| scope.spawn(move || self.requeue(every, gate, stop)));
            let device = &self.device;
            let iommu = device.iommu.as_ref().map(|iommu| {
                let every = plan.options.take.map(Duration::from_micros);
                scope.spawn(move || iommu.serve(&device.vhost, every, stop))
            });
            mark(Mark::Start);
            let driven = finding(driver());
            mark(Mark::End);
            drop(stopper);
            let spent = self.cpu_time().zip(before);
            measured.worker_cpu = spent.map(|(after, before)| after.saturating_sub(before));
            let slept = self.sleeps().zip(sleeps);
            measured.worker_sleeps = slept.map(|(after, before)| after.saturating_sub(before));
            let reattached = finding(reattach.map_or(Ok(0), join))?;
            measured.requeued = finding(requeue.map_or(Ok(0), join))?.unwrap_or(0);
            let served = finding(iommu.map(join).transpose())?;
            let driven = driven?;
            // A device that lost its place is the reason if the driver then waited in vain.
            Ok(reattached.and_then(|count| {
                measured.reattached = count;
                measured.iommu = served?;
                measured.elapsed = driven?;
                Ok(())
            }))
        })
    }

    /// Detaches and attaches the backend every so often, until `stop`. Returns how often. It is attached in the end.
    fn reattach(&self, every: Duration, stop: &AtomicBool) -> Result<u64, Failure> {
        let mut count = 0;
        loop {
            thread::sleep(every);
            if stop.load(Ordering::Relaxed) {
                return Ok(count);
            }
            self.device.detach()?;
            for (index, ring) in [RX, TX].into_iter().zip(&self.rings) {
                self.device.reload_base(&self.memory, ring, index)?;
            }
            self.device.attach()?;
            count += 1;
        }
    }
}

impl Station {
    /// Detaches the backend's queue and attaches it again every so often, until `stop`. Returns how often.
    fn requeue(
        &self,
        every: Duration,
        gate: Option<&Gate>,
        stop: &AtomicBool,
    ) -> Result<u64, Failure> {
        let mut count = 0;
        loop {
            thread::sleep(every);
            if stop.load(Ordering::Relaxed) {
                return Ok(count);
            }
            let paused = gate.map(|gate| gate.pause(every));
            if paused.as_ref().is_some_and(Option::is_none) {
                continue;
            }
            self.device.backend.set_attached(false)?;
            self.device.backend.set_attached(true)?;
            count += 1;
        }
    }
}

/// Waits for a thread. A panic there is one here.
pub fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Tells what the run found wrong from what kept it from running.
///
/// # Errors
///
/// A call that the kernel refused is no finding about the device's traffic, and is passed on.
pub fn finding<T>(result: Result<T, Failure>) -> Result<Result<T, String>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Failure::Kernel(err)) => Err(err.into()),
        Err(failure) => Ok(Err(failure.to_string())),
    }
}
