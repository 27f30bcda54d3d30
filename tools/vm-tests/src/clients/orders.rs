// SPDX-License-Identifier: GPL-2.0

//! The orders in which clients make their calls: read from their sources, or seen (QEMU).

use vhost_load::vring::TX;
use vhost_uapi::features::{
    EVENT_IDX, INDIRECT, IN_ORDER, MRG_RXBUF, NOTIFY_ON_EMPTY, RING_RESET, VERSION_1,
};

use super::guest::Addresses;
use super::vmm::Ring::{
    Addr, Attach, Base, Call, Detach, Err, GetBase, Kick, Mask, NoCall, NoKick, Num, Reset, Unmask,
    Window,
};
use super::vmm::Step::{
    self, All, Arrives, BackendFeatures, Device, Each, Features, Memory, Offers, On, Post,
    ResetOwner, ResetOwnerAgain, SetOwner, Traffic, WideMemory,
};

/// Who opens the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opener {
    /// Its owner.
    Owner,
    /// Another process, which has rights that the owner has not.
    Parent,
}

/// A program that uses vhost-net, or a way to use it.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) name: &'static str,
    pub(super) opener: Opener,
    /// Whether it opens the device with `O_NONBLOCK`.
    pub(super) nonblocking: bool,
    /// How many devices it has on its tap.
    pub(super) devices: u32,
    /// What it agrees on with the guest.
    pub(super) guest: u64,
    pub(super) addresses: Addresses,
    /// Send buffer of the tap, in bytes.
    pub(super) sndbuf: i32,
    pub(super) steps: &'static [Step],
}

const PLAIN: Client = Client {
    name: "",
    opener: Opener::Owner,
    nonblocking: false,
    devices: 1,
    guest: 0,
    addresses: Addresses::Own,
    sndbuf: i32::MAX,
    steps: &[],
};

/// All of them.
pub(super) const CLIENTS: &[Client] = &[
    Client {
        name: "QEMU",
        nonblocking: true,
        guest: QEMU_FEATURES,
        steps: QEMU,
        ..PLAIN
    },
    Client {
        name: "QEMU started by libvirt, which opens the device",
        opener: Opener::Parent,
        guest: QEMU_FEATURES,
        steps: QEMU,
        ..PLAIN
    },
    Client {
        name: "DPDK virtio-user",
        guest: DPDK_FEATURES,
        addresses: Addresses::Identity,
        steps: DPDK,
        ..PLAIN
    },
    Client {
        name: "VPP, two devices on one tap",
        nonblocking: true,
        devices: 2,
        guest: VPP_FEATURES,
        addresses: Addresses::Identity,
        steps: VPP,
        ..PLAIN
    },
    Client {
        name: "VPP, a tap with a limited send buffer",
        nonblocking: true,
        devices: 2,
        guest: VPP_FEATURES,
        addresses: Addresses::Identity,
        sndbuf: i32::MAX - 1,
        steps: VPP,
        ..PLAIN
    },
    Client {
        name: "crosvm, whose jailed process is the owner",
        opener: Opener::Parent,
        nonblocking: true,
        guest: CROSVM_FEATURES,
        steps: CROSVM,
        ..PLAIN
    },
    Client {
        name: "kvmtool",
        guest: KVMTOOL_FEATURES | 1 << INDIRECT,
        steps: KVMTOOL,
        ..PLAIN
    },
    Client {
        name: "kick and call after the backend",
        guest: KVMTOOL_FEATURES | 1 << INDIRECT,
        steps: BACKEND_FIRST,
        ..PLAIN
    },
    Client {
        name: "ACRN",
        guest: ACRN_FEATURES,
        steps: ACRN,
        ..PLAIN
    },
    Client {
        name: "no kick, no call, no base: packets that wait are sent",
        guest: 1 << VERSION_1,
        steps: BARE,
        ..PLAIN
    },
];

const QEMU_FEATURES: u64 =
    1 << MRG_RXBUF | 1 << INDIRECT | 1 << EVENT_IDX | 1 << VERSION_1 | 1 << RING_RESET;

const QEMU: &[Step] = &[
    SetOwner,
    Offers(QEMU_FEATURES),
    Each(&[Mask, Err]),
    Each(&[Window(50)]),
    All(QEMU_START),
    Traffic,
    // The guest moves its interrupts to another CPU.
    Each(&[Mask]),
    Traffic,
    Each(&[Unmask]),
    Traffic,
    All(QEMU_STOP),
    // set_link, or stop and cont.
    All(QEMU_START),
    Traffic,
    // The guest resets one ring, then memory comes and goes.
    On(TX, &[Detach, GetBase, Reset, Num, Base, Addr, Kick, Attach]),
    Traffic,
    Memory(2),
    Traffic,
    Memory(1),
    Traffic,
    All(QEMU_STOP),
    // The guest boots anew.
    Each(&[Reset]),
    All(QEMU_START),
    Traffic,
    All(QEMU_STOP),
];

const QEMU_START: &[Step] = &[
    Each(&[Call]),
    Features(QEMU_FEATURES),
    BackendFeatures,
    Memory(1),
    Each(&[Num, Base, Addr, Kick]),
    Each(&[Attach]),
];

const QEMU_STOP: &[Step] = &[Each(&[Detach]), Each(&[GetBase]), Each(&[Mask])];

const DPDK_FEATURES: u64 = 1 << MRG_RXBUF | 1 << VERSION_1 | 1 << IN_ORDER;

const DPDK: &[Step] = &[
    SetOwner,
    Offers(DPDK_FEATURES),
    All(DPDK_START),
    Traffic,
    Each(&[Detach]),
    Each(&[GetBase]),
    Each(&[Reset]),
    All(DPDK_START),
    Traffic,
];

const DPDK_START: &[Step] = &[
    Each(&[Call]),
    Features(DPDK_FEATURES),
    WideMemory,
    Each(&[Num, Base, Addr, Kick]),
    Each(&[Attach]),
];

const VPP_FEATURES: u64 = 1 << MRG_RXBUF | 1 << INDIRECT | 1 << VERSION_1;

const VPP: &[Step] = &[
    SetOwner,
    Device(1),
    SetOwner,
    Device(0),
    Offers(VPP_FEATURES),
    Features(VPP_FEATURES),
    WideMemory,
    Device(1),
    Features(VPP_FEATURES),
    WideMemory,
    Device(0),
    Each(&[Num, Addr, Call, Kick, Attach]),
    Device(1),
    On(TX, &[Num, Addr, Call, Kick, Attach]),
    Traffic,
    Device(0),
    Traffic,
    Device(1),
    Traffic,
];

const CROSVM_FEATURES: u64 =
    1 << MRG_RXBUF | 1 << NOTIFY_ON_EMPTY | 1 << INDIRECT | 1 << EVENT_IDX | 1 << VERSION_1;

const CROSVM: &[Step] = &[
    SetOwner,
    All(CROSVM_START),
    Traffic,
    Each(&[Mask]),
    Traffic,
    Each(&[Unmask]),
    Traffic,
    Each(&[Detach]),
    Each(&[Reset]),
    All(CROSVM_START),
    Traffic,
    Each(&[Detach]),
];

const CROSVM_START: &[Step] = &[
    Offers(CROSVM_FEATURES),
    Features(CROSVM_FEATURES),
    Memory(2),
    Each(&[Num, Err, Addr, Base, Call, Kick]),
    Each(&[Attach]),
];

/// The guest uses indirect descriptors too, which kvmtool does not tell vhost.
const KVMTOOL_FEATURES: u64 = 1 << MRG_RXBUF | 1 << EVENT_IDX;

const KVMTOOL: &[Step] = &[
    SetOwner,
    Memory(1),
    Each(&[Kick, Num, Base, Addr, Attach, Call]),
    Offers(KVMTOOL_FEATURES),
    Features(KVMTOOL_FEATURES),
    Traffic,
    ResetOwner,
    ResetOwnerAgain,
];

const BACKEND_FIRST: &[Step] = &[
    SetOwner,
    Memory(1),
    Each(&[Num, Base, Addr, Attach]),
    Each(&[Call]),
    Each(&[Kick]),
    Features(KVMTOOL_FEATURES),
    Traffic,
];

const ACRN_FEATURES: u64 = 1 << MRG_RXBUF | 1 << INDIRECT | 1 << EVENT_IDX | 1 << VERSION_1;

const ACRN: &[Step] = &[
    Offers(ACRN_FEATURES),
    All(ACRN_START),
    Traffic,
    All(ACRN_STOP),
    All(ACRN_START),
    Traffic,
    All(ACRN_STOP),
    Each(&[Reset]),
    All(ACRN_START),
    Traffic,
    All(ACRN_STOP),
];

const ACRN_START: &[Step] = &[
    SetOwner,
    Features(ACRN_FEATURES),
    Memory(2),
    Each(&[Window(20)]),
    Each(&[Num, Base, Addr, Call, Kick]),
    Each(&[Attach]),
];

const ACRN_STOP: &[Step] = &[
    Each(&[Detach]),
    Each(&[NoKick, NoCall, GetBase]),
    ResetOwner,
];

const BARE: &[Step] = &[
    SetOwner,
    Features(1 << VERSION_1),
    Memory(1),
    Each(&[Num, Addr]),
    Post,
    Each(&[Attach]),
    Arrives,
    Each(&[Detach]),
    Post,
    Each(&[Attach]),
    Arrives,
];
