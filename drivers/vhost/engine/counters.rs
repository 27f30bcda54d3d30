// SPDX-License-Identifier: GPL-2.0

//! What a vring counts.

/// Makes the struct, its names and its values from one list.
macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The counters of one vring. They wrap.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        #[repr(C)]
        pub struct Counters {
            $($(#[$doc])* pub $name: u64,)*
        }

        /// The names of [`Counters::values`], in the same order.
        pub const NAMES: [&str; COUNT] = [$($text),*];

        /// How many counters there are.
        pub const COUNT: usize = [$($text),*].len();

        impl Counters {
            /// All counters at zero.
            pub const ZERO: Self = Self { $($name: 0,)* };

            /// The values, in the order of [`NAMES`].
            pub const fn values(&self) -> [u64; COUNT] {
                [$(self.$name),*]
            }
        }
    };
}

counters! {
    /// Packets moved.
    packets = "packets",
    /// Bytes of those packets, without their virtio-net headers.
    bytes = "bytes",
    /// Calls made to the driver.
    calls = "calls",
    /// Times that used buffers were published and the driver wanted no call.
    calls_suppressed = "calls-suppressed",
    /// Runs of the loop.
    runs = "runs",
    /// Runs that ended in the queue again: budget used, or a poll interrupted.
    requeues = "requeues",
    /// Busy-poll windows opened.
    polls = "polls",
    /// Windows after which there was something to do.
    poll_won = "poll-won",
    /// Windows ended by other work of the worker.
    poll_interrupted = "poll-interrupted",
    /// Runs ended by a broken ring or memory that cannot be reached.
    ring_errors = "ring-errors",
    /// Runs ended by a buffer for which the IOTLB has no entry.
    iotlb_misses = "iotlb-misses",
    /// tx chains dropped: a device-writable buffer in them.
    drop_direction = "drop-direction",
    /// tx chains dropped: no bytes in them.
    drop_length = "drop-length",
    /// tx frames dropped: shorter than their header, or a header that lies.
    drop_header = "drop-header",
    /// Packets dropped: their buffer cannot be read or written.
    drop_memory = "drop-memory",
    /// tx frames that the socket refused or lost.
    drop_refused = "drop-refused",
    /// Packets dropped: too large for the receiver.
    drop_oversize = "drop-oversize",
    /// rx packets dropped: changed between look and receipt.
    drop_truncated = "drop-truncated",
    /// rx packets lost when the backend was stopped.
    drop_stop = "drop-stop",
    /// Writes to guest memory that the owner's dirty log does not have: its
    /// memory cannot be written.
    log_errors = "log-errors",
}

impl Counters {
    /// Counts writes that the dirty log does not have.
    pub fn not_logged(&mut self, count: u64) {
        self.log_errors = self.log_errors.wrapping_add(count);
    }
}

/// Adds one to a counter.
#[inline]
pub(super) fn bump(counter: &mut u64) {
    *counter = counter.wrapping_add(1);
}
