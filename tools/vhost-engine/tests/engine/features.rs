// SPDX-License-Identifier: GPL-2.0

use vhost_engine::engine::features::{self, has, HeaderLen, OFFERED};

fn of(bits: &[u32]) -> HeaderLen {
    let mut words = [0; 2];
    for bit in bits {
        words[*bit as usize / 64] |= 1 << (bit % 64);
    }
    HeaderLen::of(&words)
}

#[test]
fn exactly_the_bits_that_work_are_offered() {
    let bits = (0..128)
        .filter(|bit| has(&OFFERED, *bit))
        .collect::<Vec<_>>();
    assert_eq!(bits, [15, 24, 26, 27, 28, 29, 32, 33, 35, 40, 65, 67]);
}

#[test]
fn the_header_is_10_bytes_and_12_with_num_buffers() {
    assert_eq!(of(&[]), HeaderLen { vhost: 0, sock: 10 });
    assert_eq!(
        of(&[features::NET_MRG_RXBUF]),
        HeaderLen { vhost: 0, sock: 12 }
    );
    assert_eq!(of(&[features::VERSION_1]), HeaderLen { vhost: 0, sock: 12 });
}

#[test]
fn a_tunnel_bit_makes_the_header_24_bytes() {
    for bit in [
        features::NET_GUEST_UDP_TUNNEL_GSO,
        features::NET_HOST_UDP_TUNNEL_GSO,
    ] {
        assert_eq!(of(&[bit]), HeaderLen { vhost: 0, sock: 24 });
        assert_eq!(
            of(&[bit, features::VERSION_1]),
            HeaderLen { vhost: 0, sock: 24 }
        );
    }
}

#[test]
fn with_bit_27_the_header_is_the_devices_own() {
    let long = [features::NET_VIRTIO_NET_HDR, features::NET_MRG_RXBUF];
    assert_eq!(of(&long), HeaderLen { vhost: 12, sock: 0 });
    assert_eq!(of(&long[..1]), HeaderLen { vhost: 10, sock: 0 });
}

#[test]
fn bits_above_63_are_in_the_second_word() {
    assert!(has(&[0, 2], 65));
    assert!(!has(&[2, 0], 65));
    assert!(has(&[1 << 63, 0], 63));
}
