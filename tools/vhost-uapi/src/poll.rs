// SPDX-License-Identifier: GPL-2.0

//! How a vring polls: `struct vhost_net_rs_poll` of `include/uapi/linux/vhost_net_rs.h`.

use nix::errno::Errno;

use crate::error::{Error, Result};
use crate::numbers;
use crate::VhostNet;

/// What decides how long a vring polls (`VHOST_NET_RS_POLL_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The window, as in C.
    #[default]
    Fixed,
    /// The measured cost of a wake-up; the window caps it.
    Adaptive,
    /// It does not stop while there is work.
    Continuous,
}

impl Policy {
    /// All of them, by number.
    pub const ALL: [Self; 3] = [Self::Fixed, Self::Adaptive, Self::Continuous];

    /// The name that people know it by, as in the module's parameters.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Fixed => "fixed",
            Self::Adaptive => "adaptive",
            Self::Continuous => "continuous",
        }
    }
}

/// When a vring does not poll, whatever the policy says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PollFlags {
    /// Another task wants the CPU.
    pub competitor: bool,
    /// No thread of the owner runs that could make work.
    pub guest: bool,
}

/// What [`VhostNet::set_poll`] sets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VringPoll {
    /// What decides.
    pub policy: Policy,
    /// When not.
    pub flags: PollFlags,
    /// Continuous polling begins at so many events a millisecond; 0 is never.
    pub start_rate: u32,
    /// It ends after so many microseconds without work; 0 sets the module's default.
    pub stop_idle_us: u32,
}

/// The structure, as it lies in memory.
type Raw = [u32; 8];

const COMPETITOR: u32 = 1 << 0;
const GUEST: u32 = 1 << 1;

impl VringPoll {
    fn to_raw(self, index: u32) -> Raw {
        let flag = |set: bool, flag: u32| if set { flag } else { 0 };
        let flags = flag(self.flags.competitor, COMPETITOR) | flag(self.flags.guest, GUEST);
        let policy = self.policy as u32; // CAST: A number of a variant.
        let times = [self.start_rate, self.stop_idle_us];
        [index, policy, flags, times[0], times[1], 0, 0, 0]
    }

    /// Nothing for numbers that this version does not know.
    fn from_raw(raw: Raw) -> Option<Self> {
        let [_, policy, flags, start_rate, stop_idle_us, ..] = raw;
        if flags & !(COMPETITOR | GUEST) != 0 {
            return None;
        }
        let policy = Policy::ALL.get(usize::try_from(policy).ok()?)?;
        Some(Self {
            policy: *policy,
            flags: PollFlags {
                competitor: flags & COMPETITOR != 0,
                guest: flags & GUEST != 0,
            },
            start_rate,
            stop_idle_us,
        })
    }
}

impl VhostNet {
    /// `VHOST_NET_RS_SET_POLL`.
    ///
    /// # Errors
    ///
    /// ENOTTY if it is a device of the C module, and the caller its owner; EPERM without the right.
    pub fn set_poll(&self, index: u32, poll: VringPoll) -> Result {
        self.set_poll_raw(poll.to_raw(index))
    }

    /// `VHOST_NET_RS_SET_POLL` of the structure's fields, in their order.
    ///
    /// # Errors
    ///
    /// As [`Self::set_poll`]; EINVAL for fields that are refused.
    pub fn set_poll_raw(&self, mut raw: [u32; 8]) -> Result {
        self.ioctl(numbers::RS_SET_POLL, &mut raw)
    }

    /// `VHOST_NET_RS_GET_POLL`.
    ///
    /// # Errors
    ///
    /// As [`Self::set_poll`]; EPROTO if the module is newer, and what is set unknown here.
    pub fn poll(&self, index: u32) -> Result<VringPoll> {
        let mut raw = [0; 8];
        raw[0] = index;
        self.ioctl(numbers::RS_GET_POLL, &mut raw)?;
        let name = numbers::name(numbers::RS_GET_POLL);
        VringPoll::from_raw(raw).ok_or_else(|| Error::new(name, Errno::EPROTO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `#define` of the header.
    fn define(name: &str) -> String {
        let header = include_str!("../../../include/uapi/linux/vhost_net_rs.h");
        let mut lines = header.lines().map(str::split_whitespace);
        let mut line = lines.find(|line| line.clone().take(2).eq(["#define", name]));
        line.as_mut().unwrap().skip(2).collect()
    }

    #[test]
    fn numbers_are_those_of_the_header() {
        for (number, policy) in Policy::ALL.into_iter().enumerate() {
            assert_eq!(policy as usize, number);
            let name = policy.name().to_uppercase();
            assert_eq!(
                define(&format!("VHOST_NET_RS_POLL_{name}")),
                number.to_string()
            );
        }
        assert_eq!(define("VHOST_NET_RS_POLL_COMPETITOR"), "(1<<0)");
        assert_eq!(define("VHOST_NET_RS_POLL_GUEST"), "(1<<1)");
        assert_eq!(define("VHOST_NET_RS"), "0xB9");
        let get = "_IOWR(VHOST_NET_RS,0x01,structvhost_net_rs_poll)";
        assert_eq!(define("VHOST_NET_RS_GET_POLL"), get);
        let set = "_IOW(VHOST_NET_RS,0x02,structvhost_net_rs_poll)";
        assert_eq!(define("VHOST_NET_RS_SET_POLL"), set);
    }

    #[test]
    fn fields_are_in_the_order_of_the_header() {
        let poll = VringPoll {
            policy: Policy::Continuous,
            flags: PollFlags {
                competitor: true,
                guest: true,
            },
            start_rate: 7,
            stop_idle_us: 8,
        };
        assert_eq!(poll.to_raw(1), [1, 2, 3, 7, 8, 0, 0, 0]);
        assert_eq!(VringPoll::from_raw([1, 2, 3, 7, 8, 9, 9, 9]), Some(poll));
        assert_eq!(VringPoll::from_raw([0, 3, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(VringPoll::from_raw([0, 0, 4, 0, 0, 0, 0, 0]), None);
    }
}
