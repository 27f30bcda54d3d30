// SPDX-License-Identifier: GPL-2.0

//! What goes wrong between a driver and a device.

/// Result of a driver's operation.
pub type Result<T = ()> = std::result::Result<T, Error>;

/// Why an operation of the driver failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not enough free descriptors: take back used chains first.
    #[error("{wanted} descriptors wanted, {free} free")]
    Full {
        /// Descriptors that the chain needs.
        wanted: usize,
        /// Descriptors that there are.
        free: usize,
    },
    /// A chain without a segment, or with a readable segment behind a writable one (virtio 1.3, section 2.7.4.2).
    #[error("a chain needs a segment, and readable ones before writable ones")]
    BadChain,
    /// A ring size that is no power of two, or a place that is not aligned or not inside of one region of the memory.
    #[error("a ring of {0} descriptors cannot be placed here")]
    BadLayout(u32),
    /// The device moved the used index past all chains that it was given.
    #[error("used index went from {from} to {to} with {outstanding} chains outstanding")]
    UsedIndexJumped {
        /// The index that the driver has read up to.
        from: u16,
        /// The index that the device shows.
        to: u16,
        /// Chains that the device has.
        outstanding: u16,
    },
    /// The device returned a chain that it does not have: never given, or returned before.
    #[error("used entry {index} returns descriptor {id}, which heads no outstanding chain")]
    NotOutstanding {
        /// The used index of the entry.
        index: u16,
        /// The head it names.
        id: u32,
    },
    /// In order: the device returned with one entry more chains than its index tells.
    #[error("used entry {index} returns the chains up to descriptor {id}, the used index only {pending} of them")]
    BatchTooLong {
        /// The used index of the entry.
        index: u16,
        /// The head of the last chain of the batch.
        id: u32,
        /// Chains that the used index returns.
        pending: u16,
    },
    /// The device says it wrote more than the chain has room for.
    #[error("used entry {index} says {len} bytes were written to a chain with room for {room}")]
    UsedTooLong {
        /// The used index of the entry.
        index: u16,
        /// Bytes said to be written.
        len: u32,
        /// Writable bytes of the chain.
        room: u32,
    },
    /// The memory could not be made.
    #[error("guest memory: {0}")]
    Memory(#[from] std::io::Error),
}
