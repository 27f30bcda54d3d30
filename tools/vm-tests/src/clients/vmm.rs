// SPDX-License-Identifier: GPL-2.0

//! What a client does to a vhost device, one call after the other.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{ensure, Context, Result};
use nix::errno::Errno;
use vhost_load::vring::{RX, TX};
use vhost_uapi::{features, EventFd, MemoryRegion, VhostNet};

use super::guest::Guest;
use crate::rig::{name, region};

/// Bursts that go round in one [`Step::Traffic`].
const BURSTS: usize = 8;
/// Bytes in front of the guest's memory that are in the memory table, and are not there.
const WIDE: u64 = 1 << 36;

/// One thing that a client does, or that happens to it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// Several, one after the other.
    All(&'static [Step]),
    /// What follows is about this device.
    Device(usize),
    /// `VHOST_SET_OWNER`.
    SetOwner,
    /// `VHOST_RESET_OWNER`.
    ResetOwner,
    /// `VHOST_RESET_OWNER` of a device that has no owner any more. The client takes no notice of the error.
    ResetOwnerAgain,
    /// `VHOST_GET_FEATURES`, which must have these.
    Offers(u64),
    /// `VHOST_SET_FEATURES`.
    Features(u64),
    /// `VHOST_GET_BACKEND_FEATURES`, and all of them set.
    BackendFeatures,
    /// `VHOST_SET_MEM_TABLE`: the guest's memory in so many regions.
    Memory(u64),
    /// `VHOST_SET_MEM_TABLE`: one region that ends with the guest's memory, and most of which is not there.
    WideMemory,
    /// The same for rx, then for tx.
    Each(&'static [Ring]),
    /// For one ring.
    On(u32, &'static [Ring]),
    /// The guest's driver gives the device buffers, and packets to send.
    Post,
    /// What was posted arrives.
    Arrives,
    /// Packets go round, many times.
    Traffic,
}

/// One thing that a client does to a ring.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ring {
    /// `VHOST_SET_VRING_NUM`.
    Num,
    /// `VHOST_SET_VRING_BASE`: what [`Ring::GetBase`] said, or 0.
    Base,
    /// `VHOST_SET_VRING_ADDR`.
    Addr,
    /// `VHOST_SET_VRING_KICK`.
    Kick,
    /// `VHOST_SET_VRING_CALL`: the guest's.
    Call,
    /// `VHOST_SET_VRING_ERR`.
    Err,
    /// `VHOST_SET_VRING_BUSYLOOP_TIMEOUT`.
    Window(u32),
    /// `VHOST_NET_SET_BACKEND`.
    Attach,
    /// `VHOST_NET_SET_BACKEND` of -1.
    Detach,
    /// `VHOST_GET_VRING_BASE`.
    GetBase,
    /// `VHOST_SET_VRING_KICK` of -1.
    NoKick,
    /// `VHOST_SET_VRING_CALL` of -1.
    NoCall,
    /// `VHOST_SET_VRING_CALL` of the client's own eventfd: the guest has masked its interrupt.
    Mask,
    /// The guest's again: calls came to the client's meanwhile, and none to the guest's.
    Unmask,
    /// The guest's driver begins anew.
    Reset,
}

/// A client's side of a device, and the guest behind it.
#[derive(Debug)]
pub(super) struct Machine {
    vhost: VhostNet,
    guest: Guest,
    bases: [u32; 2],
    masked: [EventFd; 2],
}

/// A client: its devices, and the tap that all of them have.
#[derive(Debug)]
pub(super) struct Vmm<'a> {
    machines: Vec<Machine>,
    tap: BorrowedFd<'a>,
    current: usize,
    posted: Option<std::ops::Range<u64>>,
}

impl Machine {
    /// A device that nothing was done to.
    pub(super) fn new(vhost: VhostNet, guest: Guest) -> Result<Self> {
        Ok(Self {
            vhost,
            guest,
            bases: [0; 2],
            masked: [EventFd::new()?, EventFd::new()?],
        })
    }

    fn memory(&self, regions: u64) -> Result<()> {
        let [whole] = self.guest.memory.regions() else {
            anyhow::bail!("the guest's memory is in one piece");
        };
        let size = whole.size / regions;
        let part = |number| MemoryRegion {
            guest_phys_addr: whole.gpa.0 + size * number,
            memory_size: size,
            userspace_addr: whole.uva + size * number,
        };
        let table: Vec<MemoryRegion> = (0..regions).map(part).collect();
        Ok(self.vhost.set_mem_table(&table)?)
    }

    fn wide_memory(&self) -> Result<()> {
        let [whole] = self.guest.memory.regions() else {
            anyhow::bail!("the guest's memory is in one piece");
        };
        let mut wide = region(whole);
        ensure!(
            wide.guest_phys_addr == wide.userspace_addr,
            "the guest's addresses are not the owner's"
        );
        wide.guest_phys_addr -= WIDE;
        wide.userspace_addr -= WIDE;
        wide.memory_size += WIDE;
        Ok(self.vhost.set_mem_table(&[wide])?)
    }

    fn ring(&mut self, index: u32, call: Ring, tap: BorrowedFd<'_>) -> Result<()> {
        let place = usize::from(index == TX);
        let (vhost, vring) = (&self.vhost, self.guest.vring(index));
        match call {
            Ring::Num => vhost.set_vring_num(index, u32::from(vring.queue.layout().num))?,
            Ring::Base => vhost.set_vring_base(index, self.bases[place])?,
            Ring::Addr => vhost.set_vring_addr(index, &self.guest.ring_addr(index)?)?,
            Ring::Kick => vhost.set_vring_kick(index, Some(vring.kick.as_fd()))?,
            Ring::Err => vhost.set_vring_err(index, Some(vring.err.as_fd()))?,
            Ring::Window(micros) => vhost.set_vring_busyloop_timeout(index, micros)?,
            Ring::Attach => vhost.set_backend(index, Some(tap))?,
            Ring::Detach => vhost.set_backend(index, None)?,
            Ring::NoKick => vhost.set_vring_kick(index, None)?,
            Ring::GetBase => {
                let (base, used) = (vhost.vring_base(index)?, vring.queue.used_idx());
                ensure!(base == u32::from(used), "base {base}, used index {used}");
                self.bases[place] = base;
            }
            Ring::Call => {
                vhost.set_vring_call(index, Some(vring.call.as_fd()))?;
                self.guest.expect_calls(index, true);
            }
            Ring::NoCall => {
                vhost.set_vring_call(index, None)?;
                self.guest.expect_calls(index, false);
            }
            Ring::Mask => {
                vhost.set_vring_call(index, Some(self.masked[place].as_fd()))?;
                vring.call.take()?;
                self.guest.expect_calls(index, false);
            }
            Ring::Unmask => {
                vhost.set_vring_call(index, Some(vring.call.as_fd()))?;
                let counts = (self.masked[place].take()?, vring.call.take()?);
                ensure!(
                    counts.0 > 0 && counts.1 == 0,
                    "calls of the (client's, guest's) eventfd while masked: {counts:?}"
                );
                self.guest.expect_calls(index, true);
            }
            Ring::Reset => {
                self.bases[place] = 0;
                self.guest.reset(index)?;
            }
        }
        Ok(())
    }
}

impl<'a> Vmm<'a> {
    /// A client with these devices. The first receives whatever comes from the tap.
    pub(super) fn new(machines: Vec<Machine>, tap: BorrowedFd<'a>) -> Self {
        Self {
            machines,
            tap,
            current: 0,
            posted: None,
        }
    }

    /// Goes through a client's steps.
    ///
    /// # Errors
    ///
    /// The step that failed, and how.
    pub(super) fn run(&mut self, steps: &[Step]) -> Result<()> {
        for (number, step) in steps.iter().enumerate() {
            self.step(*step)
                .with_context(|| format!("step {number}, {step:x?}"))?;
        }
        Ok(())
    }

    fn machine(&mut self) -> Result<&mut Machine> {
        self.machines
            .get_mut(self.current)
            .context("no such device")
    }

    fn step(&mut self, step: Step) -> Result<()> {
        let tap = self.tap;
        let machine = self.machine()?;
        let vhost = &machine.vhost;
        match step {
            Step::All(steps) => self.run(steps)?,
            Step::Device(number) => self.current = number,
            Step::SetOwner => vhost.set_owner()?,
            Step::ResetOwner => vhost.reset_owner()?,
            Step::ResetOwnerAgain => {
                let refused = vhost.reset_owner().map_err(|err| err.errno);
                ensure!(
                    refused == Err(Errno::EPERM),
                    "it answers {refused:?}, not EPERM"
                );
            }
            Step::Offers(wanted) => {
                let missing = wanted & !vhost.features()?;
                ensure!(
                    missing == 0,
                    "not offered: {}",
                    features::describe(u128::from(missing))
                );
            }
            Step::Features(word) => vhost.set_features(word)?,
            Step::BackendFeatures => vhost.set_backend_features(vhost.backend_features()?)?,
            Step::Memory(regions) => machine.memory(regions)?,
            Step::WideMemory => machine.wide_memory()?,
            Step::Each(calls) => {
                for index in [RX, TX] {
                    machine.rings(index, calls, tap)?;
                }
            }
            Step::On(index, calls) => machine.rings(index, calls, tap)?,
            Step::Post => self.post()?,
            Step::Arrives => self.arrives()?,
            Step::Traffic => {
                for _ in 0..BURSTS {
                    self.post()?;
                    self.arrives()?;
                }
            }
        }
        Ok(())
    }

    fn post(&mut self) -> Result<()> {
        let receiver = self.machines.first_mut().context("no device")?;
        receiver.guest.post()?;
        self.posted = Some(self.machine()?.guest.send()?);
        Ok(())
    }

    fn arrives(&mut self) -> Result<()> {
        let posted = self.posted.take().context("nothing was posted")?;
        let from = u32::try_from(self.current)?;
        self.machine()?.guest.sent()?;
        let receiver = self.machines.first_mut().context("no device")?;
        receiver.guest.receive(from, posted)
    }
}

impl Machine {
    fn rings(&mut self, index: u32, calls: &[Ring], tap: BorrowedFd<'_>) -> Result<()> {
        for call in calls {
            self.ring(index, *call, tap)
                .with_context(|| format!("{} ring, {call:?}", name(index)))?;
        }
        Ok(())
    }
}
