// SPDX-License-Identifier: GPL-2.0

//! Devices, brought into one of the states that calls are tried in.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{ensure, Result};
use vhost_uapi::{features, VhostNet};

use crate::ground::{Ground, BASE, NUM, RX, TX};
use crate::message::{Message, UPDATE};
use crate::observe::flush;

/// How far a device has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    /// Opened.
    Fresh,
    /// Has an owner.
    Owned,
    /// Rings have a size and a base, nothing else is set.
    Sized,
    /// All but the backend is set; the device adds the header.
    Ready,
    /// The same with event indices.
    EventIdx,
    /// The same with an empty device IOTLB.
    Iotlb,
    /// Both rings have a tap.
    Running,
    /// The sending ring has a tap, the other was never set up.
    TxOnly,
    /// Both run by a device IOTLB that has all of the memory.
    IotlbRunning,
    /// Both run, and every write is logged.
    Logging,
    /// Both run; the worker is a kernel thread.
    Kthread,
    /// Both ran.
    Stopped,
    /// Both ran, then the owner was reset.
    Reset,
    /// The same, and there is an owner again.
    Reowned,
    /// Its owner is gone.
    Dead,
}

impl State {
    /// Name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fresh => "fresh",
            Self::Owned => "owned",
            Self::Sized => "sized",
            Self::Ready => "ready",
            Self::EventIdx => "event_idx",
            Self::Iotlb => "iotlb",
            Self::Running => "running",
            Self::TxOnly => "tx only",
            Self::IotlbRunning => "iotlb running",
            Self::Logging => "logging",
            Self::Kthread => "kthread",
            Self::Stopped => "stopped",
            Self::Reset => "reset",
            Self::Reowned => "reowned",
            Self::Dead => "owner gone",
        }
    }

    fn features(self) -> u64 {
        let more = match self {
            Self::EventIdx => 1 << features::EVENT_IDX,
            Self::Iotlb | Self::IotlbRunning => 1 << features::ACCESS_PLATFORM,
            Self::Logging => 1 << features::LOG_ALL,
            _ => 0,
        };
        1 << features::ANY_LAYOUT | 1 << features::VERSION_1 | more
    }

    fn by_io_address(self) -> bool {
        matches!(self, Self::Iotlb | Self::IotlbRunning)
    }

    /// Whether packets can be carried.
    pub fn carries(self) -> bool {
        self.is_owned() && !matches!(self, Self::Owned | Self::Sized | Self::Reowned)
    }

    /// Whether this process owns the device.
    pub fn is_owned(self) -> bool {
        !matches!(self, Self::Fresh | Self::Reset | Self::Dead)
    }
}

/// A device in some state.
#[derive(Debug)]
pub struct Device {
    /// The open node.
    pub vhost: VhostNet,
    /// Steps on the way that failed.
    pub failed: Vec<String>,
}

/// Opens a node, so that read(2) does not wait.
///
/// # Errors
///
/// Those of open(2).
pub fn open(node: &Path) -> Result<VhostNet> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(node)?;
    Ok(VhostNet::from(OwnedFd::from(file)))
}

impl Device {
    /// Brings a device into a state. What the driver refuses on the way is noted.
    ///
    /// # Errors
    ///
    /// The machine cannot do it.
    pub fn new(node: &Path, state: State, ground: &Ground) -> Result<Self> {
        let mut device = Self {
            vhost: open(node)?,
            failed: Vec::new(),
        };
        // A kick that was left over would wake the worker before there is a backend, or after.
        ground.refresh()?;
        ground.clear();
        device.prepare(state, ground)?;
        flush(&device.vhost);
        Ok(device)
    }

    fn step<T>(&mut self, result: vhost_uapi::Result<T>) {
        if let Err(err) = result {
            self.failed.push(format!("{}: {:?}", err.call, err.errno));
        }
    }

    fn prepare(&mut self, state: State, ground: &Ground) -> Result<()> {
        match state {
            State::Fresh => return Ok(()),
            State::Dead => return self.own_and_die(),
            State::Kthread => self.step(self.vhost.set_fork_from_owner(0)),
            _ => (),
        }
        self.step(self.vhost.set_owner());
        if state == State::Owned {
            return Ok(());
        }
        let rings: &[usize] = if state == State::TxOnly {
            &[TX]
        } else {
            &[RX, TX]
        };
        for ring in rings {
            let index = *ring as u32; // CAST: 0 or 1.
            self.step(self.vhost.set_vring_num(index, NUM.into()));
            self.step(self.vhost.set_vring_base(index, BASE.into()));
        }
        if state == State::Sized {
            return Ok(());
        }
        self.configure(state, ground, rings)?;
        if matches!(state, State::Ready | State::EventIdx | State::Iotlb) {
            return Ok(());
        }
        self.start(state, ground, rings);
        Ok(())
    }

    fn configure(&mut self, state: State, ground: &Ground, rings: &[usize]) -> Result<()> {
        self.step(self.vhost.set_features(state.features()));
        self.step(self.vhost.set_mem_table(&ground.table()));
        if state == State::Logging {
            self.step(self.vhost.set_log_base(ground.log_base()));
            self.step(self.vhost.set_log_fd(Some(ground.log.as_fd())));
        }
        for ring in rings {
            let index = *ring as u32; // CAST: 0 or 1.
            let addr = if state.by_io_address() {
                ground.io_address(*ring)
            } else {
                ground.address(*ring, state == State::Logging)
            };
            self.step(self.vhost.set_vring_addr(index, &addr));
            let events = &ground.events[*ring];
            let results = [
                self.vhost.set_vring_kick(index, Some(events.kick.as_fd())),
                self.vhost.set_vring_call(index, Some(events.call.as_fd())),
                self.vhost.set_vring_err(index, Some(events.err.as_fd())),
            ];
            for result in results {
                self.step(result);
            }
        }
        if state == State::IotlbRunning {
            self.map_all(ground)?;
        }
        Ok(())
    }

    /// Tells the device IOTLB of all of the memory.
    fn map_all(&mut self, ground: &Ground) -> Result<()> {
        for region in ground.table() {
            let update = Message {
                iova: region.guest_phys_addr,
                size: region.memory_size,
                uaddr: region.userspace_addr,
                perm: 3,
                kind: UPDATE,
            };
            if let Err(errno) = nix::unistd::write(&self.vhost, &update.version_2()) {
                self.failed.push(format!("update of the IOTLB: {errno:?}"));
            }
        }
        Ok(())
    }

    fn start(&mut self, state: State, ground: &Ground, rings: &[usize]) {
        for ring in rings {
            let index = *ring as u32; // CAST: 0 or 1.
            self.step(self.vhost.set_backend(index, Some(ground.tap())));
        }
        match state {
            State::Stopped => {
                for index in [0, 1] {
                    self.step(self.vhost.set_backend(index, None));
                }
            }
            State::Reset => self.step(self.vhost.reset_owner()),
            State::Reowned => {
                self.step(self.vhost.reset_owner());
                self.step(self.vhost.set_owner());
            }
            _ => (),
        }
    }

    /// Another process becomes the owner, and ends.
    fn own_and_die(&mut self) -> Result<()> {
        let fd = self.vhost.as_fd().try_clone_to_owned()?;
        let status = Command::new(std::env::current_exe()?)
            .arg("own")
            .stdin(Stdio::from(fd))
            .status()?;
        ensure!(status.success(), "the process that was to own failed");
        Ok(())
    }
}

/// The process that owns its standard input, a device, for a moment.
///
/// # Errors
///
/// It may not.
pub fn own() -> Result<()> {
    let vhost = VhostNet::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    vhost.set_owner()?;
    Ok(())
}
