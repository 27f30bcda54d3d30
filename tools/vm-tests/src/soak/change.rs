// SPDX-License-Identifier: GPL-2.0

//! What is changed of a device under traffic.

use std::os::fd::{AsFd, OwnedFd};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use vhost_driver::{GuestMemory, RingLayout};
use vhost_load::plan::Plan;
use vhost_load::session::{Device, Session};
use vhost_load::vring::{RX, TX};
use vhost_uapi::{features, EventFd, MemoryRegion, Policy, PollFlags, VringAddr, VringPoll};

use crate::dice::Dice;

/// A change, and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub(super) enum Change {
    /// The backend is detached; the device goes on where it was.
    Restart,
    /// `VHOST_SET_VRING_BUSYLOOP_TIMEOUT`.
    Window,
    /// `VHOST_NET_RS_SET_POLL`.
    Poll,
    /// A ring has no call eventfd for a while.
    Call,
    /// Or no kick eventfd.
    Kick,
    /// The memory table is set.
    Table,
    /// The log begins or ends, or the log of one used ring.
    Log,
}

impl Change {
    pub(super) const ALL: [Self; 7] = [
        Self::Restart,
        Self::Window,
        Self::Poll,
        Self::Call,
        Self::Kick,
        Self::Table,
        Self::Log,
    ];
}

/// A device, seen by who changes it.
pub(super) struct Target {
    memory: GuestMemory,
    layouts: [RingLayout; 2],
    /// kick and call of rx, then of tx: other descriptors of the same eventfds.
    events: [[OwnedFd; 2]; 2],
    /// Nothing where the device asks for each page.
    table: Option<Vec<MemoryRegion>>,
    features: u128,
    /// The log's map, one bit for a page of the guest's memory; nothing where an IOMMU is.
    log: Option<GuestMemory>,
}

/// Bytes of a page of the log.
const PAGE: u64 = 4096;
/// `VHOST_VRING_F_LOG`.
const F_LOG: u32 = 1;

impl Target {
    pub(super) fn new(plan: &Plan, session: &Session) -> Result<Self> {
        let memory = session.memory.clone();
        let vrings = [&session.rx, &session.tx];
        let platform = features::has(plan.session.features, features::ACCESS_PLATFORM);
        let table: Vec<MemoryRegion> = memory.regions().iter().map(crate::rig::region).collect();
        let end = |region: &MemoryRegion| region.guest_phys_addr + region.memory_size;
        let pages = table
            .iter()
            .map(end)
            .max()
            .context("memory")?
            .div_ceil(PAGE);
        let bytes = usize::try_from(pages.div_ceil(64) * 8)?;
        let log = (!platform)
            .then(|| GuestMemory::new(&[bytes], None))
            .transpose()?;
        let own = |event: &EventFd| event.as_fd().try_clone_to_owned();
        Ok(Self {
            memory,
            layouts: vrings.map(|vring| *vring.queue.layout()),
            events: [
                [own(&session.rx.kick)?, own(&session.rx.call)?],
                [own(&session.tx.kick)?, own(&session.tx.call)?],
            ],
            table: (!plan.session.iommu).then_some(table),
            features: plan.session.features,
            log,
        })
    }

    /// Changes the device. Says whether that can be.
    ///
    /// # Errors
    ///
    /// A call that was refused.
    pub(super) fn change(&self, device: &Device, change: Change, dice: &mut Dice) -> Result<bool> {
        let side = usize::from(dice.coin());
        let index = if side == 0 { RX } else { TX };
        let vhost = &device.vhost;
        match change {
            Change::Restart => self.restart(device, dice)?,
            Change::Window => {
                vhost.set_vring_busyloop_timeout(index, dice.pick(0, &[5, 50, 2000]))?;
            }
            Change::Poll => vhost.set_poll(index, poll(dice))?,
            Change::Call => {
                vhost.set_vring_call(index, None)?;
                pause(dice);
                vhost.set_vring_call(index, Some(self.events[side][1].as_fd()))?;
            }
            Change::Kick => {
                vhost.set_vring_kick(index, None)?;
                pause(dice);
                vhost.set_vring_kick(index, Some(self.events[side][0].as_fd()))?;
            }
            Change::Table => match &self.table {
                Some(table) => vhost.set_mem_table(table)?,
                None => return Ok(false),
            },
            Change::Log => return self.log(device, dice),
        }
        Ok(true)
    }

    fn restart(&self, device: &Device, dice: &mut Dice) -> Result<()> {
        device.detach()?;
        pause(dice);
        for (index, layout) in [RX, TX].into_iter().zip(&self.layouts) {
            device.reload_base(&self.memory, layout, index)?;
        }
        Ok(device.attach()?)
    }

    fn log(&self, device: &Device, dice: &mut Dice) -> Result<bool> {
        let Some(log) = &self.log else {
            return Ok(false);
        };
        let map = log.regions().first().context("the log's map")?.uva;
        device.vhost.set_log_base(map)?;
        self.log_used(device, dice)?;
        let logging = self.features | 1 << features::LOG_ALL;
        let [low, _] = features::words(logging);
        device.vhost.set_features(low)?;
        pause(dice);
        self.log_used(device, dice)?;
        let [low, _] = features::words(self.features);
        device.vhost.set_features(low)?;
        Ok(true)
    }

    /// Has the used rings logged, or not.
    fn log_used(&self, device: &Device, dice: &mut Dice) -> Result<()> {
        for (index, ring) in [RX, TX].into_iter().zip(&self.layouts) {
            let uva = |gpa| self.memory.uva(gpa, 1).context("a ring outside of memory");
            let addr = VringAddr {
                flags: if dice.coin() { F_LOG } else { 0 },
                desc: uva(ring.desc)?,
                used: uva(ring.used)?,
                avail: uva(ring.avail)?,
                log: ring.used.0,
            };
            device.vhost.set_vring_addr(index, &addr)?;
        }
        Ok(())
    }
}

fn poll(dice: &mut Dice) -> VringPoll {
    let [fixed, others @ ..] = Policy::ALL;
    VringPoll {
        policy: dice.pick(fixed, &others),
        flags: PollFlags {
            competitor: dice.coin(),
            guest: dice.coin(),
        },
        start_rate: dice.pick(0, &[1, 1000]),
        stop_idle_us: dice.pick(0, &[50, 2000]),
    }
}

/// Gives the worker time to use what was set, or none.
fn pause(dice: &mut Dice) {
    sleep(Duration::from_micros(dice.roll(4) * 500));
}
