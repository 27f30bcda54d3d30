// SPDX-License-Identifier: GPL-2.0

//! `/proc/PID/fdinfo/FD`: what the queues of a device do.

use super::Net;
use crate::{device::Device, vring::Vring};
use kernel::{seq_file::SeqFile, seq_print};

/// Prints one `key:` and value a line.
///
/// Takes no lock that an ioctl or a run holds while it sleeps: the reader is
/// another process.
pub(super) fn show(device: &Device<Net>, file: &SeqFile) {
    let (owner, worker) = device.ids();
    seq_print!(file, "vhost-device:\t{}\n", device.id());
    seq_print!(file, "vhost-owner:\t{}\nvhost-worker:\t{}\n", owner, worker);

    let [rx, tx] = device.vrings();
    show_features(rx.stats.features(), file);
    let backend_features = rx.stats.backend_features();
    seq_print!(file, "vhost-backend-features:\t{:#x}\n", backend_features);
    show_vring("rx", rx, file);
    show_vring("tx", tx, file);
}

/// The bits as one number.
fn show_features([low, high]: [u64; 2], file: &SeqFile) {
    match high {
        0 => seq_print!(file, "vhost-features:\t{:#x}\n", low),
        _ => seq_print!(file, "vhost-features:\t{:#x}{:016x}\n", high, low),
    }
}

fn show_vring(name: &str, vring: &Vring<Net>, file: &SeqFile) {
    let stats = &vring.stats;
    match vring.backend_name().get() {
        Some(backend) => seq_print!(file, "vhost-{}-backend:\t{}\n", name, backend),
        None => seq_print!(file, "vhost-{}-backend:\tnone\n", name),
    }
    let [avail, used] = stats.indices();
    seq_print!(file, "vhost-{}-size:\t{}\n", name, stats.size());
    seq_print!(file, "vhost-{}-avail:\t{}\n", name, avail);
    seq_print!(file, "vhost-{}-used:\t{}\n", name, used);
    // In units of 1,024 ns.
    let window = u64::from(vring.polling.window()).wrapping_mul(1024);
    seq_print!(file, "vhost-{}-window-ns:\t{}\n", name, window);
    show_polling(name, vring, file);

    seq_print!(file, "vhost-{}-wakeup-ns:\t{}\n", name, stats.wakeup_ns());

    let counters = stats.counters();
    seq_print!(file, "vhost-{}-kicks:\t{}\n", name, vring.kicks());
    seq_print!(file, "vhost-{}-runs:\t{}\n", name, counters.runs());
    seq_print!(file, "vhost-{}-requeues:\t{}\n", name, counters.requeues());
    seq_print!(file, "vhost-{}-polls:\t{}\n", name, counters.polls());
    let in_flight = counters.zerocopy_in_flight();
    seq_print!(file, "vhost-{}-zerocopy-in-flight:\t{}\n", name, in_flight);
    for (key, value) in stats.named() {
        seq_print!(file, "vhost-{}-{}:\t{}\n", name, key, value);
    }
}

fn show_polling(name: &str, vring: &Vring<Net>, file: &SeqFile) {
    let settings = vring.polling.settings();
    let policy = settings.policy.name();
    seq_print!(file, "vhost-{}-policy:\t{}\n", name, policy);
    let options = match (settings.competitor, settings.guest) {
        (false, false) => "none",
        (true, false) => "competitor",
        (false, true) => "guest",
        (true, true) => "competitor guest",
    };
    seq_print!(file, "vhost-{}-poll-options:\t{}\n", name, options);
    let chosen = vring.polling.chosen();
    seq_print!(file, "vhost-{}-adaptive-ns:\t{}\n", name, chosen);
}
