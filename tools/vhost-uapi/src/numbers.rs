// SPDX-License-Identifier: GPL-2.0

//! ioctl numbers of a vhost-net device, under the names of `include/uapi/linux/vhost.h`.

use nix::{request_code_none, request_code_read, request_code_readwrite, request_code_write};

const VHOST_VIRTIO: u8 = 0xAF;

macro_rules! numbers {
    ($($name:ident = $code:ident($nr:literal $(, $size:literal)?);)*) => {
        $(
            #[doc = concat!("`VHOST_", stringify!($name), "`.")]
            pub const $name: u64 = $code!(VHOST_VIRTIO, $nr $(, $size)?);
        )*

        /// The name of an ioctl number, for messages.
        pub fn name(request: u64) -> &'static str {
            $(if request == $name { return concat!("VHOST_", stringify!($name)); })*
            "unknown ioctl"
        }
    };
}

numbers! {
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
        assert_eq!(name(NET_SET_BACKEND), "VHOST_NET_SET_BACKEND");
    }
}
