// SPDX-License-Identifier: GPL-2.0

//! A ring with its eventfds and the buffers behind it.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use vhost_driver::{CallWhen, Gpa, Segment, Used, Virtqueue};
use vhost_uapi::{wait_readable, EventFd};

use crate::failure::Failure;

/// Index of the ring that the guest receives from.
pub const RX: u32 = 0;
/// Index of the ring that the guest sends to.
pub const TX: u32 = 1;

/// A virtqueue, and what makes it one end of a vhost ring.
#[derive(Debug)]
pub struct Vring {
    /// [`RX`] or [`TX`].
    pub index: u32,
    /// The driver's half of the ring.
    pub queue: Virtqueue,
    /// Driver to device.
    pub kick: EventFd,
    /// Device to driver.
    pub call: EventFd,
    /// The device's complaints.
    pub err: EventFd,
    kicks: u64,
    calls: u64,
    handler: Handler,
}

/// What the handler of a ring's calls is like, and what it has seen. It is active from the call that the driver waited for
/// until it waits again.
#[derive(Clone, Copy, Debug, Default)]
pub struct Handler {
    /// Calls stay on while it is active.
    pub calls_on: bool,
    /// When it has turned calls off it looks on for so long before it does anything else: a call that the device had decided
    /// on before, but not made, comes meanwhile.
    pub settle: Duration,
    /// How often it was begun by a call.
    pub runs: u64,
    /// Calls that came while it was active, but for those that were under way.
    pub calls_inside: u64,
    /// Calls that came while it settled, one at most each time: the device may decide on one and make it later, but has to
    /// look at the ring again for another one.
    pub calls_under_way: u64,
}

impl Vring {
    /// Makes the eventfds of a ring.
    ///
    /// # Errors
    ///
    /// Those of eventfd(2).
    pub fn new(index: u32, queue: Virtqueue) -> Result<Self, Failure> {
        Ok(Self {
            index,
            queue,
            kick: EventFd::new()?,
            call: EventFd::new()?,
            err: EventFd::new()?,
            kicks: 0,
            calls: 0,
            handler: Handler::default(),
        })
    }

    /// Kicks written.
    pub fn kicks(&self) -> u64 {
        self.kicks
    }

    /// Calls read: the sum of the counts.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// What the handler of its calls has seen.
    pub fn handler(&self) -> &Handler {
        &self.handler
    }

    /// Leaves calls on while the handler of a call is active, as drivers did that made one pass an interrupt; or, as they are
    /// made, turns them off until it is done, and looks again when they are on.
    pub fn set_calls_on(&mut self, on: bool) {
        self.handler.calls_on = on;
    }

    /// Has the handler of a call [settle](Handler::settle) for so long.
    pub fn set_settle(&mut self, settle: Duration) {
        self.handler.settle = settle;
    }

    /// Shows the device what was added, and kicks it if it wants that.
    ///
    /// # Errors
    ///
    /// Those of write(2).
    pub fn publish(&mut self) -> Result<(), Failure> {
        self.queue.publish();
        if self.queue.wants_kick() {
            self.kick.signal()?;
            self.kicks += 1;
        }
        Ok(())
    }

    /// Takes back a used chain.
    ///
    /// # Errors
    ///
    /// [`Failure::Device`] if the device broke the rules of the ring.
    pub fn pop_used(&mut self) -> Result<Option<Used>, Failure> {
        let index = self.index;
        let broken = |source| Failure::Device { index, source };
        let used = self.queue.pop_used().map_err(broken)?;
        if self.handler.calls_on {
            // With EVENT_IDX they are on for the next chain alone, and so they are wanted anew for each.
            self.queue.enable_calls(CallWhen::Next);
        }
        Ok(used)
    }

    /// Ends the handler of a call, if one is active, and waits for the next call, `timeout` at most. Calls are off again
    /// afterwards, unless they [stay on](Vring::set_calls_on).
    ///
    /// # Errors
    ///
    /// Those of poll(2) and read(2).
    pub fn wait_call(&mut self, when: CallWhen, timeout: Duration) -> Result<(), Failure> {
        // What they announced shows in the look that follows.
        self.handler.calls_inside += self.take_calls()?;
        let waits = self.queue.enable_calls(when);
        let called = waits && wait_readable(&[self.call.as_fd()], timeout)?;
        self.handler.runs += u64::from(called);
        if !self.handler.calls_on {
            self.queue.disable_calls();
            return self.settle(called);
        }
        if called {
            self.take_calls()?;
        }
        Ok(())
    }

    /// Calls were turned off. Takes those that came before, if the driver was called; settles, if it is to.
    fn settle(&mut self, called: bool) -> Result<(), Failure> {
        let settles = !self.handler.settle.is_zero();
        if called || settles {
            self.take_calls()?;
        }
        if settles {
            let start = Instant::now();
            while start.elapsed() < self.handler.settle {
                std::hint::spin_loop();
            }
            let late = self.take_calls()?;
            let under_way = late.min(1);
            self.handler.calls_under_way += under_way;
            self.handler.calls_inside += late - under_way;
        }
        Ok(())
    }

    /// Counts the calls that have come. Returns how many.
    ///
    /// # Errors
    ///
    /// Those of read(2).
    pub fn take_calls(&mut self) -> Result<u64, Failure> {
        let calls = self.call.take()?;
        self.calls += calls;
        Ok(calls)
    }

    /// The device's complaints since the last look at them.
    ///
    /// # Errors
    ///
    /// Those of read(2).
    pub fn take_errors(&self) -> Result<u64, Failure> {
        Ok(self.err.take()?)
    }
}

/// Equal pieces of guest memory, each big enough for one packet or one receive buffer.
#[derive(Debug)]
pub struct Buffers {
    base: Gpa,
    stride: u64,
    free: Vec<u32>,
}

impl Buffers {
    /// Cuts the memory from `base` on into `count` pieces, `stride` bytes apart.
    pub fn new(base: Gpa, stride: u64, count: u32) -> Self {
        let free = (0..count).rev().collect();
        Self { base, stride, free }
    }

    /// Takes a piece that is not in use.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// Whether there is a piece to take.
    pub fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Gives a piece back.
    pub fn put(&mut self, slot: u32) {
        self.free.push(slot);
    }

    /// Where a piece begins.
    pub fn address(&self, slot: u32) -> Gpa {
        self.base + self.stride * u64::from(slot)
    }
}

/// How packets are laid out in chains.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    /// Bytes of the virtio-net header.
    pub header: u32,
    /// Descriptors of a chain. With two or more, the first holds the header alone.
    pub descriptors: u32,
}

impl Cut {
    /// Cuts `len` bytes (header included) at `start` into the segments of a chain.
    pub fn segments(&self, start: Gpa, len: u32, writable: bool, segments: &mut Vec<Segment>) {
        segments.clear();
        let mut push = |offset: u32, len: u32| {
            let addr = start + u64::from(offset);
            segments.push(Segment {
                addr,
                len,
                writable,
            });
        };
        let Some(pieces) = self.descriptors.checked_sub(1).filter(|pieces| *pieces > 0) else {
            return push(0, len);
        };
        push(0, self.header);
        let body = len - self.header;
        let (each, rest) = (body / pieces, body % pieces);
        let mut offset = self.header;
        for piece in 0..pieces {
            let len = each + u32::from(piece < rest);
            push(offset, len);
            offset += len;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(descriptors: u32, len: u32) -> Vec<u32> {
        let mut segments = Vec::new();
        Cut {
            header: 12,
            descriptors,
        }
        .segments(Gpa(0x1000), len, false, &mut segments);
        let mut at = 0x1000;
        for segment in &segments {
            assert_eq!(segment.addr.0, at);
            at += u64::from(segment.len);
        }
        segments.iter().map(|segment| segment.len).collect()
    }

    #[test]
    fn pieces_follow_each_other_and_leave_nothing_out() {
        assert_eq!(lengths(1, 76), [76]);
        assert_eq!(lengths(2, 76), [12, 64]);
        assert_eq!(lengths(4, 76), [12, 22, 21, 21]);
    }

    #[test]
    fn buffers_are_taken_once() {
        let mut buffers = Buffers::new(Gpa(64), 32, 2);
        assert_eq!(
            (buffers.take(), buffers.take(), buffers.take()),
            (Some(0), Some(1), None)
        );
        buffers.put(1);
        assert_eq!(
            buffers.take().map(|slot| buffers.address(slot)),
            Some(Gpa(96))
        );
    }
}
