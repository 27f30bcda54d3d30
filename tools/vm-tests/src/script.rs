// SPDX-License-Identifier: GPL-2.0

//! Control calls and what came of each, for two devices to be compared.

use std::fmt::Debug;
use std::path::{Path, PathBuf};

use anyhow::Result;
use nix::errno::Errno;
use vhost_uapi::VhostNet;

/// A call and its outcome.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What was called, and when.
    pub call: String,
    /// `0`, an errno, or what came back.
    pub outcome: String,
}

/// Steps on one node.
#[derive(Debug)]
pub struct Script {
    node: PathBuf,
    steps: Vec<Step>,
}

/// What the calls of a script leave behind.
pub trait Outcome {
    /// The outcome, as text.
    fn text(self) -> String;
}

impl<T: Debug> Outcome for vhost_uapi::Result<T> {
    fn text(self) -> String {
        self.map_err(|err| err.errno).text()
    }
}

impl<T: Debug> Outcome for std::result::Result<T, Errno> {
    fn text(self) -> String {
        match self {
            Ok(value) => match format!("{value:?}").as_str() {
                "()" => "0".to_owned(),
                text => text.to_owned(),
            },
            Err(errno) => format!("{errno:?}"),
        }
    }
}

impl Script {
    /// A script for a node.
    pub fn new(node: &Path) -> Self {
        let node = node.to_owned();
        let steps = Vec::new();
        Self { node, steps }
    }

    /// Opens the node, once more.
    ///
    /// # Errors
    ///
    /// Those of open(2).
    pub fn open(&self) -> Result<VhostNet> {
        Ok(VhostNet::open(&self.node, true)?)
    }

    /// Opens the node, and becomes its owner.
    ///
    /// # Errors
    ///
    /// Those of open(2) and `VHOST_SET_OWNER`.
    pub fn owned(&self) -> Result<VhostNet> {
        let vhost = self.open()?;
        vhost.set_owner()?;
        Ok(vhost)
    }

    /// Notes an outcome.
    pub fn note(&mut self, call: impl Into<String>, outcome: impl Outcome) {
        self.text(call, outcome.text());
    }

    /// Notes an outcome that is text already.
    pub fn text(&mut self, call: impl Into<String>, outcome: impl Into<String>) {
        self.steps.push(Step {
            call: call.into(),
            outcome: outcome.into(),
        });
    }

    /// The steps.
    pub fn finish(self) -> Vec<Step> {
        self.steps
    }
}
