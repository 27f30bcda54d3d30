// SPDX-License-Identifier: GPL-2.0

//! vhost-net: the host side of virtio-net queues, in the kernel.
//!
//! Serves `/dev/vhost-net` as C's `vhost_net` does. The [`engine`] is the
//! program; the modules beside it tie it to devices, eventfds and sockets.

#![deny(unsafe_code)]

pub mod engine;

mod access;
#[allow(unsafe_code)]
#[path = "../../rust/bindings/mod.rs"]
mod bindings;
mod device;
mod dirty_log;
mod error;
mod ioctl;
mod iotlb;
#[allow(unsafe_code)]
#[path = "../../rust/kapi/mod.rs"]
mod kapi;
mod kick;
mod message;
mod net;
mod polling;
mod stats;
mod table;
mod vring;
mod wakeup;
mod worker;

use kapi::{chrdev, param};
use kernel::prelude::*;
use net::Net;

module! {
    type: VhostNet,
    name: "vhost_net_rs",
    authors: ["vhost_net_rs maintainers"],
    description: "Host kernel accelerator for virtio net, in Rust",
    license: "GPL",
    alias: ["char-major-10-238", "devname:vhost-net"],
}

/// The name that goes with the fixed minor, 238.
const NODE: &CStr = c"vhost-net";

#[pin_data]
struct VhostNet {
    #[pin]
    _node: chrdev::Registration<Net>,
}

impl kernel::InPlaceModule for VhostNet {
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        let node = param::node();
        let minor = if node == NODE {
            chrdev::Minor::VhostNet
        } else {
            chrdev::Minor::Dynamic
        };

        try_pin_init!(Self {
            _node <- chrdev::Registration::register(node, minor),
        })
    }
}
