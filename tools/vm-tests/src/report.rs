// SPDX-License-Identifier: GPL-2.0

//! Results, in the form that `scripts/test` counts.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};

use anyhow::Result;

use crate::patience::{is_slow, OverLimit};

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
            (Err(err), Mode::Strict) if is_slow() && err.is::<OverLimit>() => {
                println!("ok {suite}: {name} # SKIP a limit for the stock kernel: {err}");
            }
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

    /// Runs tests on `threads` threads; for tests that mostly wait. Results come in the order of the tests, each as soon as
    /// those before it are there. That there is no test is a failure: its name changed, and `--only` did not.
    pub fn run_on(&mut self, threads: usize, tests: &[Test<'_>]) {
        if tests.is_empty() {
            self.failed += 1;
            println!("not ok {}: no test has such a name", self.suite);
        }
        let next = AtomicUsize::new(0);
        let work = |done: &Sender<(usize, Result<()>)>| {
            while let Some((index, test)) = one_more(&next, tests) {
                // Who listens does so until all threads have ended.
                let _ = done.send((index, (test.run)()));
            }
        };
        std::thread::scope(|scope| {
            let (done, results) = mpsc::channel();
            for _ in 0..threads {
                let done = done.clone();
                scope.spawn(move || work(&done));
            }
            drop(done);
            let mut early = BTreeMap::new();
            for (index, test) in tests.iter().enumerate() {
                while !early.contains_key(&index) {
                    let Ok((index, result)) = results.recv() else {
                        break;
                    };
                    early.insert(index, result);
                }
                let lost = || Err(anyhow::anyhow!("the test ended without a result"));
                let result = early.remove(&index).unwrap_or_else(lost);
                self.result(&test.name, &result);
            }
        });
    }
}

/// Takes the next test that nobody has taken.
fn one_more<'a, 'b>(next: &AtomicUsize, tests: &'a [Test<'b>]) -> Option<(usize, &'a Test<'b>)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    tests.get(index).map(|test| (index, test))
}
