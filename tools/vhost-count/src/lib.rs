// SPDX-License-Identifier: GPL-2.0

//! A QEMU plugin that counts the instructions that the guest's kernel executes, each by its address.
//!
//! Counts start and end at marks: no-operations with a number that `vhost-load` executes before and after its traffic
//! (`vhost_uapi::mark`). At each end a file is written to the folder that the argument `out=FOLDER` names: `0`, `1`, and
//! so on. Its lines, addresses in hexadecimal digits:
//!
//! - `i ADDRESS COUNT`: an instruction of the kernel or one of its modules, and how often it was executed;
//! - `s ADDRESS COUNT`: one that repeats itself (`rep movsb` and its kind): each repetition counts;
//! - `c CALLER ROOT COUNT REPEATED`: code of a module, the block at CALLER, went to ROOT in the kernel proper, and what ran
//!   from there on in the kernel proper, until a module ran again; REPEATED of them as above;
//! - `u COUNT`: instructions of processes.
//!
//! It takes one thread for all virtual CPUs (`scripts/vm --count`), without KASLR.

mod qemu;

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use qemu::{Insn, Translation};

/// The kernel proper starts here, its modules follow: x86-64 without KASLR.
const KERNEL: u64 = 0xffff_ffff_8000_0000;
const MODULES: u64 = 0xffff_ffff_c000_0000;
/// `nop dword ptr [rax + 0x766e72NN]`: NN is 1 at a start, 2 at an end.
const MARK: [u8; 3] = [0x0f, 0x1f, 0x80];
const MARK_NAME: [u8; 3] = [0x72, 0x6e, 0x76];
const CPUS: usize = 64;

static OUT: OnceLock<PathBuf> = OnceLock::new();
static TABLES: OnceLock<Mutex<Tables>> = OnceLock::new();

thread_local! {
    static LAST: [Cell<Last>; CPUS] = const { [const { Cell::new(Last { zone: Zone::Process, start: 0, entry: None }) }; CPUS] };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Zone {
    Process,
    Kernel,
    Module,
}

fn zone(address: u64) -> Zone {
    match address {
        MODULES.. => Zone::Module,
        KERNEL.. => Zone::Kernel,
        _ => Zone::Process,
    }
}

/// Instructions that are executed one after the other, to the last.
#[derive(Debug)]
struct Block {
    zone: Zone,
    addresses: Vec<u64>,
    /// The last one repeats itself, and each repetition is the execution of a block.
    repeats: bool,
    executed: AtomicU64,
}

/// From where the kernel proper was entered, and what ran then.
#[derive(Debug, Default)]
struct Entry {
    executed: AtomicU64,
    repeated: AtomicU64,
}

#[derive(Debug, Default)]
struct Tables {
    blocks: HashMap<Vec<u64>, &'static Block>,
    entries: HashMap<(u64, u64), &'static Entry>,
    files: usize,
}

impl Tables {
    fn entry(&mut self, caller: u64, root: u64) -> &'static Entry {
        let entry = self.entries.entry((caller, root));
        entry.or_insert_with(|| Box::leak(Box::default()))
    }
}

/// What a virtual CPU executed last.
#[derive(Clone, Copy, Debug)]
struct Last {
    zone: Zone,
    start: u64,
    entry: Option<&'static Entry>,
}

fn tables() -> MutexGuard<'static, Tables> {
    let tables = TABLES.get_or_init(Mutex::default);
    tables.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One thread counts, so this need not be one atomic operation.
fn add(counter: &AtomicU64, count: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(count),
        Ordering::Relaxed,
    );
}

/// Takes QEMU's arguments.
fn start(arguments: &[String]) -> Result<(), String> {
    let out = match arguments {
        [one] => one.strip_prefix("out="),
        _ => None,
    };
    let out = PathBuf::from(out.ok_or("the one argument is out=FOLDER")?);
    if !out.is_dir() {
        return Err(format!("out: {} is no folder", out.display()));
    }
    OUT.set(out).map_err(|_| "loaded twice".to_owned())
}

fn repeats(insn: &Insn) -> bool {
    matches!(
        insn.bytes(),
        [0xf2 | 0xf3, 0xa4..=0xa7 | 0xaa..=0xaf] | [0xf2 | 0xf3, 0x48, 0xa4..=0xa7 | 0xaa..=0xaf]
    )
}

fn mark_of(insn: &Insn) -> Option<u8> {
    let (code, rest) = insn.bytes().split_at_checked(MARK.len())?;
    let (number, name) = rest.split_first()?;
    (code == MARK && name == MARK_NAME).then_some(*number)
}

/// QEMU has translated a block.
fn translated(block: &Translation) {
    let insns = block.insns();
    let addresses: Vec<u64> = insns.iter().map(Insn::address).collect();
    let Some(&first) = addresses.first() else {
        return;
    };
    let zone = zone(first);
    if zone == Zone::Process {
        for insn in &insns {
            match mark_of(insn) {
                Some(1) => insn.on_execution(&(), |_, ()| begin()),
                Some(2) => insn.on_execution(&(), |_, ()| end()),
                _ => {}
            }
        }
    }
    let repeats = insns.last().is_some_and(repeats);
    let known: &'static Block = tables().blocks.entry(addresses.clone()).or_insert_with(|| {
        Box::leak(Box::new(Block {
            zone,
            addresses,
            repeats,
            executed: AtomicU64::new(0),
        }))
    });
    block.on_execution(known, executed);
}

/// A block is about to be executed.
fn executed(cpu: usize, block: &'static Block) {
    add(&block.executed, 1);
    LAST.with(|cpus| {
        let Some(last) = cpus.get(cpu) else { return };
        let before = last.get();
        let start = block.addresses.first().copied().unwrap_or(0);
        let entry = match (block.zone, before.zone) {
            (Zone::Kernel, Zone::Module) => Some(tables().entry(before.start, start)),
            (Zone::Kernel, _) => before.entry,
            _ => None,
        };
        if let Some(entry) = entry {
            add(&entry.executed, block.addresses.len() as u64); // CAST: Widens.
            add(&entry.repeated, u64::from(block.repeats));
        }
        last.set(Last {
            zone: block.zone,
            start,
            entry,
        });
    });
}

/// Traffic starts.
fn begin() {
    let tables = tables();
    for block in tables.blocks.values() {
        block.executed.store(0, Ordering::Relaxed);
    }
    for entry in tables.entries.values() {
        entry.executed.store(0, Ordering::Relaxed);
        entry.repeated.store(0, Ordering::Relaxed);
    }
}

/// Traffic ends: writes what was counted.
fn end() {
    let mut tables = tables();
    let text = listing(&tables);
    let number = tables.files;
    tables.files += 1;
    let Some(path) = OUT.get().map(|out| out.join(number.to_string())) else {
        return;
    };
    if let Err(err) = fs::write(&path, text) {
        eprintln!("vhost-count: {}: {err}", path.display());
    }
}

fn listing(tables: &Tables) -> String {
    let mut counts: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
    let mut processes = 0;
    for block in tables.blocks.values() {
        let executed = block.executed.load(Ordering::Relaxed);
        if block.zone == Zone::Process {
            processes += executed * block.addresses.len() as u64; // CAST: Widens.
            continue;
        }
        let last = block.addresses.last();
        for address in block.addresses.iter().filter(|_| executed > 0) {
            let count = counts.entry(*address).or_default();
            count.0 += executed;
            count.1 |= block.repeats && Some(address) == last;
        }
    }
    let mut text = format!("u {processes}\n");
    // Writing to a string cannot fail.
    for (address, (count, repeats)) in counts {
        let kind = if repeats { 's' } else { 'i' };
        let _ = writeln!(text, "{kind} {address:x} {count}");
    }
    for ((caller, root), entry) in &tables.entries {
        let executed = entry.executed.load(Ordering::Relaxed);
        let repeated = entry.repeated.load(Ordering::Relaxed);
        if executed > 0 {
            let _ = writeln!(text, "c {caller:x} {root:x} {executed} {repeated}");
        }
    }
    text
}
