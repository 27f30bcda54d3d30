// SPDX-License-Identifier: GPL-2.0

//! The net device's loops: from the tx ring to a socket, and back to the rx
//! ring.

pub mod backend;
pub mod header;
pub mod in_flight;
mod run;
pub mod rx;
pub mod tx;
pub mod tx_zerocopy;

use super::addr::Iova;
use super::error::Access;
use super::error::Error;
use super::features::HeaderLen;
use super::iotlb::AddressMap;
use super::scratch::Scratch;

/// What one run works with.
pub struct Env<'a, M> {
    /// The owner's memory.
    pub mem: &'a M,
    /// Where the guest's buffers lie in it.
    pub map: AddressMap<'a>,
    /// Room of the worker.
    pub scratch: &'a mut Scratch,
    /// The headers of guest and socket.
    pub header: HeaderLen,
}

/// What is next for the vring after a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A kick: they are on, and the ring was looked at since.
    WaitKick,
    /// The socket: tx until it takes more, rx until it has a packet.
    WaitSocket,
    /// A packet in flight: no chain can be taken before one is returned. Kicks
    /// are off.
    WaitCompletion,
    /// Another run, in turn with the other work. Kicks are off.
    Requeue,
    /// The owner's answer: the IOTLB has no entry for the next chain. What came
    /// before it is published.
    Miss {
        /// The first address without an entry.
        iova: Iova,
        /// What the device wants to do there.
        access: Access,
    },
    /// A kick, after err is signalled. What came before the broken chain is
    /// published, and the chain is the next one.
    Broken(Error),
}
