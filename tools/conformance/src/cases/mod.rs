// SPDX-License-Identifier: GPL-2.0

//! The tables: calls, each with the state that it finds the device in.

mod features;
mod files;
mod generic;
mod memory;
mod messages;
mod rings;
mod sequences;

use vhost_uapi::numbers;

use crate::call::{Arg, Call};
use crate::helper::Caller;
use crate::state::State;

/// One call to compare.
#[derive(Clone, Debug)]
pub struct Case {
    /// The table that it is of.
    pub group: &'static str,
    /// Which state, which call. No other case has it.
    pub name: String,
    /// How the device is before.
    pub state: State,
    /// Calls of the owner before.
    pub before: Vec<Call>,
    /// Who calls.
    pub caller: Caller,
    /// The call.
    pub call: Call,
}

/// Cases of one group.
#[derive(Debug)]
struct Table {
    group: &'static str,
    cases: Vec<Case>,
}

impl Table {
    fn new(group: &'static str) -> Self {
        let cases = Vec::new();
        Self { group, cases }
    }

    /// Adds a call of the owner.
    fn add(&mut self, state: State, what: impl AsRef<str>, call: Call) {
        self.add_after(state, what, Vec::new(), call);
    }

    /// Adds a call of the owner, with others before it.
    fn add_after(&mut self, state: State, what: impl AsRef<str>, before: Vec<Call>, call: Call) {
        self.cases.push(Case {
            group: self.group,
            name: format!("{}: {}", state.name(), what.as_ref()),
            state,
            before,
            caller: Caller::Owner,
            call,
        });
    }

    /// Adds a call of somebody else.
    fn add_by(&mut self, caller: Caller, state: State, what: &str, call: Call) {
        self.cases.push(Case {
            group: self.group,
            name: format!("{}, by {}: {what}", state.name(), caller.name()),
            state,
            before: Vec::new(),
            caller,
            call,
        });
    }

    /// Adds an ioctl, named after it.
    fn ioctl(&mut self, state: State, request: u32, what: impl AsRef<str>, arg: Arg) {
        let name = format!("{} {}", name_of(request), what.as_ref());
        self.add(state, name, Call::Ioctl(request, arg));
    }
}

/// The number of an ioctl, as the kernel gets it.
const fn nr(request: u64) -> u32 {
    request as u32 // CAST: ioctl numbers have 32 bits.
}

fn name_of(request: u32) -> &'static str {
    numbers::name(request.into())
}

/// All cases, always in the same order.
pub fn all() -> Vec<Case> {
    let tables = [
        generic::every_call(),
        generic::callers(),
        generic::owner_gone(),
        generic::numbers(),
        rings::sizes(),
        rings::bases(),
        rings::addresses(),
        rings::windows(),
        rings::endian(),
        memory::tables(),
        memory::logs(),
        features::words(),
        features::arrays(),
        features::backend(),
        files::kinds(),
        files::workers(),
        messages::writes(),
        messages::reads(),
        sequences::all(),
    ];
    tables.into_iter().flat_map(|table| table.cases).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_cases_have_one_name() {
        let mut names = HashSet::new();
        for case in all() {
            assert!(names.insert(case.name.clone()), "twice: {}", case.name);
        }
    }
}
