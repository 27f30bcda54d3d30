// SPDX-License-Identifier: GPL-2.0

//! What an open device costs: memory, and time to open, start, stop and close.

use std::io::{BufRead, BufReader, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{ensure, Context, Result};
use serde_json::{json, Value};
use vhost_driver::{Gpa, GuestMemory, RingLayout};
use vhost_uapi::{
    features, EventFd, MemoryRegion, Offload, Tap, TapOptions, TunFlags, VhostNet, VringAddr,
};

use crate::memory::Memory;

const RING: u32 = 256;
const RING_PLACE: u64 = 16 << 10;
const RINGS: u32 = 2;

/// What is in a device's hands, made before anything is measured.
struct Parts {
    tap: Tap,
    files: Vec<[EventFd; 2]>,
}

impl Parts {
    fn new() -> Result<Self> {
        let options = TapOptions {
            flags: TunFlags::default(),
            vnet_hdr_size: Some(12),
            sndbuf: i32::MAX,
            offload: Offload::None,
        };
        let files = (0..RINGS).map(|_| Ok([EventFd::new()?, EventFd::new()?]));
        Ok(Self {
            tap: Tap::create("", &options)?,
            files: files.collect::<Result<_>>()?,
        })
    }

    /// Gives the device all that it needs, and attaches the tap.
    fn start(&self, vhost: &VhostNet, memory: &GuestMemory) -> Result<()> {
        let base = memory.base();
        let uva = |gpa| memory.uva(gpa, 1).context("outside of the memory");
        vhost.set_features(1 << features::VERSION_1 | 1 << features::EVENT_IDX)?;
        vhost.set_mem_table(&[MemoryRegion {
            guest_phys_addr: base.0,
            memory_size: memory.size(),
            userspace_addr: uva(base)?,
        }])?;
        for (index, [kick, call]) in (0..).zip(&self.files) {
            let start = base + u64::from(index) * RING_PLACE;
            let layout = RingLayout::new(RING, Gpa(start.0))?;
            vhost.set_vring_num(index, RING)?;
            vhost.set_vring_base(index, 0)?;
            vhost.set_vring_addr(
                index,
                &VringAddr {
                    flags: 0,
                    desc: uva(layout.desc)?,
                    used: uva(layout.used)?,
                    avail: uva(layout.avail)?,
                    log: 0,
                },
            )?;
            vhost.set_vring_kick(index, Some(kick.as_fd()))?;
            vhost.set_vring_call(index, Some(call.as_fd()))?;
        }
        for index in 0..RINGS {
            vhost.set_backend(index, Some(self.tap.as_fd()))?;
        }
        Ok(())
    }
}

fn stop(vhost: &VhostNet) -> Result<()> {
    for index in 0..RINGS {
        vhost.set_backend(index, None)?;
    }
    Ok(())
}

/// Does something to each, and says how long it took: the median, in nanoseconds.
fn timed<T, U>(
    items: impl IntoIterator<Item = T>,
    mut each: impl FnMut(T) -> Result<U>,
) -> Result<(Vec<U>, u64)> {
    let mut times = Vec::new();
    let mut done = Vec::new();
    for item in items {
        let start = Instant::now();
        done.push(each(item)?);
        times.push(nanos(start.elapsed()));
    }
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied();
    Ok((done, median.context("no device")?))
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn open(node: &Path) -> Result<VhostNet> {
    Ok(VhostNet::open(node, true)?)
}

fn running(node: &Path, parts: &[Parts], memory: &GuestMemory) -> Result<Vec<VhostNet>> {
    let one = |parts: &Parts| {
        let vhost = open(node)?;
        vhost.set_owner()?;
        parts.start(&vhost, memory)?;
        Ok(vhost)
    };
    parts.iter().map(one).collect()
}

/// Has the kernel free what it kept of others: objects that wait to be freed, and slabs that nothing is in.
fn settle() {
    thread::sleep(Duration::from_millis(200));
    for cache in std::fs::read_dir("/sys/kernel/slab")
        .into_iter()
        .flatten()
        .flatten()
    {
        // A cache of others may go meanwhile.
        let _shrunk = std::fs::write(cache.path().join("shrink"), "1");
    }
}

fn parts(count: usize) -> Result<(Vec<Parts>, GuestMemory)> {
    let parts = (0..count).map(|_| Parts::new()).collect::<Result<_>>()?;
    let size = u64::from(RINGS) * RING_PLACE;
    let memory = GuestMemory::new(&[usize::try_from(size)?], Some(Gpa(1 << 32)))?;
    Ok((parts, memory))
}

/// Opens `count` devices and measures. Bytes and nanoseconds are for each device, but those that end in `_all_ns`.
///
/// # Errors
///
/// A call that was refused.
pub fn measure(node: &Path, count: usize) -> Result<Value> {
    ensure!(count > 0, "at least one device");
    let (parts, memory) = parts(count)?;
    // The first device of all takes what later ones find there.
    drop(running(node, parts.get(..1).unwrap_or(&[]), &memory)?);

    settle();
    let before = Memory::now()?;
    let (devices, open_ns) = timed(0..count, |_| open(node))?;
    let opened = Memory::now()?;
    let (_, owner_ns) = timed(&devices, |vhost| Ok(vhost.set_owner()?))?;
    let owned = Memory::now()?;
    let (_, start_ns) = timed(devices.iter().zip(&parts), |(vhost, parts)| {
        parts.start(vhost, &memory)
    })?;
    let started = Memory::now()?;
    let (_, stop_ns) = timed(&devices, stop)?;
    let (_, close_ns) = timed(devices, |vhost| {
        drop(vhost);
        Ok(())
    })?;

    let devices = running(node, &parts, &memory)?;
    let close_all_ns = close_at_once(devices);
    drop(parts);
    let exit_all_ns = exit(node, count)?;
    let each = |kib: u64| kib * 1024 / count as u64; // CAST: Widens.
    Ok(json!({
        "result": "OK",
        "devices": count,
        "open_bytes": each(opened.total_since(&before)),
        "owned_bytes": each(owned.total_since(&before)),
        "owned_stack_bytes": each(owned.stack_since(&before)),
        "started_bytes": each(started.total_since(&before)),
        "open_ns": open_ns,
        "owner_ns": owner_ns,
        "start_ns": start_ns,
        "stop_ns": stop_ns,
        "close_ns": close_ns,
        "close_all_ns": close_all_ns,
        "exit_all_ns": exit_all_ns,
    }))
}

/// Closes all of them at the same time, each by a thread of its own, and says how long that takes.
fn close_at_once(devices: Vec<VhostNet>) -> u64 {
    let barrier = Barrier::new(devices.len() + 1);
    thread::scope(|scope| {
        let closing = |vhost: VhostNet| {
            let barrier = &barrier;
            scope.spawn(move || {
                barrier.wait();
                drop(vhost);
            })
        };
        let threads: Vec<_> = devices.into_iter().map(closing).collect();
        let start = Instant::now();
        barrier.wait();
        for thread in threads {
            // A panic there would have been one of `drop()`, which has none.
            let _ended = thread.join();
        }
        nanos(start.elapsed())
    })
}

/// Has another process open and start as many, kills it, and says how long it takes until it is gone.
fn exit(node: &Path, count: usize) -> Result<u64> {
    let mut holder = Command::new(std::env::current_exe()?)
        .args([
            "devices",
            "--hold",
            "--count",
            &count.to_string(),
            "--device",
        ])
        .arg(node)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("a process that holds devices")?;
    let mut line = String::new();
    let out = holder.stdout.take().context("its output")?;
    BufReader::new(out).read_line(&mut line)?;
    ensure!(
        line == "ready\n",
        "a process that holds devices did not start"
    );
    let start = Instant::now();
    holder.kill()?;
    holder.wait()?;
    Ok(nanos(start.elapsed()))
}

/// Starts `count` devices, says `ready`, and keeps them until standard input ends.
///
/// # Errors
///
/// A call that was refused.
pub fn hold(node: &Path, count: usize) -> Result<()> {
    let (parts, memory) = parts(count)?;
    let devices = running(node, &parts, &memory)?;
    println!("ready");
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(devices);
    Ok(())
}
