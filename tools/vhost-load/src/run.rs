// SPDX-License-Identifier: GPL-2.0

//! What all modes share: set-up, the threads beside the driver, the end.

use anyhow::{Context, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;
use vhost_driver::{GuestMemory, RingLayout};

use crate::failure::Failure;
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

/// Opens the session of a plan, and puts driver and worker on their CPUs.
///
/// # Errors
///
/// Those of the set-up.
pub fn open(plan: &Plan) -> Result<Session> {
    let session = Session::open(&plan.session)?;
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
    let tap = session.device.tap.name();
    plan.options.wire.as_deref().unwrap_or(tap).to_owned()
}

/// Opens the other end of the wire, for frames as the guest sends them.
///
/// # Errors
///
/// Those of [`Wire::open`].
pub fn open_wire(plan: &Plan, session: &Session) -> Result<Wire> {
    let wire = Wire::open(&wire_name(plan, session), plan.shape);
    wire.context("the other end of the wire")
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

    /// Attaches the backend and runs `driver`, which returns how long it took. If the plan has it so, the backend is
    /// detached and attached meanwhile. Returns what was found wrong, if anything was.
    ///
    /// # Errors
    ///
    /// A call that the kernel refused.
    pub fn traffic(
        &self,
        plan: &Plan,
        measured: &mut Measured,
        driver: impl FnOnce() -> Result<Duration, Failure>,
    ) -> Result<Result<(), String>> {
        let stop = AtomicBool::new(false);
        self.device.attach()?;
        let before = self.cpu_time();
        thread::scope(|scope| {
            let stopper = Stopper(&stop);
            let every = plan.options.reattach.map(Duration::from_millis);
            let reattach = every.map(|every| {
                let stop = &stop;
                scope.spawn(move || self.reattach(every, stop))
            });
            let driven = finding(driver());
            drop(stopper);
            let spent = self.cpu_time().zip(before);
            measured.worker_cpu = spent.map(|(after, before)| after.saturating_sub(before));
            let reattached = finding(reattach.map_or(Ok(0), join))?;
            let driven = driven?;
            // A device that lost its place is the reason if the driver then waited in vain.
            Ok(reattached.and_then(|count| {
                measured.reattached = count;
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
