// SPDX-License-Identifier: GPL-2.0

//! A vhost-net device with everything it needs: owner, memory, rings, backend.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::Arc;

use anyhow::{anyhow, bail, ensure, Context, Result};
use std::os::fd::{AsFd, AsRawFd};
use vhost_driver::{Gpa, GuestMemory, Indirect, RingFeatures, RingLayout, Virtqueue};
use vhost_uapi::{features, MemoryRegion, VhostNet, VringAddr};

use crate::backend::{Backend, BackendOptions};
use crate::failure::{ring_name, Failure};
use crate::iommu::{self, Iommu};
use crate::iotlb;
use crate::vring::{Vring, RX, TX};
use crate::worker::Worker;

/// `VHOST_BACKEND_F_IOTLB_MSG_V2`.
const BACKEND_IOTLB_V2: u64 = 1 << 1;

/// What a session is made of. [`SessionOptions::default`] is a plain one, for tests to change.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The device node.
    pub node: PathBuf,
    /// Feature bits to agree on.
    pub features: u128,
    /// Descriptors of each ring.
    pub ring_size: u32,
    /// What the ring indices start at.
    pub start: u16,
    /// Descriptors of an indirect table, if the feature is agreed on.
    pub indirect_entries: u16,
    /// Bytes of buffers for rx and for tx.
    pub buffer_bytes: [u64; 2],
    /// Regions of the memory table. With two or more, the first holds the rings.
    pub regions: usize,
    /// Whether the driver's addresses are the owner's. Only with one region.
    pub identity: bool,
    /// Mappings of the device's IOTLB, if it has one. Only with one region.
    pub iotlb: Option<u32>,
    /// Whether the memory is at the top of the owner's address space.
    pub top: bool,
    /// Whether the device learns of the memory from an [`Iommu`], page by page, for which someone must
    /// [serve](Iommu::serve). The features have ACCESS_PLATFORM then.
    pub iommu: bool,
    /// Busy polling window of both rings, in microseconds; nothing leaves it alone.
    pub busyloop: Option<u32>,
    /// What is behind the rings.
    pub backend: BackendOptions,
    /// Whether the worker is a kernel thread; nothing leaves it to the module.
    pub kthread: Option<bool>,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self {
            node: PathBuf::from("/dev/vhost-net"),
            features: 1 << features::VERSION_1 | 1 << features::EVENT_IDX,
            ring_size: 256,
            start: 0,
            indirect_entries: 0,
            buffer_bytes: [1 << 20; 2],
            regions: 1,
            identity: false,
            iotlb: None,
            top: false,
            iommu: false,
            busyloop: None,
            backend: BackendOptions::default(),
            kthread: None,
        }
    }
}

/// The device and its backend: what threads share.
#[derive(Debug)]
pub struct Device {
    /// The open node.
    pub vhost: VhostNet,
    /// What is behind the rings.
    pub backend: Backend,
    /// What the device asks for the memory.
    pub iommu: Option<Iommu>,
    /// Where the used rings are, as the driver has it.
    used: [Gpa; 2],
}

impl Device {
    /// Attaches the backend to both rings.
    ///
    /// # Errors
    ///
    /// Those of `VHOST_NET_SET_BACKEND`.
    pub fn attach(&self) -> Result<(), Failure> {
        for (index, used) in [RX, TX].into_iter().zip(self.used) {
            let attach = || self.vhost.set_backend(index, Some(self.backend.as_fd()));
            match &self.iommu {
                None => attach()?,
                // It reads its place in the ring.
                Some(iommu) => iommu.with_page(&self.vhost, used, attach)?,
            }
        }
        Ok(())
    }

    /// Detaches the backend. The device touches neither ring nor buffers when this returns.
    ///
    /// # Errors
    ///
    /// Those of `VHOST_NET_SET_BACKEND`.
    pub fn detach(&self) -> Result<(), Failure> {
        for index in [RX, TX] {
            self.vhost.set_backend(index, None)?;
        }
        Ok(())
    }

    /// A counter of both vrings together, by its key in `/proc/PID/fdinfo/FD`. Nothing for a device without it.
    pub fn counter(&self, key: &str) -> Option<u64> {
        let fd = self.vhost.as_fd().as_raw_fd();
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).ok()?;
        let of = |ring: &str| {
            let key = format!("vhost-{ring}-{key}:");
            let value = text.lines().find_map(|line| line.strip_prefix(&key))?;
            value.trim().parse::<u64>().ok()
        };
        Some(of("rx")? + of("tx")?)
    }

    /// Reads where the device is in a detached ring, and has it go on from there.
    ///
    /// # Errors
    ///
    /// [`Failure::State`] if it is not where its used index is: then it has chains that it will never return.
    pub fn reload_base(
        &self,
        memory: &GuestMemory,
        ring: &RingLayout,
        index: u32,
    ) -> Result<(), Failure> {
        let base = self.vhost.vring_base(index)?;
        let used = memory.load_u16(ring.used_idx(), Ordering::Acquire);
        if base != u32::from(used) {
            let name = ring_name(index);
            return Err(Failure::State(format!(
                "{name} ring: base {base} after detach, used index {used}"
            )));
        }
        Ok(self.vhost.set_vring_base(index, base)?)
    }
}

/// A device ready for traffic.
#[derive(Debug)]
pub struct Session {
    /// Device and backend.
    pub device: Arc<Device>,
    /// What driver and device share.
    pub memory: GuestMemory,
    /// The ring the guest receives from.
    pub rx: Vring,
    /// The ring the guest sends to.
    pub tx: Vring,
    /// Where the buffers for rx and for tx begin.
    pub buffers: [Gpa; 2],
    /// The thread that does the device's work, if it was found.
    pub worker: Option<Worker>,
}

/// The parts of the guest's memory.
struct Places {
    ring_bytes: u64,
    table_bytes: u64,
    entries: u16,
}

impl Places {
    fn new(options: &SessionOptions) -> Result<Self> {
        let indirect = features::has(options.features, features::INDIRECT);
        let entries = if indirect {
            options.indirect_entries
        } else {
            0
        };
        let num = RingLayout::new(options.ring_size, Gpa(0))?.num;
        Ok(Self {
            ring_bytes: RingLayout::size(num).next_multiple_of(64),
            table_bytes: Indirect::size(num, entries).next_multiple_of(64),
            entries,
        })
    }

    fn control_bytes(&self) -> u64 {
        2 * (self.ring_bytes + self.table_bytes)
    }

    fn memory(&self, options: &SessionOptions) -> Result<GuestMemory> {
        const BASE: Gpa = Gpa(0x1_0000_0000);
        let data: u64 = options.buffer_bytes.iter().sum();
        let sizes = match options.regions.checked_sub(1) {
            _ if options.iommu => {
                let pages = (self.control_bytes() + data).div_ceil(iommu::PAGE);
                vec![iommu::PAGE; usize::try_from(pages)?]
            }
            None => bail!("a device needs at least 1 region of memory"),
            Some(0) => vec![self.control_bytes() + data],
            Some(pieces) => {
                let piece = data.div_ceil(pieces as u64); // CAST: Widens.
                let mut sizes = vec![self.control_bytes()];
                sizes.extend(std::iter::repeat_n(piece, pieces));
                sizes
            }
        };
        let sizes: Result<Vec<usize>, _> = sizes.into_iter().map(usize::try_from).collect();
        let base = (!options.identity).then_some(BASE);
        let memory = if options.top {
            GuestMemory::at_top(&sizes?, BASE)
        } else {
            GuestMemory::new(&sizes?, base)
        };
        memory.context("guest memory")
    }

    fn queue(
        &self,
        options: &SessionOptions,
        memory: &GuestMemory,
        index: u32,
    ) -> Result<Virtqueue> {
        let start = memory.base() + u64::from(index) * (self.ring_bytes + self.table_bytes);
        let tables = start + self.ring_bytes;
        let entries = self.entries;
        let has = |bit| features::has(options.features, bit);
        let features = RingFeatures {
            event_idx: has(features::EVENT_IDX),
            indirect: (entries > 0).then_some(Indirect { tables, entries }),
            notify_on_empty: has(features::NOTIFY_ON_EMPTY),
            in_order: has(features::IN_ORDER),
        };
        let layout = RingLayout::new(options.ring_size, start)?;
        Ok(Virtqueue::new(
            memory.clone(),
            layout,
            features,
            options.start,
        )?)
    }
}

impl Session {
    /// Opens and sets up everything; [`Device::attach`] is what starts the traffic.
    ///
    /// # Errors
    ///
    /// The first call that failed, and what to do about it where that is known.
    pub fn open(options: &SessionOptions) -> Result<Self> {
        let vhost = open_node(options)?;
        let before = Worker::own_name();
        vhost.set_owner()?;
        let worker = Worker::find(&before);

        let places = Places::new(options)?;
        let memory = places.memory(options)?;
        let backend = Backend::open(&options.backend, options.features)?;
        if options.iotlb.is_some() || options.iommu {
            vhost.set_backend_features(BACKEND_IOTLB_V2)?;
        }
        set_features(&vhost, options.features)?;
        set_memory(&vhost, &memory, options.iommu)?;
        if let Some(count) = options.iotlb {
            iotlb::fill(&vhost, &memory, count)?;
        }
        let mut rings = Vec::new();
        for index in [RX, TX] {
            let vring = Vring::new(index, places.queue(options, &memory, index)?)?;
            set_ring(&vhost, options, &memory, &vring)?;
            rings.push(vring);
        }
        let (Some(tx), Some(rx)) = (rings.pop(), rings.pop()) else {
            bail!("two rings were made above");
        };
        let first = memory.base() + places.control_bytes();
        let second = first + options.buffer_bytes[0];
        Ok(Self {
            device: Arc::new(Device {
                vhost,
                backend,
                iommu: options.iommu.then(|| Iommu::new(memory.clone())),
                used: [rx.queue.layout().used, tx.queue.layout().used],
            }),
            memory,
            rx,
            tx,
            buffers: [first, second],
            worker,
        })
    }
}

fn open_node(options: &SessionOptions) -> Result<VhostNet> {
    let node = options.node.display();
    let vhost = VhostNet::open(&options.node, true).map_err(|err| {
        anyhow!("{err}. Is a module loaded (modprobe vhost_net, insmod vhost_net_rs.ko), and are you root?")
    })?;
    let offered = offered(&vhost);
    let offered = offered.map_err(|err| anyhow!("{err}. {node} is no vhost-net device"))?;
    let missing = options.features & !offered;
    ensure!(
        missing == 0,
        "{} does not offer {}; it offers {}",
        node,
        features::describe(missing),
        features::describe(offered)
    );
    if let Some(kthread) = options.kthread {
        vhost.set_fork_from_owner(u8::from(!kthread))?;
    }
    Ok(vhost)
}

/// What a device offers; one that knows no feature array offers nothing above bit 63.
fn offered(vhost: &VhostNet) -> vhost_uapi::Result<u128> {
    let low = vhost.features()?;
    Ok(features::from_words(
        vhost.features_array().unwrap_or([low, 0]),
    ))
}

fn set_features(vhost: &VhostNet, features: u128) -> vhost_uapi::Result {
    match features::words(features) {
        [low, 0] => vhost.set_features(low),
        words => vhost.set_features_array(&words),
    }
}

/// Sets the memory table. With an IOMMU it is for the log alone, and has one region that holds all pages.
fn set_memory(vhost: &VhostNet, memory: &GuestMemory, iommu: bool) -> Result<()> {
    let region = |region: &vhost_driver::Region| MemoryRegion {
        guest_phys_addr: region.gpa.0,
        memory_size: region.size,
        userspace_addr: region.uva,
    };
    let mut table: Vec<MemoryRegion> = memory.regions().iter().map(region).collect();
    if iommu {
        let uvas = || table.iter().map(|region| region.userspace_addr);
        let low = uvas().min().context("memory has regions")?;
        let high = uvas().max().context("memory has regions")?;
        table = vec![MemoryRegion {
            guest_phys_addr: 0,
            memory_size: high + iommu::PAGE - low,
            userspace_addr: low,
        }];
    }
    let count = table.len();
    vhost.set_mem_table(&table).map_err(|err| {
        anyhow!("{err}. The table has {count} regions; the module's parameter max_mem_regions is the limit")
    })
}

fn set_ring(
    vhost: &VhostNet,
    options: &SessionOptions,
    memory: &GuestMemory,
    vring: &Vring,
) -> Result<()> {
    let ring = vring.queue.layout();
    let index = vring.index;
    // Behind an IOMMU rings are where the driver says, in its addresses.
    let uva = |gpa: Gpa| match options.iotlb {
        None if !options.iommu => memory.uva(gpa, 1),
        _ => Some(gpa.0),
    };
    let uva = |gpa| uva(gpa).context("a ring outside of the guest's memory");
    let addr = VringAddr {
        flags: 0,
        desc: uva(ring.desc)?,
        used: uva(ring.used)?,
        avail: uva(ring.avail)?,
        log: 0,
    };
    vhost.set_vring_num(index, u32::from(ring.num))?;
    vhost.set_vring_base(index, u32::from(options.start))?;
    vhost.set_vring_addr(index, &addr)?;
    vhost.set_vring_kick(index, Some(vring.kick.as_fd()))?;
    vhost.set_vring_call(index, Some(vring.call.as_fd()))?;
    vhost.set_vring_err(index, Some(vring.err.as_fd()))?;
    if let Some(micros) = options.busyloop {
        vhost.set_vring_busyloop_timeout(index, micros)?;
    }
    Ok(())
}
