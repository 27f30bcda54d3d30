// SPDX-License-Identifier: GPL-2.0

//! XDP programs of a few instructions, so few that bpf(2) itself is less than a crate that reads object files.

use std::os::fd::{AsFd, OwnedFd};

use crate::error::{Context, Result};
use crate::sys;

/// What an XDP program does with each frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum XdpAction {
    /// It goes on as if there were no program.
    Pass,
    /// It is dropped.
    Drop,
    /// It leaves through the interface of this index.
    Redirect(i32),
}

/// A program that is attached to an interface, until this is dropped.
#[derive(Debug)]
pub struct XdpLink {
    _link: OwnedFd,
}

impl XdpLink {
    /// Attaches a program to the interface `ifindex`, by its driver.
    ///
    /// # Errors
    ///
    /// EPERM without CAP_BPF and CAP_NET_ADMIN, EOPNOTSUPP if the driver has no XDP, EBUSY if there is a program already.
    pub fn attach(ifindex: i32, action: XdpAction) -> Result<Self> {
        let program = sys::load_xdp(&program(action)).context("BPF_PROG_LOAD")?;
        let link = sys::link_xdp(program.as_fd(), ifindex).context("BPF_LINK_CREATE")?;
        Ok(Self { _link: link })
    }
}

/// An instruction: an operation on register `register` and a number.
fn instruction(operation: u8, register: u8, number: i32) -> u64 {
    let [a, b, c, d] = number.to_ne_bytes();
    u64::from_ne_bytes([operation, register, 0, 0, a, b, c, d])
}

fn program(action: XdpAction) -> Vec<u64> {
    const SET: u8 = 0xb7; // BPF_ALU64 | BPF_MOV | BPF_K
    const CALL: u8 = 0x85; // BPF_JMP | BPF_CALL
    const EXIT: u8 = 0x95; // BPF_JMP | BPF_EXIT
    const BPF_FUNC_REDIRECT: i32 = 23;
    const XDP_DROP: i32 = 1;
    const XDP_PASS: i32 = 2;
    let exit = instruction(EXIT, 0, 0);
    match action {
        XdpAction::Pass => vec![instruction(SET, 0, XDP_PASS), exit],
        XdpAction::Drop => vec![instruction(SET, 0, XDP_DROP), exit],
        XdpAction::Redirect(ifindex) => vec![
            instruction(SET, 1, ifindex),
            instruction(SET, 2, 0),
            instruction(CALL, 0, BPF_FUNC_REDIRECT),
            exit,
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_those_of_the_manual() {
        // mov r0, 1; exit
        let bytes: Vec<u8> = program(XdpAction::Drop)
            .into_iter()
            .flat_map(u64::to_ne_bytes)
            .collect();
        assert_eq!(
            bytes,
            [0xb7, 0, 0, 0, 1, 0, 0, 0, 0x95, 0, 0, 0, 0, 0, 0, 0]
        );
        assert_eq!(program(XdpAction::Redirect(7)).len(), 4);
    }

    #[test]
    fn interface_that_is_not_there_is_refused() {
        let err = XdpLink::attach(i32::MAX, XdpAction::Pass).unwrap_err();
        assert!(err.call.starts_with("BPF_"), "{err}");
    }
}
