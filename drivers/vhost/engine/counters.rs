// SPDX-License-Identifier: GPL-2.0

//! What a vring counts.

use core::ffi::CStr;

/// Makes the counters, their names and their values from one list.
macro_rules! counters {
    ($($(#[$doc:meta])* $field:ident, $variant:ident = $text:literal,)*) => {
        /// One counter of a vring.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(usize)]
        pub enum Counter {
            $($(#[$doc])* $variant,)*
        }

        /// The counters of one vring, read at some time. They wrap.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters {
            $($(#[$doc])* pub $field: u64,)*
        }

        /// The names of [`Counters::values`], in the same order.
        pub const NAMES: [&str; COUNT] = [$($text),*];

        /// [`NAMES`], each with a NUL at its end.
        const C_NAMES: [&CStr; COUNT] = [$(c_name(concat!($text, "\0"))),*];

        /// How many counters there are.
        pub const COUNT: usize = [$($text),*].len();

        impl Counters {
            /// Reads all of them, one after the other.
            pub fn read(mut get: impl FnMut(Counter) -> u64) -> Self {
                Self { $($field: get(Counter::$variant)),* }
            }

            /// The values, in the order of [`Counter`] and [`NAMES`].
            pub const fn values(&self) -> [u64; COUNT] {
                [$(self.$field),*]
            }
        }
    };
}

counters! {
    /// Packets moved.
    packets, Packets = "packets",
    /// Bytes of those packets, without their virtio-net headers.
    bytes, Bytes = "bytes",
    /// Calls made to the driver.
    calls, Calls = "calls",
    /// Times that used buffers were published and the driver wanted no call.
    calls_suppressed, CallsSuppressed = "calls-suppressed",
    /// Runs ended: their budget was used.
    left_weight, LeftWeight = "left-weight",
    /// Runs ended: nothing was left to move, tx ring or socket being empty.
    left_empty, LeftEmpty = "left-empty",
    /// Runs ended: other work of the worker interrupted a window.
    left_work, LeftWork = "left-work",
    /// Runs ended: the vring polls continuously, others have their turn.
    left_turn, LeftTurn = "left-turn",
    /// tx runs ended: the socket took no more.
    left_full, LeftFull = "left-full",
    /// tx runs ended: there was no memory for a batch.
    left_memory, LeftMemory = "left-memory",
    /// rx runs ended: the ring had too few buffers for the packet that waited.
    left_short, LeftShort = "left-short",
    /// tx runs ended: no chain could be taken before one in flight was returned.
    left_in_flight, LeftInFlight = "left-in-flight",
    /// Runs ended: a broken ring, or memory that cannot be reached.
    ring_errors, RingErrors = "ring-errors",
    /// Runs ended: a buffer for which the IOTLB has no entry.
    iotlb_misses, IotlbMisses = "iotlb-misses",
    /// Times that the ring was read and each of its entries was available.
    ring_full, RingFull = "ring-full",
    /// Busy-poll windows that found something to do, for either vring.
    poll_won, PollWon = "poll-won",
    /// Busy-poll windows that did not, nor were interrupted.
    poll_lost, PollLost = "poll-lost",
    /// Busy-poll windows ended by other work of the worker, this vring having
    /// nothing to do.
    poll_interrupted, PollInterrupted = "poll-interrupted",
    /// Nanoseconds in windows that count as won, and of continuous polling
    /// before a look that found something.
    poll_ns_won, PollNsWon = "poll-ns-won",
    /// Nanoseconds in all other windows, and of other continuous polling.
    poll_ns_lost, PollNsLost = "poll-ns-lost",
    /// Windows ended by a packet.
    poll_end_packet, PollEndPacket = "poll-end-packet",
    /// Windows that closed: their time was over.
    poll_end_time, PollEndTime = "poll-end-time",
    /// Windows ended by other work of the worker.
    poll_end_work, PollEndWork = "poll-end-work",
    /// Windows ended because another task was to run.
    poll_end_resched, PollEndResched = "poll-end-resched",
    /// Windows ended by a signal for the worker.
    poll_end_signal, PollEndSignal = "poll-end-signal",
    /// Windows ended because another task wanted the CPU, as was asked for.
    poll_end_competitor, PollEndCompetitor = "poll-end-competitor",
    /// Windows ended because no thread of the owner ran, as was asked for.
    poll_end_guest, PollEndGuest = "poll-end-guest",
    /// Windows ended by somebody who waits for a lock of the run, or by a new
    /// length of the window.
    poll_end_waiter, PollEndWaiter = "poll-end-waiter",
    /// tx chains dropped: a device-writable buffer in them.
    drop_direction, DropDirection = "drop-direction",
    /// tx chains dropped: no bytes in them.
    drop_length, DropLength = "drop-length",
    /// tx frames dropped: shorter than their header, or a header that lies.
    drop_header, DropHeader = "drop-header",
    /// Packets dropped: their buffer cannot be read or written.
    drop_memory, DropMemory = "drop-memory",
    /// tx frames that the socket refused or lost.
    drop_refused, DropRefused = "drop-refused",
    /// Packets dropped: too large for the receiver.
    drop_oversize, DropOversize = "drop-oversize",
    /// rx packets dropped: changed between look and receipt.
    drop_truncated, DropTruncated = "drop-truncated",
    /// rx packets lost when the backend was stopped.
    drop_stop, DropStop = "drop-stop",
    /// Writes to guest memory that the owner's dirty log does not have: its
    /// memory cannot be written.
    log_errors, LogErrors = "log-errors",
    /// tx packets sent from the guest's memory.
    zerocopy_sent, ZerocopySent = "zerocopy-sent",
    /// Of those, packets that nobody reads any more, whose chains are returned.
    zerocopy_done, ZerocopyDone = "zerocopy-done",
    /// tx packets long enough to be sent from there, but copied: too many were
    /// in flight, or the kernel had to copy too many.
    zerocopy_copied, ZerocopyCopied = "zerocopy-copied",
    /// tx packets sent from the guest's memory that the kernel then copied.
    zerocopy_errors, ZerocopyErrors = "zerocopy-errors",
}

/// A name for C.
const fn c_name(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => c"",
    }
}

impl Counter {
    /// It counts packets that are lost.
    #[inline]
    pub const fn is_drop(self) -> bool {
        matches!(
            self,
            Self::DropDirection
                | Self::DropLength
                | Self::DropHeader
                | Self::DropMemory
                | Self::DropRefused
                | Self::DropOversize
                | Self::DropTruncated
                | Self::DropStop
        )
    }

    /// It counts what should not happen, or not often.
    #[inline]
    pub const fn is_error(self) -> bool {
        matches!(self, Self::RingErrors | Self::IotlbMisses | Self::LogErrors)
    }

    /// It counts runs that ended, each run once.
    #[inline]
    pub const fn ends_run(self) -> bool {
        matches!(
            self,
            Self::LeftWeight
                | Self::LeftEmpty
                | Self::LeftWork
                | Self::LeftTurn
                | Self::LeftFull
                | Self::LeftMemory
                | Self::LeftShort
                | Self::LeftInFlight
                | Self::RingErrors
                | Self::IotlbMisses
        )
    }
}

/// The name of the counter of this number, for C.
pub fn name_of(counter: u64) -> &'static CStr {
    let name = usize::try_from(counter).ok().and_then(|at| C_NAMES.get(at));
    name.copied().unwrap_or(c"")
}

impl Counters {
    /// Runs that ended in the queue of the worker.
    pub fn requeues(&self) -> u64 {
        let ends = [
            self.left_weight,
            self.left_work,
            self.left_turn,
            self.left_memory,
        ];
        sum(&ends)
    }

    /// Runs of the loop that have ended.
    pub fn runs(&self) -> u64 {
        let ends = [
            self.requeues(),
            self.left_empty,
            self.left_full,
            self.left_short,
            self.left_in_flight,
            self.ring_errors,
            self.iotlb_misses,
        ];
        sum(&ends)
    }

    /// tx packets sent from the guest's memory whose chains are not returned.
    pub fn zerocopy_in_flight(&self) -> u64 {
        self.zerocopy_sent.wrapping_sub(self.zerocopy_done)
    }

    /// Busy-poll windows that have ended.
    pub fn polls(&self) -> u64 {
        sum(&[self.poll_won, self.poll_lost, self.poll_interrupted])
    }
}

/// The sum of counters, which wraps as they do.
fn sum(counters: &[u64]) -> u64 {
    counters.iter().fold(0, |sum, n| sum.wrapping_add(*n))
}

/// The smoothed mean after the measurement `new`, if it was `mean` before: the
/// latest has a weight of 1/8. A mean of 0 is no measurement yet, and never the
/// answer.
pub fn smooth(mean: u64, new: u64) -> u64 {
    let next = match mean {
        0 => new,
        _ => mean.wrapping_sub(mean / 8).saturating_add(new / 8),
    };
    next.max(1)
}
