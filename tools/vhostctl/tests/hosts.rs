// SPDX-License-Identifier: GPL-2.0

//! What is made of a host's files.

mod recorded;

use recorded::{lay_out, MIXED};
use vhostctl::device::{snapshot, Device, Driver, Snapshot};
use vhostctl::failure::Failure;
use vhostctl::fdinfo::number;
use vhostctl::list;
use vhostctl::target::{select, Target};

fn device<'a>(snapshot: &'a Snapshot, id: &str) -> &'a Device {
    let mut devices = snapshot.devices.iter();
    devices
        .find(|device| device.id == id)
        .unwrap_or_else(|| panic!("{id} in {snapshot:#?}"))
}

fn mixed() -> Snapshot {
    let (_folder, host) = lay_out(MIXED);
    snapshot(&host)
}

#[test]
fn duplicates_of_a_file_are_one_device_under_its_owners_descriptor() {
    let snapshot = mixed();
    let ids: Vec<&str> = snapshot
        .devices
        .iter()
        .map(|device| device.id.as_str())
        .collect();
    assert_eq!(ids, ["2100:31", "3000:3", "3000:4", "4000:12", "5000:5"]);
    let holders = &device(&snapshot, "2100:31").holders;
    let holders: Vec<(u32, i32, &str)> = holders
        .iter()
        .map(|h| (h.pid, h.fd, h.comm.as_str()))
        .collect();
    assert_eq!(
        holders,
        [
            (900, 31, "libvirtd"),
            (2100, 31, "qemu-system-x86"),
            (2100, 44, "qemu-system-x86")
        ]
    );
}

#[test]
fn device_of_ours_is_told_by_its_lines() {
    let snapshot = mixed();
    let web = device(&snapshot, "2100:31");
    assert_eq!(
        (web.driver, web.owner, web.vm.as_str()),
        (Driver::Rust, Some(2100), "web-1")
    );
    assert_eq!(
        (web.node.as_str(), web.interfaces.as_slice()),
        ("vhost-net-rs", ["vnet0".to_owned()].as_slice())
    );
    assert_eq!(
        (web.workers[0].tid, web.cpu_ns()),
        (2105, Some(123_456_789))
    );
    assert_eq!(web.keys["features"], "0x0000000130008000");
    assert_eq!(list::fill(&web.vrings[0]).as_deref(), Some("76/256"));
    assert_eq!(number(&web.vrings[1].keys, "a-key-of-later"), Some(7));
}

#[test]
fn device_without_owner_has_no_worker_and_is_not_its_neighbour() {
    let snapshot = mixed();
    let idle = device(&snapshot, "3000:4");
    assert_eq!(
        (idle.owner, idle.workers.len(), idle.cpu_ns()),
        (None, 0, None)
    );
    assert_eq!(device(&snapshot, "3000:3").owner, Some(3000));
}

#[test]
fn interfaces_come_from_the_taps_if_the_driver_does_not_say() {
    assert_eq!(device(&mixed(), "3000:3").interfaces, ["load0"]);
}

#[test]
fn kernel_without_schedstat_counts_ticks() {
    assert_eq!(device(&mixed(), "3000:3").cpu_ns(), Some(420_000_000));
}

#[test]
fn of_a_device_of_c_worker_and_taps_are_known() {
    let snapshot = mixed();
    let old = device(&snapshot, "4000:12");
    assert_eq!(
        (old.driver, old.owner, old.vm.as_str()),
        (Driver::C, None, "old-1")
    );
    assert_eq!((old.workers[0].tid, old.cpu_ns()), (4007, Some(5_000_000)));
    assert_eq!(old.interfaces, ["tap4"]);
    assert!(old.vrings.is_empty());
}

#[test]
fn worker_of_c_that_is_a_kernel_thread_is_found_and_a_program_of_its_name_is_not() {
    let snapshot = mixed();
    let workers = &device(&snapshot, "5000:5").workers;
    let tids: Vec<u32> = workers.iter().map(|worker| worker.tid).collect();
    assert_eq!(tids, [5009]);
}

#[test]
fn host_is_idle_as_its_first_line_says() {
    assert_eq!(mixed().ticks, Some((1000, 500)));
}

fn selected(targets: &[&str]) -> Result<Vec<String>, Failure> {
    let (_folder, host) = lay_out(MIXED);
    let mut snapshot = snapshot(&host);
    let targets: Vec<Target> = targets
        .iter()
        .map(|target| target.parse().unwrap())
        .collect();
    select(&host, &mut snapshot, &targets)?;
    Ok(snapshot
        .devices
        .into_iter()
        .map(|device| device.id)
        .collect())
}

#[test]
fn devices_are_named_by_process_descriptor_and_name() {
    assert_eq!(selected(&[]).unwrap().len(), 5);
    assert_eq!(selected(&["3000"]).unwrap(), ["3000:3", "3000:4"]);
    assert_eq!(selected(&["900"]).unwrap(), ["2100:31"]);
    assert_eq!(selected(&["900:31"]).unwrap(), ["2100:31"]);
    assert_eq!(
        selected(&["2100:44", "tap4"]).unwrap(),
        ["2100:31", "4000:12"]
    );
    assert_eq!(selected(&["web-1"]).unwrap(), ["2100:31"]);
    assert_eq!(selected(&["kvmtool"]).unwrap(), ["5000:5"]);
}

#[test]
fn name_of_no_device_ends_with_status_3() {
    for name in ["1", "2100:7", "web-2"] {
        let failure = selected(&[name]).unwrap_err();
        assert_eq!(failure.status(), 3, "{failure}");
        assert!(failure.to_string().starts_with(name));
    }
}

#[test]
fn host_without_a_driver_has_no_devices() {
    let (_folder, host) = lay_out("== proc/misc\n200 tun\n");
    let mut snapshot = snapshot(&host);
    assert!(!snapshot.loaded && snapshot.devices.is_empty());
    let failure = select(&host, &mut snapshot, &[Target::Process(1)]).unwrap_err();
    assert!(failure.to_string().contains("modprobe"), "{failure}");
}
