// SPDX-License-Identifier: GPL-2.0

//! What the commands have in common.

use std::io::Write;

use crate::args::{Cli, Command};
use crate::device::{snapshot, Snapshot};
use crate::failure::{Failure, Result};
use crate::host::Host;
use crate::rights::Rights;
use crate::signals::Signals;
use crate::target::{self, Target};
use crate::{control, export, list, stat, top, trace, tune};

/// The host, the options that hold for all commands, the signals.
#[derive(Debug)]
pub struct App {
    /// Whose devices.
    pub host: Host,
    /// Print JSON.
    pub json: bool,
    /// What ends a command that goes on.
    pub signals: Signals,
}

impl App {
    /// The devices that are named; what cannot be seen is said on standard error.
    ///
    /// # Errors
    ///
    /// If a name is of no device.
    pub fn selected(&self, targets: &[Target]) -> Result<Snapshot> {
        let mut snapshot = snapshot(&self.host);
        target::select(&self.host, &mut snapshot, targets)?;
        Ok(snapshot)
    }

    /// Those of them that are still there.
    pub fn still(&self, targets: &[Target]) -> Snapshot {
        let mut snapshot = snapshot(&self.host);
        target::keep(&mut snapshot, targets);
        snapshot
    }

    /// Fails if not all devices can have been seen, though all were asked for.
    fn complete(&self, targets: &[Target], snapshot: &Snapshot) -> Result {
        if !snapshot.loaded {
            eprintln!("vhostctl: no vhost-net driver is loaded: modprobe vhost_net_rs");
        }
        let lines = Rights::of_this_process(&self.host).left_out(&self.host, snapshot);
        if targets.is_empty() && !lines.is_empty() {
            return Err(Failure::Right(lines.join("\nvhostctl: ")));
        }
        Ok(())
    }
}

/// Runs a command on this host.
///
/// # Errors
///
/// What the exit status tells.
pub fn run(cli: &Cli, out: &mut dyn Write) -> Result {
    let app = App {
        host: Host::live(),
        json: cli.json,
        signals: Signals::block()?,
    };
    let (targets, seen) = match &cli.command {
        Command::List(selection) => {
            let seen = app.selected(&selection.targets)?;
            list::print(out, &seen.devices, app.json)?;
            (&selection.targets, seen)
        }
        Command::Stat(options) => (&options.selection.targets, stat::run(&app, options, out)?),
        Command::Top(options) => (&options.selection.targets, top::run(&app, options, out)?),
        Command::Get(selection) => (
            &selection.targets,
            control::get(&app, &selection.targets, out)?,
        ),
        Command::Set(options) => (&options.targets, control::set(&app, options, out)?),
        Command::Trace(options) => (&options.selection.targets, trace::run(&app, options, out)?),
        Command::Export(options) => (&options.selection.targets, export::run(&app, options, out)?),
        Command::Tune(options) => (&options.selection.targets, tune::run(&app, options, out)?),
    };
    out.flush()?;
    app.complete(targets, &seen)
}
