// SPDX-License-Identifier: GPL-2.0

//! Runs whose buffers are behind an IOTLB that does not have all of them yet.

use std::collections::BTreeSet;

use proptest::prelude::*;
use vhost_engine::engine::addr::Iova;
use vhost_engine::engine::error::{Access, Error};
use vhost_engine::engine::iotlb::{ACCESS_BOTH, ACCESS_READ, ACCESS_WRITE};
use vhost_engine::engine::net::Outcome;

use crate::mocks::{RxSocket, TxSocket};
use crate::model::*;
use crate::rig::*;

const PAGE: u64 = 4096;

fn miss(iova: u64, access: Access) -> Outcome {
    let iova = Iova(iova);
    Outcome::Miss { iova, access }
}

/// A rig whose IOTLB is empty.
fn bare<'m, 'a>(world: &'m (crate::arena::Arena<'a>, Place, u64), bits: u64) -> Rig<'m, 'a> {
    let mut rig = Rig::new(world, bits | PLATFORM);
    rig.ranges.clear();
    rig.overlap = false;
    rig
}

fn map_page(rig: &mut Rig<'_, '_>, iova: u64, access: u32) {
    let page = iova / PAGE * PAGE;
    rig.map(page, PAGE, rig.uva(page), access);
}

#[test]
fn a_tx_buffer_without_an_entry_is_missed_and_sent_when_there_is_one() {
    let world = arena(16);
    let mut rig = bare(&world, V1 | EVENT_IDX);
    map_page(&mut rig, GPA, ACCESS_READ);
    rig.driver.add(&[out(GPA, 100)]);
    rig.driver.add(&[out(GPA + PAGE - 50, 100)]);
    rig.driver.add(&[out(GPA, 100)]);
    let mut socket = TxSocket::new(&world.0, 64, 12);
    assert_eq!(rig.tx(&mut socket), miss(GPA + PAGE, Access::Read));
    assert_eq!(rig.driver.collect(), [(0, 0)], "what came before is done");
    assert_eq!((socket.sent.len(), rig.queue.base()), (1, 1));
    assert_eq!(
        (
            rig.host.counters.iotlb_misses,
            rig.host.counters.ring_errors
        ),
        (1, 0)
    );
    assert!(
        rig.queue.avail_empty(rig.mem),
        "nobody is to run it before the answer"
    );

    assert_eq!(rig.tx(&mut socket), miss(GPA + PAGE, Access::Read));
    map_page(&mut rig, GPA + PAGE, ACCESS_READ);
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!(rig.driver.collect(), [(1, 0), (2, 0)]);
    assert_eq!(socket.sent.len(), 3);
}

#[test]
fn a_missed_rx_buffer_keeps_the_packet_and_gives_no_chain_away() {
    let world = arena(16);
    let mut rig = bare(&world, V1 | MRG);
    map_page(&mut rig, GPA, ACCESS_WRITE);
    rig.driver.add(&[inp(GPA, 50)]);
    rig.driver.add(&[inp(GPA + PAGE, 1000)]);
    let mut socket = RxSocket::new(&world.0, 12);
    socket.push(100, 7);
    assert_eq!(rig.rx(&mut socket), miss(GPA + PAGE, Access::Write));
    assert_eq!((socket.packets.len(), rig.queue.base()), (1, 0));
    map_page(&mut rig, GPA + PAGE, ACCESS_WRITE);
    assert_eq!(rig.rx(&mut socket), Outcome::WaitSocket);
    assert_eq!(rig.driver.collect(), [(0, 50), (1, 62)]);
}

#[test]
fn an_indirect_table_is_missed_to_be_read() {
    let world = arena(16);
    let mut rig = bare(&world, V1);
    let table = GPA + 3 * PAGE - 16;
    let uva = rig.uva(table);
    rig.driver
        .add_indirect(table, uva, &[out(GPA, 50), out(GPA + 100, 50)]);
    let mut socket = TxSocket::new(&world.0, 64, 12);
    for wanted in [table, table + 16, GPA] {
        assert_eq!(rig.tx(&mut socket), miss(wanted, Access::Read));
        map_page(&mut rig, wanted, ACCESS_READ);
    }
    assert_eq!(rig.tx(&mut socket), Outcome::WaitKick);
    assert_eq!(socket.sent.len(), 1);
}

#[test]
fn an_entry_without_the_permission_breaks_the_ring() {
    let world = arena(16);
    let mut rig = bare(&world, V1);
    map_page(&mut rig, GPA, ACCESS_WRITE);
    rig.driver.add(&[out(GPA, 100)]);
    let mut socket = TxSocket::new(&world.0, 64, 12);
    assert_eq!(rig.tx(&mut socket), Outcome::Broken(Error::Denied));
    assert_eq!(rig.host.counters.ring_errors, 1);

    let world = arena(16);
    let mut rig = bare(&world, V1);
    map_page(&mut rig, GPA, ACCESS_READ);
    rig.driver.add(&[inp(GPA, 100)]);
    let mut socket = RxSocket::new(&world.0, 12);
    socket.push(60, 7);
    assert_eq!(rig.rx(&mut socket), Outcome::Broken(Error::Denied));
}

#[test]
fn without_an_iotlb_a_hole_breaks_the_ring() {
    let world = arena(16);
    let mut rig = Rig::new(&world, V1);
    rig.driver.add(&[out(GPA - PAGE, 100)]);
    let mut socket = TxSocket::new(&world.0, 64, 12);
    assert!(matches!(
        rig.tx(&mut socket),
        Outcome::Broken(Error::Unmapped { .. })
    ));
    assert_eq!(
        (
            rig.host.counters.iotlb_misses,
            rig.host.counters.ring_errors
        ),
        (0, 1)
    );
}

#[test]
fn a_used_ring_that_faults_at_a_miss_breaks_the_ring() {
    let world = arena(16);
    let mut rig = bare(&world, V1);
    map_page(&mut rig, GPA, ACCESS_READ);
    rig.driver.add(&[out(GPA, 100)]);
    rig.driver.add(&[out(GPA + PAGE, 100)]);
    let used = rig.driver.place.used_slot(0);
    rig.mem.holes.replace(vec![used..used + 8]);
    let mut socket = TxSocket::new(&world.0, 64, 12);
    assert_eq!(rig.tx(&mut socket), Outcome::Broken(Error::Fault));
    assert_eq!(
        (
            rig.host.counters.iotlb_misses,
            rig.host.counters.ring_errors
        ),
        (0, 1)
    );
}

proptest! {
    #![proptest_config(cases(300))]

    /// With every page mapped when it is missed, all packets arrive as without an IOTLB; no page is missed twice.
    #[test]
    fn misses_change_nothing_that_a_driver_sees(
        (ring, shuffle, mergeable) in (2_u32..8, any::<u64>(), any::<bool>()),
        chains in prop::collection::vec(
            prop::collection::vec((0_u64..0x3f_0000, 1_u32..6000), 1..4), 1..30),
        packets in prop::collection::vec(0_usize..4000, 0..12),
    ) {
        let bits = V1 | if mergeable { MRG } else { 0 };
        let run = |platform: bool, receives: bool| {
            let world = arena(1 << ring);
            let mut rig = if platform { bare(&world, bits) } else { Rig::new(&world, bits) };
            rig.driver.shuffle(shuffle);
            for chain in &chains {
                if rig.driver.free() >= chain.len() {
                    let bufs: Vec<_> = chain.iter().map(|(at, len)| {
                        if receives { inp(GPA + at, *len) } else { out(GPA + at, *len) }
                    }).collect();
                    rig.driver.add(&bufs);
                }
            }
            let mut missed = BTreeSet::new();
            let mut rx = RxSocket::new(&world.0, 12);
            packets.iter().for_each(|len| rx.push(*len, 7));
            let mut tx = TxSocket::new(&world.0, 64, 12);
            loop {
                let outcome = if receives { rig.rx(&mut rx) } else { rig.tx(&mut tx) };
                let Outcome::Miss { iova, access } = outcome else {
                    break;
                };
                assert_eq!(access, if receives { Access::Write } else { Access::Read });
                assert!(platform && missed.insert(iova.0 / PAGE), "{outcome:x?} again");
                map_page(&mut rig, iova.0, ACCESS_BOTH);
            }
            let memory = rig.mem.peek_vec(rig.buffers, BUFFERS as usize);
            (rig.driver.collect(), rig.queue.base(), tx.sent, rx.discarded, rx.packets, memory)
        };
        for receives in [false, true] {
            let (with, without) = (run(true, receives), run(false, receives));
            prop_assert!(with == without, "they differ");
        }
    }
}
