// SPDX-License-Identifier: GPL-2.0

//! Calls that concern the device as a whole.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use anyhow::Result;
use vhost_uapi::{numbers, RawArg, VhostNet};

use super::REQUESTS;
use crate::script::Script;

/// Every call, on a fresh device each.
pub(super) fn every_call(script: &mut Script) -> Result<()> {
    for with_owner in [false, true] {
        for (name, request) in REQUESTS {
            let when = if with_owner {
                "with an owner"
            } else {
                "without an owner"
            };
            for what in ["zeroes", "index 1", "index 2", "null", "a bad pointer"] {
                let vhost = if with_owner {
                    script.owned()?
                } else {
                    script.open()?
                };
                let mut bytes = [0; 256];
                bytes[0] = u8::from(what == "index 1") + 2 * u8::from(what == "index 2");
                let arg = match what {
                    "null" => RawArg::Value(0),
                    "a bad pointer" => RawArg::KernelAddress,
                    _ => RawArg::Bytes(&mut bytes),
                };
                let outcome = vhost.raw_ioctl(*request, arg);
                script.note(format!("{when}: {name} of {what}"), outcome);
            }
        }
    }
    Ok(())
}

/// Indices that there are not, and arguments that end too soon.
pub(super) fn arguments(script: &mut Script) -> Result<()> {
    let vhost = script.owned()?;
    for (name, request) in REQUESTS {
        // Calls without an index say what they say to any owner; these were made above.
        let takes_index = (0x10..=0x30).contains(&(request & 0xff)) && request >> 8 & 0xff == 0xaf;
        if !takes_index {
            continue;
        }
        for index in [2, 3, 255, u32::MAX] {
            script.words(
                "index",
                &vhost,
                *request,
                &[index, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            );
        }
        for len in [0, 1, 3, 4, 7, 39] {
            let mut bytes = vec![0; len];
            let outcome = vhost.raw_ioctl(*request, RawArg::Bytes(&mut bytes));
            script.note(format!("{len} bytes: {name}"), outcome);
        }
    }
    Ok(())
}

/// Becoming and ceasing to be the owner, and what is forgotten then.
pub(super) fn owner(script: &mut Script) -> Result<()> {
    let vhost = script.open()?;
    script.note("RESET_OWNER without", vhost.reset_owner());
    script.note("SET_OWNER", vhost.set_owner());
    script.note("SET_OWNER again", vhost.set_owner());
    script.note("window", vhost.set_vring_busyloop_timeout(0, 50));
    script.note("window back", vhost.vring_busyloop_timeout(0));
    script.note("base", vhost.set_vring_base(1, 17));
    script.note("num", vhost.set_vring_num(1, 16));
    script.note("SET_BACKEND(-1) before a table", vhost.set_backend(0, None));
    script.note(
        "SET_BACKEND(-1) before a table, ring 2",
        vhost.set_backend(2, None),
    );
    script.note("RESET_OWNER", vhost.reset_owner());
    script.note("RESET_OWNER again", vhost.reset_owner());
    script.note("base without", vhost.vring_base(1));
    script.note("SET_OWNER after RESET_OWNER", vhost.set_owner());
    script.note("base after", vhost.vring_base(1));
    script.note("window after", vhost.vring_busyloop_timeout(0));
    script.note(
        "SET_BACKEND(-1) after RESET_OWNER",
        vhost.set_backend(0, None),
    );
    for micros in [0, 1, 0x7fff_ffff, u32::MAX] {
        script.note(
            format!("window of {micros}"),
            vhost.set_vring_busyloop_timeout(1, micros),
        );
        script.note(
            format!("window of {micros} back"),
            vhost.vring_busyloop_timeout(1),
        );
    }
    script.note("window of ring 2", vhost.vring_busyloop_timeout(2));

    // Opened for reading only, everything works.
    let node = script.open()?;
    let path = format!("/proc/self/fd/{}", node.as_fd().as_raw_fd());
    let reader = VhostNet::open(Path::new(&path), false)?;
    script.note("SET_OWNER on a reader", reader.set_owner());
    script.note("num on a reader", reader.set_vring_num(0, 8));
    Ok(())
}

/// Choosing what the worker is, and the calls on workers that a net device does not have.
pub(super) fn kinds(script: &mut Script) -> Result<()> {
    let vhost = script.open()?;
    let both = [numbers::SET_FORK_FROM_OWNER, numbers::GET_FORK_FROM_OWNER];
    for when in [
        "at first",
        "with an owner",
        "with an owner, kthread",
        "after",
    ] {
        match when {
            "with an owner" => vhost.set_owner()?,
            "with an owner, kthread" => {
                vhost.reset_owner()?;
                script.note("GET_FORK after RESET_OWNER", vhost.fork_from_owner());
                vhost.set_fork_from_owner(0)?;
                vhost.set_owner()?;
            }
            "after" => vhost.reset_owner()?,
            _ => {}
        }
        script.note(format!("{when}: GET_FORK"), vhost.fork_from_owner());
        for mode in [0, 1, 2, 0x7f, 0x80, 0xff, 0, 1] {
            let set = vhost.set_fork_from_owner(mode);
            script.note(format!("{when}: SET_FORK {mode}"), set);
            script.note(format!("{when}: GET_FORK"), vhost.fork_from_owner());
        }
        for request in both {
            let name = numbers::name(request);
            let wild = vhost.raw_ioctl(request, RawArg::KernelAddress);
            script.note(format!("{when}: {name} of a bad pointer"), wild);
            for bytes in [&mut [][..], &mut [1][..], &mut [0, 1][..]] {
                let name = format!("{when}: {name} of {bytes:?}");
                script.note(name, vhost.raw_ioctl(request, RawArg::Bytes(bytes)));
            }
        }
        for request in [
            numbers::NEW_WORKER,
            numbers::FREE_WORKER,
            numbers::ATTACH_VRING_WORKER,
            numbers::GET_VRING_WORKER,
        ] {
            for first in [0, 1, 2, u32::MAX] {
                script.words(when, &vhost, request, &[first, 0]);
            }
        }
    }
    Ok(())
}

/// Features, as a word and as an array.
pub(super) fn features(script: &mut Script) -> Result<()> {
    let vhost = script.open()?;
    script.note("GET_FEATURES value", vhost.features());
    script.note("GET_FEATURES_ARRAY of 2 value", vhost.features_array());
    script.note("GET_BACKEND_FEATURES value", vhost.backend_features());
    script.note(
        "VHOST_SET_BACKEND_FEATURES 0",
        vhost.set_backend_features(0),
    );
    script.note(
        "VHOST_SET_BACKEND_FEATURES 2",
        vhost.set_backend_features(2),
    );
    for bit in [0, 1, 3, 62] {
        script.note(
            format!("VHOST_SET_BACKEND_FEATURES, bit {bit}"),
            vhost.set_backend_features(1 << bit),
        );
    }
    for bit in [15, 24, 27, 28, 29, 32, 35, 40] {
        script.note(
            format!("SET_FEATURES, bit {bit}"),
            vhost.set_features(1 << bit),
        );
    }
    for bit in [0, 3, 5, 14, 16, 25, 30, 31, 34, 36, 38, 57, 61, 63] {
        script.note(
            format!("SET_FEATURES, bit {bit}"),
            vhost.set_features(1 << bit),
        );
    }
    script.note(
        "SET_FEATURES of what C offers",
        vhost.set_features(0x0000_010b_3d00_8000),
    );
    Ok(())
}

/// Features as an array.
pub(super) fn feature_arrays(script: &mut Script) -> Result<()> {
    let vhost = script.open()?;
    let arrays: &[&[u64]] = &[
        &[],
        &[1 << 32],
        &[1 << 32, 0],
        &[1 << 32, 0, 0, 0],
        &[1 << 32, 0, 1],
        &[1 << 32, 0, 0, 1 << 63],
        &[1 << 34, 0],
        &[0, 1],
        &[0, 1 << 1],
        &[1 << 32, 1 << 3],
        &[1 << 32, 1 << 1 | 1 << 3],
        &[1 << 32, 1 << 2],
        &[0, 1 << 4],
        &[1 << 34, 0, 1],
    ];
    for words in arrays {
        script.note(
            format!("SET_FEATURES_ARRAY {words:x?}"),
            vhost.set_features_array(words),
        );
    }
    // The count is longer than what can be read or written.
    for request in [numbers::GET_FEATURES_ARRAY, numbers::SET_FEATURES_ARRAY] {
        for (count, bytes) in [
            (0u64, 8),
            (1, 8),
            (1, 16),
            (2, 16),
            (3, 24),
            (4, 40),
            (5, 40),
        ] {
            let mut arg = vec![0; bytes];
            arg[..8].copy_from_slice(&count.to_ne_bytes());
            let outcome = vhost.raw_ioctl(request, RawArg::Bytes(&mut arg));
            let name = numbers::name(request);
            script.note(format!("{name} of {count} in {bytes} bytes"), outcome);
        }
    }
    // Nothing of an array that leaves user space is cleared; of one that only ends too late, what is there.
    for count in [4, 5, 1 << 60, u64::MAX] {
        let mut arg = [0xff; 40];
        arg[..8].copy_from_slice(&count.to_ne_bytes());
        let outcome = vhost.raw_ioctl(numbers::GET_FEATURES_ARRAY, RawArg::Bytes(&mut arg));
        script.note(format!("GET_FEATURES_ARRAY of {count}"), outcome);
        let found = format!("{:?} {:?}", &arg[..8], &arg[24..]);
        script.text(format!("GET_FEATURES_ARRAY of {count}: the rest"), found);
    }
    Ok(())
}
