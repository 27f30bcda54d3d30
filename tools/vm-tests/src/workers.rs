// SPDX-License-Identifier: GPL-2.0

//! Workers of both kinds: what they are, where they are, and what keeps a process from having one.

mod cgroup;
mod process;

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use nix::errno::Errno;
use nix::unistd::gettid;
use vhost_load::worker::Worker;
use vhost_uapi::{EventFd, MemoryRegion, VhostNet};

use crate::dice::Dice;
use crate::patience::wait_for;
use crate::report::{Report, Test};
use crate::stop;

pub use process::{main, Role};

/// What a worker's thread belongs to, as `VHOST_SET_FORK_FROM_OWNER` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Kernel = 0,
    Owner = 1,
}

const KINDS: [(Kind, &str); 2] = [(Kind::Owner, "task"), (Kind::Kernel, "kthread")];

/// Runs the tests whose names contain `only`. Their cgroups are below `/sys/fs/cgroup`, a cgroup2 file system.
pub fn run(node: &Path, only: &str, report: &mut Report) {
    type One = (&'static str, fn(&Path, Kind) -> Result<()>);
    let each: [One; 7] = [
        ("its name, its process, its end", identity),
        ("it is in the owner's cgroups", |node, kind| {
            cgroup::same(node, kind, false)
        }),
        (
            "it is in the cgroups of the thread that calls",
            |node, kind| cgroup::same(node, kind, true),
        ),
        (
            "no process has room for a thread: ENOMEM, then all is well",
            full,
        ),
        (
            "its cgroup has no room for a thread: only a task counts",
            cgroup::full,
        ),
        ("owners killed at any moment: no worker is left", killed),
        ("the memory of a killed owner goes with its devices", memory),
    ];
    let mut tests = Vec::new();
    for (kind, name) in KINDS {
        for (what, test) in each {
            let name = format!("{name}: {what}");
            tests.push(Test::new(name, move || test(node, kind)));
        }
    }
    tests.push(Test::new(
        "a user at the limit of processes may have a kthread only",
        move || limited(node),
    ));
    tests.push(Test::new(
        "threads that make all calls in any order",
        move || any_order(node),
    ));
    tests.push(Test::new(
        "the kind is changed while owners come and go",
        move || raced(node),
    ));
    tests.retain(|test| test.name.contains(only));
    report.run_on(1, &tests);
    report.result("no worker is left", &stop::expect_no_worker());
}

fn open(node: &Path, kind: Kind) -> Result<VhostNet> {
    let vhost = VhostNet::open(node, true)?;
    vhost.set_fork_from_owner(kind as u8)?; // CAST: 0 or 1.
    Ok(vhost)
}

/// Becomes the owner; returns the worker.
fn own(vhost: &VhostNet) -> Result<Worker> {
    vhost.set_owner()?;
    Worker::find(&Worker::own_name()).context("there is no worker of this thread's name")
}

/// Lines of `/proc/TID/status` and the like, by key.
fn keys(path: &str) -> Result<BTreeMap<String, String>> {
    let text = fs::read_to_string(path).with_context(|| path.to_owned())?;
    let line = |line: &str| {
        let (key, value) = line.split_once(':')?;
        Some((key.to_owned(), value.trim().to_owned()))
    };
    Ok(text.lines().filter_map(line).collect())
}

/// Called by a thread that is not the process's first, as its id is what the name has.
fn identity(node: &Path, kind: Kind) -> Result<()> {
    let test = || -> Result<()> {
        let vhost = open(node, kind)?;
        let worker = own(&vhost)?;
        let (tid, own_pid) = (worker.tid(), std::process::id().to_string());
        ensure!(gettid().to_string() != own_pid, "this is the first thread");

        let status = keys(&format!("/proc/{tid}/status"))?;
        let get = |key: &str| status.get(key).map(String::as_str);
        let listed = Path::new(&format!("/proc/self/task/{tid}")).exists();
        let found = (get("Tgid"), get("Kthread"), listed);
        let tid_text = tid.to_string();
        let wanted = match kind {
            Kind::Owner => (Some(own_pid.as_str()), Some("0"), true),
            Kind::Kernel => (Some(tid_text.as_str()), Some("1"), false),
        };
        ensure!(
            found == wanted,
            "(Tgid, Kthread, of this process) is {found:?}, not {wanted:?}"
        );
        if kind == Kind::Kernel {
            let parent = get("PPid");
            ensure!(
                parent == Some("2"),
                "the parent is {parent:?}, not kthreadd"
            );
        }
        expect_shown(&vhost, tid)?;

        vhost.reset_owner()?;
        stop::expect_gone(&worker)?;
        expect_shown(&vhost, 0)?;
        vhost.set_fork_from_owner(kind as u8)?; // CAST: 0 or 1.
        let worker = own(&vhost)?;
        drop(vhost);
        stop::expect_gone(&worker)?;
        Ok(())
    };
    thread::scope(|scope| scope.spawn(test).join())
        .unwrap_or_else(|_| bail!("the thread that owns the device panicked"))
}

/// Checks what fdinfo says of the worker, if the driver prints it.
fn expect_shown(vhost: &VhostNet, tid: i32) -> Result<()> {
    let path = format!("/proc/self/fdinfo/{}", vhost.as_fd().as_raw_fd());
    let shown = || Some(keys(&path).ok()?.get("vhost-worker")?.parse() == Ok(tid));
    if shown().is_none() {
        return Ok(());
    }
    // A thread says who it is when it runs first.
    wait_for(|| shown() == Some(true)).with_context(|| format!("{path} does not name {tid}"))
}

/// The system has as many threads as it may have.
fn full(node: &Path, kind: Kind) -> Result<()> {
    const LIMIT: &str = "/proc/sys/kernel/threads-max";
    const LEAST: &str = "20";
    let vhost = open(node, kind)?;
    let before = fs::read_to_string(LIMIT)?;
    fs::write(LIMIT, LEAST)?;
    let refused = vhost.set_owner();
    fs::write(LIMIT, before)?;
    expect_refused(&vhost, &refused, kind)
}

/// `VHOST_SET_OWNER` must have failed, and have left the device as it was.
fn expect_refused(vhost: &VhostNet, refused: &vhost_uapi::Result, kind: Kind) -> Result<()> {
    let errno = refused.as_ref().err().map(|err| err.errno);
    ensure!(
        errno == Some(Errno::ENOMEM),
        "SET_OWNER without room answers {errno:?}"
    );
    let base = vhost.vring_base(0).map_err(|err| err.errno);
    ensure!(
        base == Err(Errno::EPERM),
        "GET_VRING_BASE after that: {base:?}"
    );
    let now = vhost.fork_from_owner()?;
    ensure!(now == kind as u8, "the kind is {now} now"); // CAST: 0 or 1.
    let worker = own(vhost)?;
    vhost.set_vring_num(0, 64)?;
    vhost.reset_owner()?;
    stop::expect_gone(&worker)?;
    Ok(())
}

/// Starts a process that has the device.
fn spawn(vhost: &VhostNet, kind: Kind, role: Role) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("worker-process").arg(role.name());
    command.arg((kind as u8).to_string()); // CAST: 0 or 1.
    command.stdin(vhost.as_fd().try_clone_to_owned()?);
    if role == Role::Limited {
        command.uid(process::NOBODY);
    }
    let mut child = command.stdout(Stdio::piped()).spawn()?;
    if role != Role::Limited {
        process::expect_ready(&mut child)?;
    }
    Ok(child)
}

/// Two processes become the owner in turn, as they can; both are killed, sooner or later.
fn killed(node: &Path, kind: Kind) -> Result<()> {
    const ROUNDS: u32 = 12;
    for round in 0..ROUNDS {
        let vhost = open(node, kind)?;
        let mut processes = [
            spawn(&vhost, kind, Role::Cycle)?,
            spawn(&vhost, kind, Role::Cycle)?,
        ];
        for process in &mut processes {
            thread::sleep(Duration::from_micros(u64::from(round) * 300));
            process.kill()?;
            process.wait()?;
        }
        // It may have an owner that is dead; nothing waits for that one.
        vhost.fork_from_owner()?;
        match vhost.set_owner().map_err(|err| err.errno) {
            Ok(()) | Err(Errno::EBUSY) => {}
            Err(errno) => bail!("SET_OWNER answers {errno} in round {round}"),
        }
        drop(vhost);
        wait_for(|| stop::expect_no_worker().is_ok())
            .or_else(|_| stop::expect_no_worker())
            .with_context(|| format!("round {round}"))?;
    }
    Ok(())
}

/// An owner of two devices, with much memory, is killed while another process has one of them; then that one closes it.
fn memory(node: &Path, kind: Kind) -> Result<()> {
    let used = || -> Result<u64> {
        let text = fs::read_to_string("/proc/vmstat")?;
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("nr_anon_pages "));
        Ok(line.context("no nr_anon_pages in /proc/vmstat")?.parse()?)
    };
    const SLACK: u64 = process::PAGES / 4;
    for _ in 0..3 {
        let before = used()?;
        let vhost = open(node, kind)?;
        let mut owner = spawn(&vhost, kind, Role::Large)?;
        let with = used()?;
        ensure!(
            with > before + process::PAGES - SLACK,
            "the owner has no memory: {before} pages before, {with} with it"
        );
        owner.kill()?;
        owner.wait()?;
        drop(vhost);
        wait_for(|| used().is_ok_and(|now| now < before + SLACK))
            .with_context(|| format!("the owner's memory is not freed: {before}, {:?}", used()))?;
    }
    Ok(())
}

/// A user who may have one process, and is one.
fn limited(node: &Path) -> Result<()> {
    let vhost = open(node, Kind::Owner)?;
    let child = spawn(&vhost, Kind::Owner, Role::Limited)?;
    let output = child.wait_with_output()?;
    let text = String::from_utf8(output.stdout)?;
    const WANTED: &str = "task ENOMEM, owner EPERM, kthread 0, reset 0, task with room 0\n";
    ensure!(text == WANTED, "{text:?}, not {WANTED:?}");
    Ok(())
}

/// Calls that others make meanwhile are refused, and break nothing.
fn any_order(node: &Path) -> Result<()> {
    const THREADS: u64 = 4;
    const CALLS: u32 = 400;
    let vhost = open(node, Kind::Owner)?;
    let kick = EventFd::new()?;
    let calls = |thread: u64| -> Result<()> {
        let mut dice = Dice::new(thread);
        for _ in 0..CALLS {
            let random = dice.bits();
            let index = u32::from(random & 1 << 32 != 0);
            let result = match random >> 40 & 7 {
                0 | 1 => vhost.set_owner(),
                2 => vhost.reset_owner(),
                3 => vhost.set_fork_from_owner(index as u8), // CAST: 0 or 1.
                4 => vhost.set_mem_table(&[MemoryRegion {
                    memory_size: 4096,
                    ..MemoryRegion::default()
                }]),
                5 => vhost.set_vring_kick(index, Some(kick.as_fd())),
                6 => kick.signal(),
                _ => vhost.set_backend(index, None),
            };
            match result.map_err(|err| err.errno) {
                Ok(()) | Err(Errno::EPERM | Errno::EBUSY | Errno::EFAULT) => {}
                Err(errno) => bail!("a call answers {errno}"),
            }
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                scope.spawn({
                    let calls = &calls;
                    move || calls(thread)
                })
            })
            .collect();
        let panicked = |_| bail!("a thread panicked");
        let mut results = threads.into_iter().map(|thread| thread.join());
        results.try_for_each(|result| result.unwrap_or_else(panicked))
    })?;
    // Without an owner by now, or with this process.
    drop(vhost.reset_owner());
    let worker = own(&vhost)?;
    drop(vhost);
    stop::expect_gone(&worker)
}

/// `VHOST_SET_FORK_FROM_OWNER` by another thread: it is refused, or the next owner has what it says.
fn raced(node: &Path) -> Result<()> {
    const ROUNDS: usize = 150;
    let vhost = open(node, Kind::Owner)?;
    let done = AtomicBool::new(false);
    let change = || -> Result<usize> {
        let mut refused = 0;
        for kind in (0..=1).cycle() {
            match vhost.set_fork_from_owner(kind).map_err(|err| err.errno) {
                Ok(()) => {}
                Err(Errno::EBUSY) => refused += 1,
                Err(errno) => bail!("SET_FORK_FROM_OWNER answers {errno}"),
            }
            if done.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(refused)
    };
    let cycle = || -> Result<[usize; 2]> {
        let mut seen = [0; 2];
        for _ in 0..ROUNDS {
            let worker = own(&vhost)?;
            let kind = usize::from(vhost.fork_from_owner()?);
            let task = Path::new(&format!("/proc/self/task/{}", worker.tid())).exists();
            ensure!(task == (kind == 1), "kind {kind}, of this process: {task}");
            seen[kind] += 1;
            vhost.reset_owner()?;
            stop::expect_gone(&worker)?;
        }
        Ok(seen)
    };
    thread::scope(|scope| {
        let changer = scope.spawn(change);
        let seen = cycle();
        done.store(true, Ordering::Relaxed);
        let refused = changer.join();
        let refused = refused.unwrap_or_else(|_| bail!("the thread that changes it panicked"))?;
        let seen = seen?;
        ensure!(
            refused > 0 && seen.iter().all(|count| *count > 0),
            "nothing was raced: {refused} refused, kinds seen {seen:?}"
        );
        Ok(())
    })
}
