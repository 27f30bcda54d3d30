// SPDX-License-Identifier: GPL-2.0

//! Every pair of things that change or end a device, at the same time, under traffic on both rings.
//!
//! A round is a process that owns a device and does two things to it in two threads, or has them done to it. It must get its
//! traffic first, which shows that the round before left a driver that works; and, if the device outlives the two, a device
//! that is set up again must work as a new one does. When the process is gone, nothing must be left of it.

mod act;
mod field;
pub mod fuzz;
mod left;
mod owner;
mod round;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context, Result};
use clap::ValueEnum;

use self::round::{Done, Place};
use crate::dice::Dice;
use crate::patience::scaled;
use crate::report::Report;

pub(crate) use left::{kernel_memory, memory_grows, Clean};
pub use owner::owner;

/// What is done to a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[allow(missing_docs)] // Each is the call of its name.
pub enum Action {
    SetBackend,
    SetVringNum,
    SetVringAddr,
    SetVringBase,
    SetVringKick,
    SetVringCall,
    SetVringErr,
    SetVringBusyloopTimeout,
    SetVringEndian,
    SetMemTable,
    SetFeatures,
    SetLogBase,
    SetLogFd,
    IotlbUpdate,
    IotlbInvalidate,
    ResetOwner,
    /// The owner closes the device.
    Close,
    /// The owner is killed.
    Kill,
    /// The interface is deleted.
    TapDeleted,
    /// The module is unloaded, as soon as it can be.
    Rmmod,
}

impl Action {
    /// Whether it can be done once only.
    fn is_final(self) -> bool {
        use Action::{Close, Kill, Rmmod, TapDeleted};
        matches!(self, Close | Kill | TapDeleted | Rmmod)
    }

    fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// What to run, and how long.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// No round begins after so many seconds
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Order of the pairs, and what each round does
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The module
    #[arg(long, default_value = "vhost_net_rs")]
    module: String,
    /// Shell command that loads it
    #[arg(long, default_value = "insmod /vhost_net_rs.ko")]
    load: String,
    /// The longest busy-polling window, in microseconds
    #[arg(long, default_value_t = act::LONG_WINDOW)]
    longest: u32,
    /// Say each round
    #[arg(long)]
    rounds: bool,
}

/// One round.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Setup {
    /// The one thing
    first: Action,
    /// The other
    second: Action,
    /// All that is left to chance
    seed: u64,
    /// The longest busy-polling window
    longest: u32,
}

impl Setup {
    fn has(&self, action: Action) -> bool {
        [self.first, self.second].contains(&action)
    }

    fn chance(&self, nth: u32) -> bool {
        self.seed >> nth & 1 == 1
    }

    fn event_idx(&self) -> bool {
        self.chance(0)
    }

    fn kthread(&self) -> bool {
        self.chance(1)
    }

    /// Whether the tap's send buffer is finite, so that packets go one by one.
    fn finite(&self) -> bool {
        self.seed >> 2 & 3 == 3
    }

    /// Whether there is an IOTLB.
    fn platform(&self) -> bool {
        let needed = self.has(Action::IotlbUpdate) || self.has(Action::IotlbInvalidate);
        needed || self.seed >> 4 & 3 == 3
    }

    /// Whether there is a dirty log.
    fn logs(&self) -> bool {
        let needed = self.has(Action::SetLogBase) || self.has(Action::SetLogFd);
        needed || self.seed >> 6 & 3 == 3
    }

    /// The busy-polling window, in microseconds.
    fn window(&self) -> u32 {
        let windows = [0, 50, 20_000, self.longest];
        windows[(self.seed >> 8 & 3) as usize] // CAST: Below 4.
    }

    /// Whether another process has the device, too.
    fn held(&self) -> bool {
        self.has(Action::Kill) && self.chance(10)
    }

    /// How long the round lasts, if calls do not take longer.
    fn length(&self) -> Duration {
        scaled(Duration::from_millis(20 + self.seed % 40))
    }

    /// A moment of it.
    fn moment(&self, dice: &mut Dice) -> Duration {
        self.length() * dice.roll(100) as u32 / 100 // CAST: Below 100.
    }

    fn pair(&self) -> String {
        format!("{} beside {}", self.first.name(), self.second.name())
    }

    fn text(&self) -> String {
        let mut text = format!(
            "{}: seed {}, window {}",
            self.pair(),
            self.seed,
            self.window()
        );
        for (set, what) in [
            (self.kthread(), "kthread"),
            (self.platform(), "IOTLB"),
            (self.logs(), "log"),
            (self.finite(), "finite sndbuf"),
            (self.held(), "held"),
        ] {
            if set {
                text += ", ";
                text += what;
            }
        }
        text
    }
}

/// All pairs, each once.
fn pairs() -> Vec<(Action, Action)> {
    let all = Action::value_variants();
    let mut pairs = Vec::new();
    for (nth, first) in all.iter().enumerate() {
        let others = all.iter().skip(nth);
        pairs.extend(others.map(|second| (*first, *second)));
    }
    pairs.retain(|(first, second)| first != second || !first.is_final());
    pairs
}

/// What became of the calls of one kind.
#[derive(Clone, Copy, Default)]
struct Calls {
    served: u64,
    refused: u64,
    /// Rounds in which there were some, and in which one was served.
    rounds: [u64; 2],
}

/// What all rounds came to.
#[derive(Default)]
struct Sums {
    rounds: BTreeMap<(Action, Action), u64>,
    calls: BTreeMap<Action, Calls>,
    failed: Vec<String>,
    memory: Vec<u64>,
}

/// Runs the pairs whose names contain `only`, again and again until time is up.
pub fn run(node: &Path, only: &str, options: &Options, report: &mut Report) {
    let mut sums = Sums::default();
    let ended = all_rounds(node, only, options, &mut sums);
    sums.print(only);
    let rounds: u64 = sums.rounds.values().sum();
    let pairs = sums.rounds.len();
    let failed = sums.failed.len();
    let good = ended.and_then(|()| {
        ensure!(
            failed == 0,
            "{failed} of {rounds} rounds: {}",
            sums.failed.join("; ")
        );
        Ok(())
    });
    let seed = options.seed;
    report.result(
        &format!("{pairs} pairs in {rounds} rounds, seed {seed}: nothing breaks, nothing is left"),
        &good,
    );
    report.result("each call is served in most rounds", &sums.calls());
    match memory_grows(&sums.memory) {
        Some(memory) => report.result("the kernel's memory does not grow", &memory),
        None => println!("# races: too few rounds to judge the kernel's memory by"),
    }
}

fn all_rounds(node: &Path, only: &str, options: &Options, sums: &mut Sums) -> Result<()> {
    /// A driver that fails so often has been seen to fail.
    const ENOUGH: usize = 10;
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let place = Place {
        node,
        module: &options.module,
        load: &options.load,
        clean: Clean::new(&options.module)?,
    };
    let mut dice = Dice::new(options.seed);
    let mut order = pairs();
    order.retain(|(first, second)| {
        format!("{} beside {}", first.name(), second.name()).contains(only)
    });
    ensure!(!order.is_empty(), "no pair has such a name");
    while Instant::now() < end {
        dice.shuffle(&mut order);
        for (first, second) in &order {
            if Instant::now() >= end {
                break;
            }
            let (first, second) = (*first, *second);
            let seed = dice.bits() >> 16;
            let setup = Setup {
                first,
                second,
                seed,
                longest: options.longest,
            };
            match place.round(setup) {
                Ok(done) => sums.add(setup, &done, options.rounds),
                Err(err) => sums.failed.push(format!("{}: {err:#}", setup.text())),
            }
            *sums.rounds.entry((first, second)).or_default() += 1;
            if sums.failed.len() >= ENOUGH {
                bail!("{}", sums.failed.join("; "));
            }
            // Where it cannot be cleaned up, the next round fails for nothing.
            place.clean.expect().with_context(|| setup.text())?;
            let rounds: u64 = sums.rounds.values().sum();
            if rounds % 16 == 0 {
                sums.memory.push(kernel_memory()?);
            }
        }
    }
    Ok(())
}

impl Sums {
    fn add(&mut self, setup: Setup, done: &Done, say: bool) {
        for (action, calls) in [setup.first, setup.second].into_iter().zip(done.calls) {
            let sum = self.calls.entry(action).or_default();
            let [served, refused] = calls;
            sum.served += served;
            sum.refused += refused;
            sum.rounds[0] += u64::from(served + refused > 0);
            sum.rounds[1] += u64::from(served > 0);
        }
        if say {
            let ([rx, tx], [first, second]) = (done.moved, done.calls);
            let text = setup.text();
            println!("# {text}: {rx} packets received, {tx} sent; calls {first:?}, {second:?}");
        }
    }

    /// Rounds of each pair, and calls.
    fn print(&self, only: &str) {
        let all = Action::value_variants();
        println!("# races: rounds of each pair; columns are in the order of the lines");
        for (nth, second) in all.iter().enumerate() {
            let count = |first: &Action| self.rounds.get(&(*first, *second)).unwrap_or(&0);
            let row: Vec<String> = all
                .iter()
                .take(nth + 1)
                .map(|first| format!("{:3}", count(first)))
                .collect();
            let Calls {
                served, refused, ..
            } = self.calls.get(second).copied().unwrap_or_default();
            let calls = format!("{served} calls, {refused} refused");
            println!("#   {:27}{}  {calls}", second.name(), row.concat());
        }
        let missing = pairs()
            .into_iter()
            .filter(|pair| !self.rounds.contains_key(pair));
        let missing: Vec<String> = missing
            .map(|(a, b)| format!("{} beside {}", a.name(), b.name()))
            .collect();
        if only.is_empty() && !missing.is_empty() {
            println!(
                "# races: no time for {} pairs: {}",
                missing.len(),
                missing.join(", ")
            );
        }
        println!(
            "# races: KiB of the kernel's memory every 16 rounds: {:?}",
            self.memory
        );
    }

    /// A single round may come to nothing: on a slow machine all of its calls may find the device closed.
    fn calls(&self) -> Result<()> {
        const MANY: u64 = 10;
        for (action, Calls { rounds, .. }) in &self.calls {
            let [all, served] = *rounds;
            // There are big-endian rings on other machines.
            let never = *action == Action::SetVringEndian || all < MANY;
            let name = action.name();
            ensure!(
                never || served * 2 >= all,
                "{name}: served in {served} of {all} rounds"
            );
        }
        Ok(())
    }
}

/// What a call came to, for messages.
fn refused(what: &str) -> anyhow::Error {
    anyhow!("the owner says {what:?}")
}
