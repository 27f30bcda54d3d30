// SPDX-License-Identifier: GPL-2.0

//! Results, in the form that `scripts/test` counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Mutex;

use anyhow::Result;

/// How results are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A test that fails is a failure.
    Strict,
    /// The driver is known to have faults: a test that fails is a note, and that none fails is a failure of the tests.
    Reference,
}

/// Prints results as they come.
#[derive(Debug)]
pub struct Report {
    suite: &'static str,
    mode: Mode,
    failed: usize,
    seen: BTreeMap<String, Vec<String>>,
}

/// A test: its name and what it does.
pub struct Test<'a> {
    /// Name, which is unique in its suite.
    pub name: String,
    /// Fails with what was wrong.
    pub run: Box<dyn Fn() -> Result<()> + Sync + 'a>,
}

impl<'a> Test<'a> {
    /// Names a function.
    pub fn new(name: impl Into<String>, run: impl Fn() -> Result<()> + Sync + 'a) -> Self {
        Self {
            name: name.into(),
            run: Box::new(run),
        }
    }
}

impl Report {
    /// Results of a suite.
    pub fn new(suite: &'static str, mode: Mode) -> Self {
        Self {
            suite,
            mode,
            failed: 0,
            seen: BTreeMap::new(),
        }
    }

    /// Ends the report. Says whether nothing failed.
    pub fn finish(mut self) -> bool {
        let suite = self.suite;
        for (what, names) in &self.seen {
            println!(
                "# {suite}: in {} tests, such as \"{}\": {what}",
                names.len(),
                names[0]
            );
        }
        if self.mode == Mode::Reference {
            if self.seen.is_empty() {
                self.failed += 1;
                print!("not ");
            }
            println!("ok {suite}: control: the tests see faults where there are some");
        }
        self.failed == 0
    }

    /// Shows one result.
    pub fn result(&mut self, name: &str, result: &Result<()>) {
        let suite = self.suite;
        match (result, self.mode) {
            (Ok(()), Mode::Strict) => println!("ok {suite}: {name}"),
            (Ok(()), Mode::Reference) => {}
            (Err(err), Mode::Strict) => {
                self.failed += 1;
                println!("not ok {suite}: {name}\n#   {err:#}");
            }
            (Err(err), Mode::Reference) => {
                let names = self.seen.entry(format!("{err:#}")).or_default();
                names.push(name.to_owned());
            }
        }
    }

    /// Runs tests on `threads` threads; for tests that mostly wait. Results come in the order of the tests. That there is no
    /// test is a failure: its name changed, and `--only` did not.
    pub fn run_on(&mut self, threads: usize, tests: &[Test<'_>]) {
        if tests.is_empty() {
            self.failed += 1;
            println!("not ok {}: no test has such a name", self.suite);
        }
        let next = AtomicUsize::new(0);
        let results: Vec<Mutex<Option<Result<()>>>> =
            tests.iter().map(|_| Mutex::new(None)).collect();
        let work = || loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some((test, slot)) = tests.get(index).zip(results.get(index)) else {
                return;
            };
            let result = (test.run)();
            *slot.lock().expect("no test panics with it") = Some(result);
        };
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(work);
            }
        });
        for (test, slot) in tests.iter().zip(results) {
            let result = slot.into_inner().ok().flatten();
            let lost = || Err(anyhow::anyhow!("the test ended without a result"));
            self.result(&test.name, &result.unwrap_or_else(lost));
        }
    }
}
