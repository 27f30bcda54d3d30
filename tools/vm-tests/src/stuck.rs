// SPDX-License-Identifier: GPL-2.0

//! An owner that is killed while its worker waits for memory that the owner alone could serve.

use std::cell::RefCell;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{ensure, Context, Result};
use vhost_load::session::SessionOptions;
use vhost_load::vring::{RX, TX};
use vhost_uapi::{StuckPage, VringAddr};

use crate::patience::{patience, wait_for};
use crate::rig::Rig;

/// An owner that is killed goes, some times.
///
/// # Errors
///
/// One did not.
pub fn killed(node: &Path) -> Result<()> {
    for round in 0..5 {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("stuck-owner")
            .arg("--node")
            .arg(node)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        let stdout = child.stdout.take().context("no pipe to the process")?;
        BufReader::new(stdout).read_line(&mut line)?;
        child.kill()?;
        ensure!(line.trim() == "ready", "the owner said {line:?}");
        let child = RefCell::new(child);
        wait_for(|| matches!(child.borrow_mut().try_wait(), Ok(Some(_))))
            .with_context(|| format!("round {round}: the owner cannot be killed"))?;
    }
    Ok(())
}

/// Owns a device whose worker waits for memory and has more to do, until it is killed.
///
/// # Errors
///
/// What fails first.
pub fn main(node: &Path) -> Result<()> {
    let page = StuckPage::new()?;
    // Files that were opened last are closed first: the device, then what serves the page.
    let _plug = File::open("/dev/null")?;
    let rig = Rig::detached(&SessionOptions {
        node: node.to_owned(),
        ..SessionOptions::default()
    })?;
    for index in [RX, TX] {
        let layout = *rig.vring(index).queue.layout();
        let addr = VringAddr {
            flags: 0,
            desc: rig.session.memory.uva(layout.desc, 1).context("a table")?,
            used: rig.session.memory.uva(layout.used, 1).context("a ring")?,
            avail: page.uva(),
            log: 0,
        };
        rig.vhost().set_vring_addr(index, &addr)?;
    }
    rig.session.device.attach()?;
    page.wait(patience())?;
    for index in [RX, TX] {
        rig.kick(index)?;
    }
    println!("ready");
    loop {
        std::thread::park();
    }
}
