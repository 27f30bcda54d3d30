// SPDX-License-Identifier: GPL-2.0

//! ioctl numbers of a vhost-net device, under the names of `include/uapi/linux/vhost.h` and, where they begin with `RS_`, of
//! `vhost_net_rs.h` beside it.

use nix::{request_code_none, request_code_read, request_code_readwrite, request_code_write};

const VHOST_VIRTIO: u8 = 0xAF;
const VHOST_NET_RS: u8 = 0xB9;

macro_rules! numbers {
    ($($kind:ident, $prefix:literal { $($name:ident = $code:ident($nr:literal $(, $size:literal)?);)* })*) => {
        $($(
            #[doc = concat!("`", $prefix, stringify!($name), "`.")]
            pub const $name: u64 = $code!($kind, $nr $(, $size)?);
        )*)*

        /// The name of an ioctl number, for messages.
        pub fn name(request: u64) -> &'static str {
            $($(if request == $name { return concat!($prefix, stringify!($name)); })*)*
            "unknown ioctl"
        }
    };
}

numbers! {
    VHOST_VIRTIO, "VHOST_" {
        GET_FEATURES = request_code_read(0x00, 8);
        SET_FEATURES = request_code_write(0x00, 8);
        SET_OWNER = request_code_none(0x01);
        RESET_OWNER = request_code_none(0x02);
        SET_MEM_TABLE = request_code_write(0x03, 8);
        SET_LOG_BASE = request_code_write(0x04, 8);
        SET_LOG_FD = request_code_write(0x07, 4);
        NEW_WORKER = request_code_read(0x08, 4);
        FREE_WORKER = request_code_write(0x09, 4);
        SET_VRING_NUM = request_code_write(0x10, 8);
        SET_VRING_ADDR = request_code_write(0x11, 40);
        SET_VRING_BASE = request_code_write(0x12, 8);
        GET_VRING_BASE = request_code_readwrite(0x12, 8);
        SET_VRING_ENDIAN = request_code_write(0x13, 8);
        GET_VRING_ENDIAN = request_code_write(0x14, 8);
        ATTACH_VRING_WORKER = request_code_write(0x15, 8);
        GET_VRING_WORKER = request_code_readwrite(0x16, 8);
        SET_VRING_KICK = request_code_write(0x20, 8);
        SET_VRING_CALL = request_code_write(0x21, 8);
        SET_VRING_ERR = request_code_write(0x22, 8);
        SET_VRING_BUSYLOOP_TIMEOUT = request_code_write(0x23, 8);
        GET_VRING_BUSYLOOP_TIMEOUT = request_code_write(0x24, 8);
        SET_BACKEND_FEATURES = request_code_write(0x25, 8);
        GET_BACKEND_FEATURES = request_code_read(0x26, 8);
        NET_SET_BACKEND = request_code_write(0x30, 8);
        GET_FEATURES_ARRAY = request_code_read(0x83, 8);
        SET_FEATURES_ARRAY = request_code_write(0x83, 8);
        SET_FORK_FROM_OWNER = request_code_write(0x84, 1);
        GET_FORK_FROM_OWNER = request_code_read(0x85, 1);
    }
    VHOST_NET_RS, "VHOST_NET_" {
        RS_GET_POLL = request_code_readwrite(0x01, 32);
        RS_SET_POLL = request_code_write(0x02, 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_kernel_header() {
        assert_eq!(GET_FEATURES, 0x8008_AF00);
        assert_eq!(SET_OWNER, 0xAF01);
        assert_eq!(SET_VRING_ADDR, 0x4028_AF11);
        assert_eq!(GET_VRING_BASE, 0xC008_AF12);
        assert_eq!(NET_SET_BACKEND, 0x4008_AF30);
        assert_eq!(SET_FORK_FROM_OWNER, 0x4001_AF84);
        assert_eq!(RS_GET_POLL, 0xC020_B901);
        assert_eq!(RS_SET_POLL, 0x4020_B902);
        assert_eq!(name(NET_SET_BACKEND), "VHOST_NET_SET_BACKEND");
        assert_eq!(name(RS_SET_POLL), "VHOST_NET_RS_SET_POLL");
    }
}
