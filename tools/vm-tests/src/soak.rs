// SPDX-License-Identifier: GPL-2.0

//! Mixed traffic on many devices that come, are changed all the time, and go: everything that was sent has arrived as it was, or
//! somebody has counted its loss, and nothing is left behind.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread::{self, sleep, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Result};

use crate::dice::Dice;
use crate::races::{kernel_memory, memory_grows, Clean};
use crate::report::Report;

mod change;
mod life;

use change::Change;
use life::{Account, Place};

/// How many devices, and for how long.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Devices at a time
    #[arg(long, default_value_t = 16)]
    devices: u32,
    /// Seconds
    #[arg(long, default_value_t = 1800)]
    seconds: u64,
    /// All that is left to chance
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The module's name
    #[arg(long, default_value = "vhost_net_rs")]
    module: String,
}

/// What a process does: devices that come and go until all are gone.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Generation {
    /// Devices at a time
    devices: u32,
    /// Milliseconds
    millis: u64,
    /// All that is left to chance
    seed: u64,
}

/// How long a process runs, at whose end what is left can be looked at.
const GENERATION: Duration = Duration::from_secs(30);

#[derive(Default)]
struct Sums {
    account: Account,
    killed: u64,
    memory: Vec<u64>,
}

/// Runs devices until time is up.
pub fn run(node: &Path, options: &Options, report: &mut Report) {
    let mut sums = Sums::default();
    let ended = generations(node, options, &mut sums);
    let Sums {
        account,
        killed,
        memory,
    } = sums;
    account.print();
    println!("# soak: {killed} times all devices' owner was killed");
    println!("# soak: KiB of the kernel's memory without devices: {memory:?}");
    let Options { devices, seed, .. } = options;
    let lives = account.lives;
    let name = format!("{lives} devices, {devices} at a time, seed {seed}: all that was sent is accounted for, nothing is left");
    report.result(&name, &ended);
    report.result(
        "packets went both ways, and each change was made",
        &account.enough(),
    );
    match memory_grows(&memory) {
        Some(grows) => report.result("the kernel's memory does not grow", &grows),
        None => println!("# soak: too short to judge the kernel's memory by"),
    }
}

fn generations(node: &Path, options: &Options, sums: &mut Sums) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let clean = Clean::new(&options.module)?;
    let mut dice = Dice::new(options.seed);
    while Instant::now() < end {
        let length = GENERATION.min(end.saturating_duration_since(Instant::now()));
        let generation = Generation {
            devices: options.devices,
            millis: length.as_millis() as u64, // CAST: Below 30,000.
            seed: dice.bits(),
        };
        // Not the first: what it allocates once is there then.
        if sums.account.lives > 0 && dice.roll(4) == 0 {
            generation.killed(node, dice.roll(generation.millis))?;
            sums.killed += 1;
        } else {
            sums.account.add(&generation.lived(node)?);
        }
        clean.expect()?;
        sums.memory.push(kernel_memory()?);
        let (lives, [rx, tx]) = (sums.account.lives, sums.account.arrived());
        println!("# soak: {lives} devices have come and gone, {tx} packets arrived at the host, {rx} at a guest");
    }
    Ok(())
}

impl Generation {
    fn start(&self, node: &Path) -> Result<Child> {
        let Self {
            devices,
            millis,
            seed,
        } = self;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--node").arg(node).arg("soak-generation");
        command.args([&devices.to_string(), &millis.to_string(), &seed.to_string()]);
        Ok(command.stdout(Stdio::piped()).spawn()?)
    }

    /// Waits for its end. Returns what became of its devices.
    fn lived(&self, node: &Path) -> Result<Account> {
        let output = self.start(node)?.wait_with_output()?;
        ensure!(output.status.success(), "{self:?}: {}", output.status);
        Ok(serde_json::from_slice(&output.stdout)?)
    }

    /// Kills it after so many milliseconds.
    fn killed(&self, node: &Path, millis: u64) -> Result<()> {
        let mut child = self.start(node)?;
        sleep(Duration::from_millis(millis));
        child.kill()?;
        child.wait()?;
        Ok(())
    }
}

/// The process of a generation: prints what became of its devices.
///
/// # Errors
///
/// What a device met.
pub fn generation(node: &Path, generation: Generation) -> Result<()> {
    let until = Instant::now() + Duration::from_millis(generation.millis);
    let mut dice = Dice::new(generation.seed);
    let mut sum = Account::default();
    let lived: Vec<Result<Account>> = thread::scope(|scope| {
        let one = |_| {
            let dice = Dice::new(dice.bits());
            scope.spawn(move || lives(node, dice, until))
        };
        let threads: Vec<_> = (0..generation.devices).map(one).collect();
        let join = |thread: ScopedJoinHandle<'_, Result<Account>>| {
            let panicked = |_| Err(anyhow!("a device's thread panicked"));
            thread.join().unwrap_or_else(panicked)
        };
        threads.into_iter().map(join).collect()
    });
    for account in lived {
        sum.add(&account?);
    }
    println!("{}", serde_json::to_string(&sum)?);
    Ok(())
}

/// One device after the other, until then.
fn lives(node: &Path, mut dice: Dice, until: Instant) -> Result<Account> {
    let mut sum = Account::default();
    while Instant::now() < until {
        let place = Place { node, until };
        sum.add(&place.live(&mut dice)?);
    }
    Ok(sum)
}

impl Account {
    fn add(&mut self, other: &Self) {
        self.lives += other.lives;
        for (sum, way) in self.ways.iter_mut().zip(&other.ways) {
            sum.add(way);
        }
        for (change, count) in &other.changes {
            *self.changes.entry(*change).or_default() += count;
        }
    }

    fn print(&self) {
        for (name, way) in ["to guests", "to the host"].into_iter().zip(&self.ways) {
            println!("# soak: {name}: {way}");
        }
        println!("# soak: changes under traffic: {:?}", self.changes);
    }

    /// Packets, rx first.
    fn arrived(&self) -> [u64; 2] {
        [0, 1].map(|way: usize| self.ways.get(way).map_or(0, |way| way.arrived))
    }

    fn enough(&self) -> Result<()> {
        const MANY: u64 = 1000;
        ensure!(
            self.arrived().into_iter().all(|arrived| arrived >= MANY),
            "{:?} packets received and sent",
            self.arrived()
        );
        let made: &BTreeMap<Change, u64> = &self.changes;
        let missing: Vec<_> = Change::ALL
            .iter()
            .filter(|change| !made.contains_key(change))
            .collect();
        ensure!(missing.is_empty(), "never made: {missing:?}");
        Ok(())
    }
}
