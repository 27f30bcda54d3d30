// SPDX-License-Identifier: GPL-2.0

//! `/proc/PID/fdinfo/FD`: what the queues of a device do.

use super::Net;
use crate::{device::Device, engine::counters, vring::Vring};
use kernel::{seq_file::SeqFile, seq_print};

/// Prints one `key:` and value a line.
///
/// Takes no lock that an ioctl or a run holds while it sleeps: the reader is
/// another process.
pub(super) fn show(device: &Device<Net>, file: &SeqFile) {
    let (owner, worker) = device.ids();
    seq_print!(file, "vhost-owner:\t{}\nvhost-worker:\t{}\n", owner, worker);

    let [rx, tx] = device.vrings();
    show_vring("rx", rx, file);
    show_vring("tx", tx, file);
}

fn show_vring(name: &str, vring: &Vring<Net>, file: &SeqFile) {
    seq_print!(file, "vhost-{}-kicks:\t{}\n", name, vring.kicks());
    for (key, value) in counters::NAMES.iter().zip(vring.counters()) {
        seq_print!(file, "vhost-{}-{}:\t{}\n", name, key, value);
    }
}
