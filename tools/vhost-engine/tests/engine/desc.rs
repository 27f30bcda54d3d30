// SPDX-License-Identifier: GPL-2.0

use vhost_engine::engine::addr::Iova;
use vhost_engine::engine::desc::Desc;
use vhost_engine::engine::error::Access;
use vhost_engine::engine::memory::RawDesc;

fn desc(flags: u16) -> Desc {
    Desc::new(RawDesc {
        addr: 0x0102_0304_0506_0708_u64.to_le(),
        len: 0x0a0b_0c0d_u32.to_le(),
        flags: flags.to_le(),
        next: 0x1234_u16.to_le(),
    })
}

#[test]
fn fields_are_little_endian() {
    let desc = desc(1);
    assert_eq!(desc.addr, Iova(0x0102_0304_0506_0708));
    assert_eq!(desc.len, 0x0a0b_0c0d);
    assert_eq!(desc.next(), Some(0x1234));
}

#[test]
fn next_counts_only_with_its_flag() {
    assert_eq!(desc(0).next(), None);
    assert_eq!(desc(2 | 4).next(), None);
}

#[test]
fn write_and_indirect_are_flags_of_their_own() {
    assert_eq!(desc(2).access(), Access::Write);
    assert_eq!(desc(1 | 4).access(), Access::Read);
    assert!(desc(4).is_indirect());
    assert!(!desc(1 | 2).is_indirect());
}

#[test]
fn unknown_flags_are_ignored() {
    assert!(desc(0xfff8).is_alone());
    assert!(!desc(0xfff9).is_alone());
    assert!(!desc(0xfffc).is_alone());
}
