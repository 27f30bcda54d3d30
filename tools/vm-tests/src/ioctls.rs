// SPDX-License-Identifier: GPL-2.0

//! The control calls of two drivers, C's and another: the same effects, the same errno, in the same order of checks.

mod device;
mod iotlb;
mod vrings;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{ensure, Result};
use vhost_uapi::numbers;

use crate::report::{Report, Test};
use crate::script::{Script, Step};

/// Where the drivers are known to differ, and why. Each must differ: the list is no longer than need be.
const KNOWN: &[(&str, &str)] = &[
    (
        "foreign process, root: VHOST_SET_VRING_BUSYLOOP_TIMEOUT of",
        "network administrators may tune any device",
    ),
    (
        "foreign process, root: VHOST_GET_VRING_BUSYLOOP_TIMEOUT of",
        "network administrators may tune any device",
    ),
    (
        "foreign process, root: window",
        "network administrators may tune any device",
    ),
    (
        "after others: window",
        "network administrators may tune any device",
    ),
];

/// Numbers that are known, and some that are of no vhost-net call.
const REQUESTS: &[(&str, u64)] = &[
    ("VHOST_GET_FEATURES", numbers::GET_FEATURES),
    ("VHOST_SET_FEATURES", numbers::SET_FEATURES),
    ("VHOST_SET_OWNER", numbers::SET_OWNER),
    ("VHOST_RESET_OWNER", numbers::RESET_OWNER),
    ("VHOST_SET_MEM_TABLE", numbers::SET_MEM_TABLE),
    ("VHOST_SET_LOG_BASE", numbers::SET_LOG_BASE),
    ("VHOST_SET_LOG_FD", numbers::SET_LOG_FD),
    ("VHOST_NEW_WORKER", numbers::NEW_WORKER),
    ("VHOST_FREE_WORKER", numbers::FREE_WORKER),
    ("VHOST_SET_VRING_NUM", numbers::SET_VRING_NUM),
    ("VHOST_SET_VRING_ADDR", numbers::SET_VRING_ADDR),
    ("VHOST_SET_VRING_BASE", numbers::SET_VRING_BASE),
    ("VHOST_GET_VRING_BASE", numbers::GET_VRING_BASE),
    ("VHOST_SET_VRING_ENDIAN", numbers::SET_VRING_ENDIAN),
    ("VHOST_GET_VRING_ENDIAN", numbers::GET_VRING_ENDIAN),
    ("VHOST_ATTACH_VRING_WORKER", numbers::ATTACH_VRING_WORKER),
    ("VHOST_GET_VRING_WORKER", numbers::GET_VRING_WORKER),
    ("VHOST_SET_VRING_KICK", numbers::SET_VRING_KICK),
    ("VHOST_SET_VRING_CALL", numbers::SET_VRING_CALL),
    ("VHOST_SET_VRING_ERR", numbers::SET_VRING_ERR),
    (
        "VHOST_SET_VRING_BUSYLOOP_TIMEOUT",
        numbers::SET_VRING_BUSYLOOP_TIMEOUT,
    ),
    (
        "VHOST_GET_VRING_BUSYLOOP_TIMEOUT",
        numbers::GET_VRING_BUSYLOOP_TIMEOUT,
    ),
    ("VHOST_SET_BACKEND_FEATURES", numbers::SET_BACKEND_FEATURES),
    ("VHOST_GET_BACKEND_FEATURES", numbers::GET_BACKEND_FEATURES),
    ("VHOST_NET_SET_BACKEND", numbers::NET_SET_BACKEND),
    ("VHOST_GET_FEATURES_ARRAY", numbers::GET_FEATURES_ARRAY),
    ("VHOST_SET_FEATURES_ARRAY", numbers::SET_FEATURES_ARRAY),
    ("VHOST_SET_FORK_FROM_OWNER", numbers::SET_FORK_FROM_OWNER),
    ("VHOST_GET_FORK_FROM_OWNER", numbers::GET_FORK_FROM_OWNER),
    ("VHOST_SCSI_SET_ENDPOINT", 0x40E8_AF40),
    ("VHOST_VSOCK_SET_RUNNING", 0x4004_AF61),
    ("VHOST_VDPA_GET_DEVICE_ID", 0x8004_AF70),
    ("SET_VRING_NUM of another size", 0x4010_AF10),
    ("TCGETS", 0x5401),
    ("FIONREAD", 0x541B),
    ("FIOASYNC", 0x5452),
];

/// Compares `node` with `reference`, one result for each group of calls.
pub fn run(reference: &Path, node: &Path, report: &mut Report) {
    type Group = (&'static str, fn(&mut Script) -> Result<()>);
    let groups: [Group; 16] = [
        ("every call, without and with an owner", device::every_call),
        ("bad indices and pointers", device::arguments),
        ("owner", device::owner),
        ("kinds of worker", device::kinds),
        ("features", device::features),
        ("feature arrays", device::feature_arrays),
        ("memory table", vrings::mem_table),
        ("ring sizes and bases", vrings::ring_numbers),
        ("ring addresses", vrings::ring_addresses),
        ("eventfds", vrings::eventfds),
        ("backends", vrings::backends),
        ("backends with bad rings", vrings::bad_rings),
        ("calls on a running device", vrings::running),
        ("messages of the IOTLB", iotlb::messages),
        ("rings and the IOTLB", iotlb::platform),
        ("other processes", crate::foreign::notes),
    ];
    let seen = Mutex::new(BTreeSet::new());
    let tests: Vec<Test<'_>> = groups
        .into_iter()
        .map(|(name, group)| {
            let seen = &seen;
            Test::new(name, move || {
                let steps = |node| {
                    let mut script = Script::new(node);
                    group(&mut script)?;
                    anyhow::Ok(script.finish())
                };
                let mut known = seen.lock().expect("nobody panics with it");
                compare(&steps(reference)?, &steps(node)?, &mut known)
            })
        })
        .collect();
    report.run_on(1, &tests);
    drop(tests);

    let seen = seen.into_inner().unwrap_or_default();
    let gone: Vec<&str> = KNOWN
        .iter()
        .map(|(prefix, _)| *prefix)
        .filter(|prefix| !seen.contains(prefix))
        .collect();
    let result = if gone.is_empty() {
        Ok(())
    } else {
        Err(anyhow::anyhow!("these do not differ any more: {gone:?}"))
    };
    report.result("known differences are there", &result);
}

/// Fails with all steps that came out differently. Notes the known differences that were seen.
fn compare(wanted: &[Step], found: &[Step], known: &mut BTreeSet<&'static str>) -> Result<()> {
    ensure!(!wanted.is_empty(), "nothing was called");
    ensure!(wanted.len() == found.len(), "one script is longer");
    let mut lines = Vec::new();
    for (wanted, found) in wanted.iter().zip(found) {
        ensure!(
            wanted.call == found.call,
            "the scripts part at {wanted:?} and {found:?}"
        );
        if wanted.outcome == found.outcome {
            continue;
        }
        match KNOWN.iter().find(|(call, _)| found.call.contains(call)) {
            Some((call, _)) => {
                known.insert(*call);
            }
            None => lines.push(format!(
                "{}: {}, not {}",
                found.call, found.outcome, wanted.outcome
            )),
        }
    }
    ensure!(
        lines.is_empty(),
        "{} of {} calls differ:\n#     {}",
        lines.len(),
        wanted.len(),
        lines.join("\n#     ")
    );
    Ok(())
}
