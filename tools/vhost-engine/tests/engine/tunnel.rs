// SPDX-License-Identifier: GPL-2.0

//! Headers of 24 bytes, which the bits of UDP tunnels make.

use vhost_engine::engine::features::{self, HeaderLen};
use vhost_engine::engine::net::Outcome;

use crate::mocks::{RxSocket, TxSocket, SOCKET_HEADER};
use crate::model::*;
use crate::rig::*;

const STEP: u64 = 4096;

/// A ring with the feature bits 0 to 63 and each of the tunnel bits.
fn rig<'m, 'a>(world: &'m World<'a>, features: u64) -> Rig<'m, 'a> {
    let mut rig = Rig::new(world, features);
    for bit in [
        features::NET_GUEST_UDP_TUNNEL_GSO,
        features::NET_HOST_UDP_TUNNEL_GSO,
    ] {
        rig.header = HeaderLen::of(&[features, 1 << (bit - 64)]);
        assert_eq!(rig.header.vhost + rig.header.sock, 24);
    }
    rig
}

/// What is in the first `len` bytes of the first buffers of `each` bytes.
fn received(rig: &Rig<'_, '_>, len: usize, each: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for at in (GPA..).step_by(STEP as usize) {
        let now = each.min(len - bytes.len());
        bytes.extend(rig.mem.peek_vec(rig.uva(at), now));
        if bytes.len() == len {
            return bytes;
        }
    }
    bytes
}

#[test]
fn num_buffers_is_in_the_middle_of_the_sockets_header() {
    for (features, each, buffers) in [(V1, 200, 1), (MRG, 200, 1), (MRG, 11, 8), (V1 | MRG, 1, 84)]
    {
        let world = arena(128);
        let mut rig = rig(&world, features);
        for i in 0..buffers {
            rig.driver.add(&[inp(GPA + STEP * i, each)]);
        }
        let mut socket = RxSocket::new(&world.0, 24);
        socket.push(60, 7);
        assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
        let mut wanted = vec![SOCKET_HEADER; 24];
        wanted[10..12].copy_from_slice(&(buffers as u16).to_le_bytes());
        wanted.resize(84, 7);
        assert_eq!(received(&rig, 84, each as usize), wanted);
        assert_eq!(rig.driver.collect().len() as u64, buffers);
    }
}

#[test]
fn without_num_buffers_the_sockets_header_stays_as_it_is() {
    let world = arena(16);
    let mut rig = rig(&world, 0);
    rig.driver.add(&[inp(GPA, 200)]);
    let mut socket = RxSocket::new(&world.0, 24);
    socket.push(60, 7);
    rig.rx(&mut socket);
    let wanted = [&[SOCKET_HEADER; 24][..], &[7; 60]].concat();
    assert_eq!(received(&rig, 84, 200), wanted);
}

#[test]
fn the_devices_own_header_is_zero_to_its_end() {
    for (features, buffers) in [(VNET, 0), (VNET | V1, 1), (VNET | MRG, 1)] {
        let world = arena(16);
        let mut rig = rig(&world, features);
        rig.mem.poke(rig.buffers, &[0xff; 100]);
        rig.driver.add(&[inp(GPA, 200)]);
        let mut socket = RxSocket::new(&world.0, 0);
        socket.push(60, 7);
        assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
        let mut wanted = vec![0; 24];
        wanted[10] = buffers;
        wanted.resize(84, 7);
        wanted.push(0xff);
        assert_eq!(received(&rig, 85, 200), wanted);
        assert_eq!(rig.driver.collect(), [(0, 84)]);
    }
}

#[test]
fn the_devices_own_header_is_not_sent_wherever_it_is_cut() {
    for cut in [1, 12, 23, 24, 25] {
        for batch in [0, 64] {
            let world = arena(8);
            let mut rig = rig(&world, V1 | VNET);
            let bytes: Vec<u8> = (0..80).collect();
            rig.mem.poke(rig.uva(GPA), &bytes);
            rig.driver
                .add(&[out(GPA, cut), out(GPA + u64::from(cut), 80 - cut)]);
            let mut socket = TxSocket::new(&world.0, batch, 0);
            rig.tx(&mut socket);
            assert_eq!(socket.sent, [&bytes[24..]]);
        }
    }
}

#[test]
fn a_frame_needs_the_whole_header() {
    for (features, sock) in [(V1, 24), (V1 | VNET, 0)] {
        let world = arena(8);
        let mut rig = rig(&world, features);
        rig.mem.poke(rig.uva(GPA), &[0; 80]);
        for len in [12, 23, 24, 25] {
            rig.driver.add(&[out(GPA, len)]);
        }
        let mut socket = TxSocket::new(&world.0, 64, sock);
        rig.tx(&mut socket);
        let c = &rig.host.counters;
        // A header alone is a frame for the socket to judge, and nothing if it
        // is the device's.
        let sent = if sock == 24 { vec![24, 25] } else { vec![1] };
        let lens: Vec<_> = socket.sent.iter().map(Vec::len).collect();
        assert_eq!(lens, sent);
        assert_eq!(c.drop_header + c.drop_length + c.packets, 4);
        assert_eq!(rig.driver.collect().len(), 4);
    }
}
