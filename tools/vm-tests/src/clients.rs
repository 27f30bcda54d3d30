// SPDX-License-Identifier: GPL-2.0

//! The programs that use vhost-net: the calls of each in its order, until packets go round, then as it stops and starts again.

mod guest;
mod orders;
mod rust_vmm;
mod vmm;

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{anyhow, ensure, Context, Result};
use nix::fcntl::OFlag;
use vhost_uapi::{netdev, Offload, PacketSocket, Tap, TapOptions, TunFlags, VhostNet};

use crate::pump::shape;
use crate::report::{Report, Test};
use crate::rig::HEADER;
use guest::Guest;
use orders::{Client, Opener, CLIENTS};
use vmm::{Machine, Vmm};

/// The node whose path rust-vmm's crate has in it.
const USUAL: &str = "/dev/vhost-net";
/// A user without rights.
const NOBODY: u32 = 65534;

/// Runs the clients whose names contain `only`.
pub fn run(node: &Path, only: &str, report: &mut Report) {
    let client = |client: &'static Client| Test::new(client.name, move || play(node, client));
    let mut tests: Vec<Test<'_>> = CLIENTS.iter().map(client).collect();
    if node == Path::new(USUAL) {
        tests.push(Test::new("rust-vmm's vhost crate", || {
            on_tap(i32::MAX, rust_vmm::run)
        }));
    }
    tests.retain(|test| test.name.contains(only));
    report.run_on(1, &tests);
}

/// Makes a tap, at whose other end everything is sent back.
fn on_tap(sndbuf: i32, client: impl FnOnce(&Tap) -> Result<()>) -> Result<()> {
    let options = TapOptions {
        flags: TunFlags::default(),
        vnet_hdr_size: Some(HEADER),
        sndbuf,
        offload: Offload::None,
    };
    let tap = Tap::create("", &options)?;
    netdev::disable_ipv6(tap.name())?;
    netdev::set_up(tap.name())?;
    let wire = PacketSocket::open(netdev::index(tap.name())?, shape().protocol())?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let echo = scope.spawn(|| send_back(&wire, &stop));
        let result = client(&tap);
        stop.store(true, Ordering::Relaxed);
        let echo = echo
            .join()
            .map_err(|_| anyhow!("the wire's thread panicked"))?;
        result.and(echo.context("the wire"))
    })
}

/// Sends what arrives back to where it came from, until `stop`.
fn send_back(wire: &PacketSocket, stop: &AtomicBool) -> Result<()> {
    const MAC: usize = 6;
    let mut packet = [0; 2048];
    while !stop.load(Ordering::Relaxed) {
        let Some(len) = wire.receive(&mut packet)? else {
            wire.wait(Duration::from_millis(20))?;
            continue;
        };
        let whole = packet.get_mut(..len).context("a packet that is too long")?;
        let addresses =
            whole.get_mut(PacketSocket::HEADER_SIZE..PacketSocket::HEADER_SIZE + 2 * MAC);
        addresses
            .context("a packet that is too short")?
            .rotate_left(MAC);
        while !wire.send(whole)? {
            std::thread::yield_now();
        }
    }
    Ok(())
}

fn play(node: &Path, client: &'static Client) -> Result<()> {
    on_tap(client.sndbuf, |tap| {
        let open = || open(node, client);
        match client.opener {
            Opener::Owner => {
                let devices: Result<Vec<_>> = (0..client.devices).map(|_| open()).collect();
                steps(client, devices?, tap.as_fd().try_clone_to_owned()?)
            }
            Opener::Parent => child(client, open()?, tap),
        }
    })
}

fn open(node: &Path, client: &Client) -> Result<OwnedFd> {
    let flags = if client.nonblocking {
        OFlag::O_NONBLOCK
    } else {
        OFlag::empty()
    };
    let mut options = File::options();
    options.read(true).write(true).custom_flags(flags.bits());
    let file = options
        .open(node)
        .with_context(|| format!("open {}", node.display()))?;
    Ok(file.into())
}

fn steps(client: &Client, devices: Vec<OwnedFd>, tap: OwnedFd) -> Result<()> {
    let machine = |(number, fd): (u32, OwnedFd)| {
        let guest = Guest::new(number, client.guest, client.addresses)?;
        Machine::new(VhostNet::from(fd), guest)
    };
    let machines: Result<Vec<Machine>> = (0..).zip(devices).map(machine).collect();
    Vmm::new(machines?, tap.as_fd()).run(client.steps)
}

/// Has a process without rights be the owner of a device that is open here.
fn child(client: &Client, device: OwnedFd, tap: &Tap) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["client", client.name]).uid(NOBODY);
    command
        .stdin(device)
        .stdout(tap.as_fd().try_clone_to_owned()?);
    let output = command.stderr(Stdio::piped()).spawn()?.wait_with_output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "the owner: {}: {}",
        output.status,
        errors.trim()
    );
    Ok(())
}

/// The process that is the owner: standard input is the device, standard output is the tap.
///
/// # Errors
///
/// What fails first.
pub fn owner(name: &str) -> Result<()> {
    let client = CLIENTS.iter().find(|client| client.name == name);
    let client = client.with_context(|| format!("no client {name:?}"))?;
    let device = std::io::stdin().as_fd().try_clone_to_owned()?;
    let tap = std::io::stdout().as_fd().try_clone_to_owned()?;
    steps(client, vec![device], tap)
}
