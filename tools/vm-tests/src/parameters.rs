// SPDX-License-Identifier: GPL-2.0

//! What the module's parameters change, as lines of a call and its outcome: the same for two drivers that have the same.

use std::path::Path;

use anyhow::Result;
use vhost_load::session::SessionOptions;
use vhost_load::vring::TX;
use vhost_load::worker::Worker;
use vhost_uapi::{features, MemoryRegion};

use crate::rig::{region, Rig, BUFFER};
use crate::script::Script;

const REGION: u64 = 4096;

/// Prints the lines. With a number of `entries`, also which of more regions an address map of that many still has.
///
/// # Errors
///
/// What fails first of all that is not to be compared.
pub fn print(node: &Path, entries: Option<u64>) -> Result<()> {
    let mut script = Script::new(node);
    owners(&mut script)?;
    tables(&mut script)?;
    if let Some(entries) = entries {
        kept(&mut script, node, entries)?;
    }
    for step in script.finish() {
        println!("{}: {}", step.call, step.outcome);
    }
    Ok(())
}

fn owners(script: &mut Script) -> Result<()> {
    let vhost = script.open()?;
    script.note("kind at first", vhost.fork_from_owner());
    script.note("SET_OWNER", vhost.set_owner());
    let task = |worker: Worker| Path::new(&format!("/proc/self/task/{}", worker.tid())).exists();
    let is_task = Worker::find(&Worker::own_name()).map(task);
    script.text("the worker is of this process", format!("{is_task:?}"));
    script.note("RESET_OWNER", vhost.reset_owner());
    drop(vhost);

    let vhost = script.open()?;
    for kind in [0, 1] {
        vhost.set_fork_from_owner(kind)?;
        vhost.set_owner()?;
        script.note("RESET_OWNER", vhost.reset_owner());
        script.note("SET_OWNER after RESET_OWNER", vhost.set_owner());
        script.note(format!("kind after {kind}"), vhost.fork_from_owner());
        // Where RESET_OWNER fails the owner is still there.
        drop(vhost.reset_owner());
        if vhost.set_fork_from_owner(kind).is_err() {
            return Ok(());
        }
    }
    Ok(())
}

fn tables(script: &mut Script) -> Result<()> {
    let vhost = script.owned()?;
    for count in [0, 1, 2, 3, 9, 64, 65, 509, 510, 65535, 65536] {
        // The order in which they must be sorted again.
        let table: Vec<MemoryRegion> = (0..count).rev().map(small).collect();
        let name = format!("table of {count} regions, the highest first");
        script.note(name, vhost.set_mem_table(&table));
    }
    let whole = MemoryRegion::default();
    let wrapping = MemoryRegion {
        guest_phys_addr: u64::MAX,
        ..small(0)
    };
    for (what, table) in [
        ("the whole address space", &[whole][..]),
        ("the whole address space, twice", &[whole; 2]),
        ("one region, then the whole", &[small(1), whole]),
        ("a region that wraps first", &[wrapping, small(0), small(1)]),
        ("a region that wraps last", &[small(0), wrapping]),
    ] {
        script.note(format!("table of {what}"), vhost.set_mem_table(table));
    }
    script.note("SET_BACKEND(-1)", vhost.set_backend(0, None));
    Ok(())
}

/// The region that is `at` in a row of them; where it is in memory does not matter before there is a backend.
fn small(at: u64) -> MemoryRegion {
    MemoryRegion {
        guest_phys_addr: at * REGION,
        memory_size: REGION,
        userspace_addr: REGION,
    }
}

/// Sends a packet out of a region that is the first or the last of some.
fn kept(script: &mut Script, node: &Path, entries: u64) -> Result<()> {
    for others in [entries - 1, entries, entries + 1] {
        for first in [true, false] {
            let rig = Rig::detached(&SessionOptions {
                node: node.to_owned(),
                features: 1 << features::VERSION_1,
                ring_size: 16,
                buffer_bytes: [16 * BUFFER; 2],
                ..SessionOptions::default()
            })?;
            let own = rig.session.memory.regions().iter().map(region);
            let others_table = (0..others).map(small);
            let table: Vec<MemoryRegion> = if first {
                own.chain(others_table).collect()
            } else {
                others_table.chain(own).collect()
            };
            rig.vhost().set_mem_table(&table)?;
            rig.session.device.attach()?;
            rig.good(TX, 0, 0);
            rig.ring(TX).publish(1);
            rig.kick(TX)?;
            // Waits until the worker is through.
            rig.vhost().set_mem_table(&table)?;
            let sent = rig.ring(TX).used_idx();
            let errors = rig.errors(TX)? > 0;
            let place = if first { "before" } else { "behind" };
            script.text(
                format!("a packet from the region {place} {others} others"),
                format!("sent {sent}, error {errors}"),
            );
        }
    }
    Ok(())
}
