// SPDX-License-Identifier: GPL-2.0

//! The line of results.

use anyhow::{ensure, Result};
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write;
use std::time::Duration;

use crate::check::Tally;
use crate::failure::ring_name;
use crate::inject::Injection;
use crate::iommu::Work;
use crate::plan::Plan;
use crate::session::Session;

/// Results of a run, in the order in which they are printed.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// `tx`, `rx` or `rr`.
    pub mode: &'static str,
    /// Packets that arrived; for `rr`, round trips.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Kicks written, both rings.
    pub kicks: u64,
    /// Calls read, both rings.
    pub calls: u64,
    /// Kicks for each packet.
    pub kicks_per_packet: f64,
    /// Calls for each packet.
    pub calls_per_packet: f64,
    /// From the first packet to the last.
    pub elapsed_ns: u64,
    /// Time for each packet.
    pub ns_per_packet: f64,
    /// CPU time of the worker.
    pub worker_cpu_ns: Option<u64>,
    /// How often the worker went to sleep, which is how often it was woken.
    pub worker_sleeps: Option<u64>,
    /// Time that both vrings polled for, by the device's own counters.
    pub polled_ns: Option<u64>,
    /// How often a call began a handler, both rings.
    pub handler_runs: u64,
    /// Calls that came while the handler of another was active, both rings.
    pub calls_inside: u64,
    /// Calls that came while handlers settled, and were under way: both rings.
    pub calls_under_way: u64,
    /// Kicks of the tx ring.
    pub tx_kicks: u64,
    /// Calls of the tx ring.
    pub tx_calls: u64,
    /// Avail index of the tx ring.
    pub tx_avail_idx: u16,
    /// Used index of the tx ring.
    pub tx_used_idx: u16,
    /// Kicks of the rx ring.
    pub rx_kicks: u64,
    /// Calls of the rx ring.
    pub rx_calls: u64,
    /// Avail index of the rx ring.
    pub rx_avail_idx: u16,
    /// Used index of the rx ring.
    pub rx_used_idx: u16,
    /// How often the backend was detached and attached.
    pub reattached: u64,
    /// How often the backend's queue was detached and attached.
    pub requeued: u64,
    /// Misses that the IOMMU answered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub misses: Option<u64>,
    /// Pages that it took away.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken: Option<u64>,
    /// Median of the round trip times.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_ns: Option<u64>,
    /// The time that 99 of 100 round trips do not exceed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_ns: Option<u64>,
    /// The longest round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ns: Option<u64>,
    /// Frames that others sent.
    pub foreign: u64,
    /// Frames that the capturing socket had no room for: not the device's fault.
    pub capture_drops: u64,
    /// `yes` if payloads were checked.
    pub verified: &'static str,
    /// Packets that never came.
    pub lost: u64,
    /// Packets that came late.
    pub reordered: u64,
    /// Packets that came changed.
    pub corrupted: u64,
    /// Packets that came twice.
    pub duplicated: u64,
    /// `OK` or `FAILED`.
    pub result: &'static str,
    /// The first violation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub violation: Option<String>,
}

/// What a run measured, apart from its session's own counters.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// Checks of the payload.
    pub tally: Tally,
    /// From first to last.
    pub elapsed: Duration,
    /// CPU time of the worker.
    pub worker_cpu: Option<Duration>,
    /// How often the worker went to sleep.
    pub worker_sleeps: Option<u64>,
    /// Reattachments.
    pub reattached: u64,
    /// Reattachments of the queue.
    pub requeued: u64,
    /// What the IOMMU did, if there is one.
    pub iommu: Option<Work>,
    /// Frames the capture had no room for.
    pub capture_drops: u64,
    /// Round trip times.
    pub latencies: Vec<Duration>,
}

impl Report {
    /// Puts a run's results together.
    ///
    /// # Errors
    ///
    /// A fault that was to be made and was not found: then the check proves nothing. Those of reading the eventfds.
    pub fn new(
        mode: &'static str,
        plan: &Plan,
        session: &mut Session,
        mut measured: Measured,
    ) -> Result<Self> {
        for vring in [&mut session.rx, &mut session.tx] {
            vring.take_calls()?;
            let (name, errors) = (ring_name(vring.index), vring.take_errors()?);
            if errors > 0 {
                measured.tally.violation(|| {
                    format!("error: the device signalled err {errors} times on the {name} ring")
                });
            }
        }
        if let Some(Injection { fault, at }) = plan.injection {
            ensure!(
                measured.tally.first.is_some(),
                "the fault ({fault:?} of packet {at}) was not found: were so many packets sent?"
            );
        }
        measured.latencies.sort_unstable();
        Ok(Self::of_parts(mode, plan, session, measured))
    }

    fn of_parts(mode: &'static str, plan: &Plan, session: &Session, measured: Measured) -> Self {
        let (rx, tx, tally) = (&session.rx, &session.tx, measured.tally);
        let packets = tally.received;
        let (kicks, calls) = (rx.kicks() + tx.kicks(), rx.calls() + tx.calls());
        let elapsed_ns = nanos(measured.elapsed);
        let (rx_handler, tx_handler) = (rx.handler(), tx.handler());
        let counter = |key| session.device.counter(key);
        let polled = counter("poll-ns-won").zip(counter("poll-ns-lost"));
        let percent = |percent| percentile(&measured.latencies, percent);
        Self {
            mode,
            packets,
            bytes: packets * plan.shape.size as u64, // CAST: Widens.
            kicks,
            calls,
            kicks_per_packet: per(kicks, packets),
            calls_per_packet: per(calls, packets),
            elapsed_ns,
            ns_per_packet: per(elapsed_ns, packets),
            worker_cpu_ns: measured.worker_cpu.map(nanos),
            worker_sleeps: measured.worker_sleeps,
            polled_ns: polled.map(|(won, lost)| won + lost),
            handler_runs: rx_handler.runs + tx_handler.runs,
            calls_inside: rx_handler.calls_inside + tx_handler.calls_inside,
            calls_under_way: rx_handler.calls_under_way + tx_handler.calls_under_way,
            tx_kicks: tx.kicks(),
            tx_calls: tx.calls(),
            tx_avail_idx: tx.queue.avail_idx(),
            tx_used_idx: tx.queue.used_idx(),
            rx_kicks: rx.kicks(),
            rx_calls: rx.calls(),
            rx_avail_idx: rx.queue.avail_idx(),
            rx_used_idx: rx.queue.used_idx(),
            reattached: measured.reattached,
            requeued: measured.requeued,
            misses: measured.iommu.map(|iommu| iommu.misses),
            taken: measured.iommu.map(|iommu| iommu.taken),
            p50_ns: percent(50),
            p99_ns: percent(99),
            max_ns: percent(100),
            foreign: tally.foreign,
            capture_drops: measured.capture_drops,
            verified: if plan.options.no_verify { "no" } else { "yes" },
            lost: tally.lost,
            reordered: tally.reordered,
            corrupted: tally.corrupted,
            duplicated: tally.duplicated,
            result: if tally.first.is_none() {
                "OK"
            } else {
                "FAILED"
            },
            violation: tally.first,
        }
    }

    /// Whether no check failed.
    pub fn is_ok(&self) -> bool {
        self.violation.is_none()
    }

    /// The results as JSON.
    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).unwrap_or(Value::Null)
    }

    /// The results as one line of `key=value`, which ends with OK or FAILED.
    pub fn to_line(&self) -> String {
        let mut line = String::new();
        let json = self.to_json();
        let shown = |key: &str| key != "violation";
        for (key, value) in json
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(key, _)| shown(key))
        {
            let separator = if line.is_empty() { "" } else { " " };
            // Writing to a string cannot fail.
            let _ = match value {
                Value::String(text) => write!(line, "{separator}{key}={text}"),
                Value::Number(number) if number.is_f64() => {
                    write!(
                        line,
                        "{separator}{key}={:.5}",
                        number.as_f64().unwrap_or(0.0)
                    )
                }
                Value::Null => write!(line, "{separator}{key}=unknown"),
                other => write!(line, "{separator}{key}={other}"),
            };
        }
        line
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// `part` for each of `whole`, 0 if there is none.
#[expect(clippy::float_arithmetic, reason = "a ratio for people to read")]
fn per(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64 // CAST: Exact up to 2^53.
}

fn percentile(sorted: &[Duration], percent: usize) -> Option<u64> {
    let last = sorted.len().checked_sub(1)?;
    let rank = (sorted.len() * percent)
        .div_ceil(100)
        .saturating_sub(1)
        .min(last);
    sorted.get(rank).copied().map(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_ranks() {
        let sorted: Vec<Duration> = (1..=200).map(Duration::from_nanos).collect();
        assert_eq!(percentile(&sorted, 50), Some(100));
        assert_eq!(percentile(&sorted, 99), Some(198));
        assert_eq!(percentile(&sorted, 100), Some(200));
        assert_eq!(percentile(&[], 50), None);
    }

    #[test]
    fn ratio_of_nothing_is_zero() {
        assert_eq!(per(0, 0).to_bits(), 0f64.to_bits());
        assert!((per(1, 4) - 0.25).abs() < f64::EPSILON);
    }
}
