// SPDX-License-Identifier: GPL-2.0

//! Makes every call on both drivers, and compares.

use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::fmt::Write;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::{ensure, Context, Result};
use vhost_uapi::{Arena, Gate};

use crate::abi::Listed;
use crate::call::{Answer, Call, Files};
use crate::cases::{self, Case};
use crate::ground::Ground;
use crate::helper::{gate_name, Caller, Helpers};
use crate::objects::Objects;
use crate::observe::{observe, Field};
use crate::state::{Device, State};

/// A fault to make on the second driver, to see that it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Inject {
    /// Another answer.
    Answer,
    /// A byte written behind the argument.
    Bytes,
    /// A call that was refused and yet set something.
    Half,
}

/// What is common to both drivers.
#[derive(Debug)]
struct Machine {
    arena: Arena,
    gate: Gate,
}

/// A driver.
#[derive(Debug)]
struct Side {
    node: PathBuf,
    ground: Ground,
    objects: Objects,
    helpers: Helpers,
    inject: Option<Inject>,
    /// What is seen in a state before any call.
    untouched: HashMap<State, Vec<Field>>,
    used: Option<Used>,
}

/// A device that a call was made on.
#[derive(Debug)]
struct Used {
    device: Device,
    state: State,
    calls: usize,
    /// The call was refused, and nothing can be seen of it.
    clean: bool,
}

impl Side {
    fn new(node: &Path, gate: Gate, inject: Option<Inject>) -> Result<Self> {
        Ok(Self {
            node: node.to_owned(),
            ground: Ground::new().context("tap and wire")?,
            objects: Objects::new(node.to_owned()),
            helpers: Helpers::new(node, gate),
            inject,
            untouched: HashMap::new(),
            used: None,
        })
    }

    /// Makes the call of a case, and looks around.
    fn run(&mut self, machine: &mut Machine, index: usize, case: &Case) -> Result<Vec<Field>> {
        let (device, calls) = self.device(machine, case.state)?;
        self.ground.refresh()?;
        let mut fields = vec![("setup", device.failed.join(", "))];
        let mut before = Vec::new();
        for call in &case.before {
            before.push(self.call(machine, &device, call)?.returned);
        }
        fields.push(("before", before.join(", ")));

        let mut answer = if case.caller == Caller::Owner {
            self.call(machine, &device, &case.call)?
        } else {
            self.helpers
                .call(case.caller, index, device.vhost.as_fd())?
        };
        match self.inject {
            Some(Inject::Answer) => answer.returned = "EXDEV".to_owned(),
            Some(Inject::Bytes) => answer.changed.push_str(" +8:00"),
            // Where it is refused there is nothing to make.
            Some(Inject::Half) => drop(device.vhost.set_vring_busyloop_timeout(0, 3)),
            None => (),
        }
        let refused = answer.returned.starts_with('E') && case.before.is_empty();
        fields.push(("returned", answer.returned));
        fields.push(("changed", answer.changed));
        let seen = observe(&mut machine.arena, &self.ground, &device, case.state)?;
        self.used = Some(Used {
            device,
            state: case.state,
            calls: calls + 1,
            clean: refused && self.untouched.get(&case.state) == Some(&seen),
        });
        fields.extend(seen);
        Ok(fields)
    }

    fn call(&mut self, machine: &mut Machine, device: &Device, call: &Call) -> Result<Answer> {
        let files = Files {
            objects: &mut self.objects,
            device: device.vhost.as_fd(),
        };
        call.make(&mut machine.arena, machine.gate, files)
    }

    /// A device in this state, and how many calls it saw.
    fn device(&mut self, machine: &mut Machine, state: State) -> Result<(Device, usize)> {
        if let Some(used) = self.used.take().filter(|used| used.state == state) {
            return Ok((used.device, used.calls));
        }
        if let Entry::Vacant(entry) = self.untouched.entry(state) {
            let device = Device::new(&self.node, state, &self.ground)?;
            self.ground.refresh()?;
            entry.insert(observe(&mut machine.arena, &self.ground, &device, state)?);
        }
        Ok((Device::new(&self.node, state, &self.ground)?, 0))
    }

    /// Whether the device can be taken for another call: making one costs more than all calls on it.
    fn reusable(&self) -> bool {
        // With a ring of another size the entry would lie elsewhere, for as many packets.
        const PACKETS: usize = 5;
        const CALLS: usize = 50;
        // What is logged depends on whether kicks were off before.
        const LOGGED: usize = 1;
        let uses = |state: State| match state {
            State::Logging => LOGGED,
            state if state.carries() => PACKETS,
            _ => CALLS,
        };
        let clean = |used: &Used| used.clean && used.calls < uses(used.state);
        self.used.as_ref().is_some_and(clean)
    }

    /// Ends the life of a device. If nobody should own it, sees to it that nobody does.
    fn finish(&mut self, fields: &mut Vec<Field>) {
        if let Some(used) = self.used.take().filter(|used| !used.state.is_owned()) {
            let own = used.device.vhost.set_owner().map_err(|err| err.errno);
            fields.push(("own", format!("{own:?}")));
        }
    }
}

/// What to compare.
#[derive(Debug)]
pub struct Options<'a> {
    /// C's node.
    pub reference: &'a Path,
    /// The other driver's.
    pub node: &'a Path,
    /// How calls are made.
    pub gate: Gate,
    /// Only these groups; all if there are none.
    pub only: &'a [String],
    /// Of each group only the first of so many calls, for machines on which all take too long.
    pub every: NonZeroUsize,
    /// A fault to make.
    pub inject: Option<Inject>,
}

/// Compares. Prints a line for each group; says whether all were good.
///
/// # Errors
///
/// There is no such group, or the machine cannot do it.
pub fn compare(options: &Options<'_>, listed: &mut Listed) -> Result<bool> {
    let mut machine = Machine {
        arena: Arena::new()?,
        gate: options.gate,
    };
    let mut c = Side::new(options.reference, options.gate, None)?;
    let mut here = Side::new(options.node, options.gate, options.inject)?;
    let gate = gate_name(options.gate);
    let cases = cases::all();
    for only in options.only {
        let known = cases.iter().any(|case| case.group == only);
        ensure!(known, "there is no group '{only}'");
    }
    let (mut good, mut count, mut start) = (true, 0, 0);
    for group in cases.chunk_by(|one, other| one.group == other.group) {
        let first = start;
        start += group.len();
        let name = group.first().map_or("", |case| case.group);
        if !options.only.is_empty() && !options.only.iter().any(|only| only == name) {
            continue;
        }
        let mut report = Report::default();
        let every = options.every.get();
        let number = group.len().div_ceil(every);
        for (index, case) in (first..).zip(group).step_by(every) {
            let wanted = c.run(&mut machine, index, case);
            let found = here.run(&mut machine, index, case);
            let context = || format!("{}: {}", case.group, case.name);
            let (mut wanted, mut found) =
                (wanted.with_context(context)?, found.with_context(context)?);
            if !c.reusable() || !here.reusable() {
                c.finish(&mut wanted);
                here.finish(&mut found);
            }
            report.add(listed, &case.name, &wanted, &found);
        }
        good &= report.print(gate, name, number);
        count += number;
    }
    if options.only.is_empty() && options.every == NonZeroUsize::MIN {
        good &= print_idle(gate, listed);
    }
    let met = listed.met();
    println!("# conformance {gate}: {count} calls compared, {met} listed differences");
    Ok(good)
}

/// Differences in a group that are not listed.
#[derive(Debug, Default)]
struct Report {
    calls: usize,
    text: String,
}

impl Report {
    fn add(&mut self, listed: &mut Listed, case: &str, wanted: &[Field], found: &[Field]) {
        let mut different = false;
        let mut note = |field: &str, c: &str, here: &str| {
            if !listed.meet(case, field, c, here) {
                different = true;
                // Writing to a string does not fail.
                let _ = writeln!(self.text, "#   {case}: {field}: C {c}, here {here}");
            }
        };
        for ((field, c), (_, here)) in wanted.iter().zip(found) {
            if c != here {
                note(field, c, here);
            }
        }
        if wanted.len() != found.len() {
            note(
                "fields",
                &wanted.len().to_string(),
                &found.len().to_string(),
            );
        }
        self.calls += usize::from(different);
    }

    fn print(&self, gate: &str, group: &str, count: usize) -> bool {
        if self.calls == 0 {
            println!("ok conformance {gate}: {group}: {count} calls");
            return true;
        }
        println!(
            "not ok conformance {gate}: {group}: {} of {count} calls differ",
            self.calls
        );
        for line in self.text.lines() {
            println!("{line}");
        }
        false
    }
}

fn print_idle(gate: &str, listed: &Listed) -> bool {
    let idle = listed.idle();
    let name = format!("conformance {gate}: every difference that abi.rst lists is there");
    if idle.is_empty() {
        println!("ok {name}");
        return true;
    }
    println!("not ok {name}");
    for row in &idle {
        println!(
            "#   {}: {}: C {}, here {}",
            row.case, row.field, row.c, row.here
        );
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_that_is_not_listed_is_reported() {
        let page = ".. list-table:: Calls that answer otherwise\n\n   * - a\n     - b\n";
        let mut listed = Listed::parse(page).unwrap();
        let fields = |value: &str| vec![("returned", value.to_owned())];
        let mut report = Report::default();
        report.add(&mut listed, "case", &fields("0"), &fields("0"));
        assert_eq!((report.calls, report.text.as_str()), (0, ""));
        report.add(&mut listed, "case", &fields("0"), &fields("EIO"));
        report.add(&mut listed, "case", &fields("0"), &[]);
        assert_eq!(report.calls, 2);
        assert!(report
            .text
            .starts_with("#   case: returned: C 0, here EIO\n"));
    }
}
