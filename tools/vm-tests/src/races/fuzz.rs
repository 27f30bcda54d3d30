// SPDX-License-Identifier: GPL-2.0

//! Programs of calls and scribbles, made at random from those that reached code which none before had reached.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use anyhow::{anyhow, ensure, Context, Result};
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use vhost_uapi::Kcov;

use super::act::act;
use super::field::Field;
use super::{Action, Setup};
use crate::dice::Dice;
use crate::patience::wait_for;
use crate::report::Report;
use crate::stop::expect_no_worker;

/// How long, and from what.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Seconds
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// All that is left to chance, but for the threads
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Programs to begin with, a line each, as they are printed behind "# kept "
    #[arg(long)]
    corpus: Option<PathBuf>,
    /// Run these only, once
    #[arg(long, requires = "corpus")]
    replay: bool,
}

/// What a thread does.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum What {
    /// One call of its kind in [`super::act`].
    Call(usize),
    /// Writes something somewhere in rings and buffers, this often.
    Scribble(u8),
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Step {
    /// One of two threads.
    second: bool,
    what: What,
    seed: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Program {
    /// Of the device: [`Setup`].
    seed: u64,
    steps: Vec<Step>,
}

/// What can be done any number of times, and the end.
fn calls() -> Vec<Action> {
    let all = Action::value_variants().iter().copied();
    all.filter(|action| !action.is_final() || *action == Action::Close)
        .collect()
}

impl Step {
    fn random(dice: &mut Dice) -> Self {
        let what = if dice.roll(4) == 0 {
            What::Scribble(dice.roll(64) as u8) // CAST: Below 64.
        } else {
            What::Call(dice.roll(calls().len() as u64) as usize) // CAST: Below it.
        };
        Self {
            second: dice.coin(),
            what,
            seed: dice.bits() >> 32,
        }
    }
}

impl Program {
    fn random(dice: &mut Dice) -> Self {
        let length = 1 + dice.roll(8);
        Self {
            seed: dice.bits() >> 32,
            steps: (0..length).map(|_| Step::random(dice)).collect(),
        }
    }

    /// One like it, and like another.
    fn mutated(&self, other: &Self, dice: &mut Dice) -> Self {
        const MOST: usize = 24;
        let mut new = self.clone();
        for _ in 0..=dice.roll(3) {
            let at = dice.roll(new.steps.len() as u64 + 1) as usize; // CAST: A place in it.
            match dice.roll(6) {
                0 => new.seed = dice.bits() >> 32,
                1 if at < new.steps.len() => drop(new.steps.remove(at)),
                2 => new
                    .steps
                    .splice(at.., other.steps.iter().copied())
                    .for_each(drop),
                3 => {
                    if let Some(step) = new.steps.get_mut(at) {
                        step.seed = dice.bits() >> 32;
                    }
                }
                _ => new.steps.insert(at, Step::random(dice)),
            }
        }
        new.steps.truncate(MOST);
        new
    }

    fn setup(&self) -> Setup {
        let mut dice = Dice::new(self.seed);
        let all = calls();
        let action = |dice: &mut Dice| {
            let [first, others @ ..] = &all[..] else {
                return Action::Close;
            };
            dice.pick(*first, others)
        };
        Setup {
            first: action(&mut dice),
            second: action(&mut dice),
            seed: dice.bits(),
            longest: 20_000,
        }
    }
}

/// Addresses of code that was run.
type Code = BTreeSet<u64>;

/// Runs a program. Returns what was run by its threads, and for its device.
fn execute(node: &Path, program: &Program, handle: u32) -> Result<[Code; 2]> {
    let codes = Mutex::new([Code::new(), Code::new()]);
    let note = |which: usize, kcov: &Kcov| {
        if let Ok(mut codes) = codes.lock() {
            kcov.take(|at| {
                codes[which].insert(at);
            });
        }
    };
    let remote = Kcov::open()?;
    remote.enable_remote(handle)?;
    let field = Field::new(node, program.setup())?;
    field.set_up()?;
    let closed = program
        .steps
        .iter()
        .any(|step| matches!(step.what, What::Call(at) if calls().get(at) == Some(&Action::Close)));
    thread::scope(|scope| {
        let others = [
            scope.spawn(|| field.drive()),
            scope.spawn(|| field.answer()),
        ];
        let steps = |second| {
            let (field, note) = (&field, &note);
            scope.spawn(move || -> Result<()> {
                let own = Kcov::open()?;
                own.enable()?;
                for step in program.steps.iter().filter(|step| step.second == second) {
                    step.run(field);
                    note(0, &own);
                }
                Ok(())
            })
        };
        let threads = [steps(false), steps(true)];
        while threads.iter().any(|thread| !thread.is_finished()) {
            note(1, &remote);
            thread::sleep(Duration::from_micros(500));
        }
        let ended = threads.into_iter().try_for_each(join);
        field.write_rings();
        let good = if closed { Ok(()) } else { field.expect_good() };
        field.end();
        for other in others {
            let _ = other.join();
        }
        note(1, &remote);
        ended.and(good)
    })?;
    drop(field);
    wait_for(|| expect_no_worker().is_ok()).or_else(|_| expect_no_worker())?;
    let codes = codes.into_inner();
    codes.map_err(|_| anyhow!("a thread panicked"))
}

fn join(thread: ScopedJoinHandle<'_, Result<()>>) -> Result<()> {
    thread
        .join()
        .unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
}

impl Step {
    /// Whether it is refused or not is the device's.
    fn run(&self, field: &Field) {
        let mut dice = Dice::new(self.seed);
        match self.what {
            What::Call(at) => {
                if let Some(action) = calls().get(at) {
                    let _ = act(field, *action, &mut dice);
                }
            }
            What::Scribble(times) => {
                for _ in 0..=times {
                    field.scribble(&mut dice);
                }
            }
        }
    }
}

/// Runs programs until time is up.
pub fn run(node: &Path, options: &Options, report: &mut Report) {
    if Kcov::open().is_err() {
        println!("ok fuzz: programs of calls # SKIP this kernel has no kcov");
        return;
    }
    let mut sum = Sum::default();
    let good = all(node, options, &mut sum);
    let (count, kept) = (sum.count, sum.corpus.len());
    let name = format!(
        "{count} programs, seed {}: the device is as good as new after each",
        options.seed
    );
    report.result(&name, &good);
    println!("# fuzz: {kept} programs reached something new");
    report.result("the code of calls and of the worker was seen", &sum.seen());
}

#[derive(Default)]
struct Sum {
    count: u64,
    corpus: Vec<Program>,
    /// By threads, and by workers.
    code: [Code; 2],
}

fn all(node: &Path, options: &Options, sum: &mut Sum) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let mut dice = Dice::new(options.seed);
    let text = options
        .corpus
        .as_ref()
        .map(fs::read_to_string)
        .transpose()?;
    for line in text.iter().flat_map(|text| text.lines()) {
        sum.run(node, serde_json::from_str(line)?)?;
    }
    while !options.replay && Instant::now() < end {
        let mut one = || {
            let at = dice.roll(sum.corpus.len().max(1) as u64) as usize; // CAST: A place in it.
            sum.corpus.get(at).cloned()
        };
        let (first, second) = (one(), one());
        let program = match first.zip(second) {
            Some((first, second)) if dice.roll(8) > 0 => first.mutated(&second, &mut dice),
            _ => Program::random(&mut dice),
        };
        sum.run(node, program)?;
    }
    Ok(())
}

impl Sum {
    fn run(&mut self, node: &Path, program: Program) -> Result<()> {
        self.count += 1;
        let handle = u32::try_from(self.count)?;
        let text = serde_json::to_string(&program)?;
        // If the machine does not survive it, this was it.
        fs::write("/dev/kmsg", format!("fuzz: {text}\n"))?;
        let codes = execute(node, &program, handle).with_context(|| text.clone())?;
        let mut new = 0;
        for (all, code) in self.code.iter_mut().zip(codes) {
            let before = all.len();
            all.extend(code);
            new += all.len() - before;
        }
        if new > 0 {
            println!("# kept {text}");
            self.corpus.push(program);
        }
        Ok(())
    }

    /// Prints how many functions of each of the driver's modules were run.
    fn seen(&self) -> Result<()> {
        let functions = functions()?;
        let mut modules: BTreeMap<&str, [BTreeSet<u64>; 3]> = BTreeMap::new();
        for (at, name) in &functions {
            modules.entry(module(name)).or_default()[2].insert(*at);
        }
        for (which, code) in self.code.iter().enumerate() {
            for address in code {
                if let Some((at, name)) = functions.range(..=address).next_back() {
                    modules.entry(module(name)).or_default()[which].insert(*at);
                }
            }
        }
        for (name, [calls, worker, all]) in &modules {
            let both = calls.union(worker).count();
            println!(
                "# fuzz: {name}: {both} of {} functions: {} by calls, {} by workers",
                all.len(),
                calls.len(),
                worker.len()
            );
        }
        let [calls, worker] = &self.code;
        println!(
            "# fuzz: {} places by calls, {} by workers",
            calls.len(),
            worker.len()
        );
        ensure!(calls.len() > 100 && worker.len() > 100, "too few");
        Ok(())
    }
}

/// The driver's functions, by address.
fn functions() -> Result<BTreeMap<u64, String>> {
    let text = fs::read_to_string("/proc/kallsyms")?;
    let function = |line: &str| {
        let mut words = line.split_whitespace();
        let at = u64::from_str_radix(words.next()?, 16).ok()?;
        let kind = words.next()?;
        let name = format!("{:#}", rustc_demangle::demangle(words.next()?));
        let ours = words.next() == Some("[vhost_net_rs]") && matches!(kind, "t" | "T");
        ours.then_some((at, name))
    };
    let functions: BTreeMap<u64, String> = text.lines().filter_map(function).collect();
    ensure!(!functions.is_empty(), "the module is not loaded");
    Ok(functions)
}

/// The module that a function is in, or C's helpers.
fn module(function: &str) -> &str {
    const CRATE: &str = "vhost_net_main::";
    let Some(at) = function.find(CRATE) else {
        return if function.starts_with("vnr_") {
            "rust/helpers"
        } else {
            "others"
        };
    };
    let path = function.get(at + CRATE.len()..).unwrap_or_default();
    let end = path.find(|c: char| c == '<' || c == '>' || c.is_uppercase() || c == ' ');
    let path = path.get(..end.unwrap_or(path.len())).unwrap_or_default();
    let path = path.trim_end_matches(':');
    // A function that is no type's has its own name behind, and may have a closure's.
    let most = if path.starts_with("engine::net") {
        3
    } else {
        2
    };
    let names: Vec<_> = path.match_indices("::").map(|(at, _)| at).collect();
    let own = names.len() - usize::from(end.is_none() && !names.is_empty());
    let end = names.get(own.min(most - 1)..).and_then(|rest| rest.first());
    path.get(..end.copied().unwrap_or(path.len()))
        .unwrap_or(path)
}
