// SPDX-License-Identifier: GPL-2.0

//! `vhostctl get` and `set`: how vrings poll, by the driver's ioctls.
//!
//! They want the device's file. A duplicate that is kept would keep the device, its worker and its owner's memory alive when
//! the VMM has died: [`Duplicate`] lives for a few calls.

use nix::errno::Errno;
use serde::Serialize;
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use vhost_uapi::{fetch_file, Policy, VhostNet, VringPoll};

use crate::app::App;
use crate::args::{SetOptions, Settings, VringName};
use crate::device::{Device, Driver, Snapshot};
use crate::failure::{Failure, Result};
use crate::fdinfo::{number, FdInfo, VRINGS};
use crate::host::Host;
use crate::rights::Rights;
use crate::table::{layout, or_dash, Align};
use crate::target::Target;

/// How one vring polls.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Polling {
    /// `PID:FD`.
    pub device: String,
    /// `rx` or `tx`.
    pub vring: &'static str,
    /// `VHOST_GET_VRING_BUSYLOOP_TIMEOUT`, in microseconds.
    pub window_us: u32,
    /// The rest; nothing if the driver has no `VHOST_NET_RS_GET_POLL`.
    #[serde(flatten)]
    pub rest: Option<Rest>,
}

/// What `VHOST_NET_RS_GET_POLL` says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rest {
    /// What decides.
    pub policy: &'static str,
    /// It stops while another task wants the CPU.
    pub stop_on_competitor: bool,
    /// It stops while the guest does not run.
    pub stop_on_guest: bool,
    /// Events a millisecond at which continuous polling starts.
    pub start_rate: u32,
    /// Microseconds without work after which it ends.
    pub stop_idle_us: u32,
}

/// A duplicate of a device's file.
#[derive(Debug)]
pub struct Duplicate<'a> {
    file: VhostNet,
    device: &'a Device,
    rights: Rights,
}

impl<'a> Duplicate<'a> {
    /// Takes it.
    ///
    /// # Errors
    ///
    /// [`Failure::Right`] without the right to ptrace-attach to the holder, [`Failure::NoDevice`] if the device has gone,
    /// [`Failure::Refused`] for one of C's, which serves none but its owner.
    pub fn take(host: &Host, device: &'a Device) -> Result<Self> {
        let id = &device.id;
        if device.driver == Driver::C {
            return Err(Failure::Refused(format!("{id}: C's vhost_net serves its owner alone: nothing can be read or set from outside")));
        }
        let (pid, fd) = device.descriptor();
        let rights = Rights::of_this_process(host);
        let gone = || Failure::NoDevice(format!("{id}: the device has gone"));
        let file = fetch_file(pid, fd).map_err(|err| match err.errno {
            Errno::EPERM => Failure::Right(rights.why_no_descriptor(pid)),
            Errno::ESRCH | Errno::EBADF => gone(),
            _ => Failure::Other(format!("{id}: {err}")),
        })?;
        let file = VhostNet::from(file);
        // The number may be another process's, or another file's, by now.
        if is(host, &file, device) {
            Ok(Self {
                file,
                device,
                rights,
            })
        } else {
            Err(gone())
        }
    }

    /// How a vring polls.
    ///
    /// # Errors
    ///
    /// [`Failure::Right`] without CAP_NET_ADMIN, and what the device refuses.
    pub fn get(&self, index: u32) -> Result<(u32, Option<VringPoll>)> {
        let window = self.file.vring_busyloop_timeout(index);
        let window = window.map_err(|err| self.failure(index, &err))?;
        match self.file.poll(index) {
            Ok(poll) => Ok((window, Some(poll))),
            Err(err) if err.errno == Errno::ENOTTY => Ok((window, None)),
            Err(err) => Err(self.failure(index, &err)),
        }
    }

    /// Sets the window, in microseconds.
    ///
    /// # Errors
    ///
    /// As [`Self::get`].
    pub fn set_window(&self, index: u32, window: u32) -> Result {
        let set = self.file.set_vring_busyloop_timeout(index, window);
        set.map_err(|err| self.failure(index, &err))
    }

    fn set(&self, index: u32, settings: &Settings) -> Result {
        if settings.beyond_window() {
            let mut poll = self.get(index)?.1.ok_or_else(|| {
                let id = &self.device.id;
                Failure::Refused(format!(
                    "{id}: this version of the driver has a window and nothing else to set"
                ))
            })?;
            settings.change(&mut poll);
            let set = self.file.set_poll(index, poll);
            set.map_err(|err| self.failure(index, &err))?;
        }
        settings
            .window
            .map_or(Ok(()), |window| self.set_window(index, window))
    }

    fn failure(&self, index: u32, err: &vhost_uapi::Error) -> Failure {
        let id = &self.device.id;
        let vring = vring_name(index);
        match err.errno {
            Errno::EPERM => Failure::Right(self.rights.why_refused(id)),
            Errno::EINVAL => Failure::Refused(format!("{id} {vring}: {err}: the driver does not serve this value; its documentation says which it does (polling)")),
            _ => Failure::Refused(format!("{id} {vring}: {err}")),
        }
    }
}

fn vring_name(index: u32) -> &'static str {
    let index = usize::try_from(index).unwrap_or(usize::MAX);
    VRINGS.get(index).copied().unwrap_or("?")
}

/// Whether a file is the device.
fn is(host: &Host, file: &VhostNet, device: &Device) -> bool {
    let fd = file.as_fd().as_raw_fd();
    let number_of = host.device_number((std::process::id(), fd));
    let info = host.text(&format!("proc/self/fdinfo/{fd}")).ok();
    let info = info.as_deref().and_then(FdInfo::parse);
    let same = |info: FdInfo| {
        let id = |key| number(&info.device, key).unwrap_or(0);
        let worker = device.workers.first().map_or(0, |worker| worker.tid);
        id("owner") == u64::from(device.owner.unwrap_or(0)) && id("worker") == u64::from(worker)
    };
    matches!(number_of, Ok(Some((_, minor))) if minor == device.minor) && info.is_some_and(same)
}

/// Runs `vhostctl get`.
///
/// # Errors
///
/// Of the first device that failed; the others are printed.
pub fn get(app: &App, targets: &[Target], out: &mut dyn Write) -> Result<Snapshot> {
    let seen = app.selected(targets)?;
    let mut all = Vec::new();
    let failures = each(&seen, |device| {
        let duplicate = Duplicate::take(&app.host, device)?;
        all.extend(read(&duplicate)?);
        Ok(())
    });
    print(out, &all, app.json)?;
    failures?;
    Ok(seen)
}

/// Runs `vhostctl set`, and prints what is set then.
///
/// # Errors
///
/// Of the first device that failed; the others are set.
pub fn set(app: &App, options: &SetOptions, out: &mut dyn Write) -> Result<Snapshot> {
    let seen = app.selected(&options.targets)?;
    let mut all = Vec::new();
    let failures = each(&seen, |device| {
        let duplicate = Duplicate::take(&app.host, device)?;
        for index in indices(options.vring) {
            duplicate.set(index, &options.settings)?;
        }
        all.extend(read(&duplicate)?);
        Ok(())
    });
    print(out, &all, app.json)?;
    failures?;
    Ok(seen)
}

/// Does something with each device. The failures of all are told, with the status of the first.
fn each(seen: &Snapshot, mut act: impl FnMut(&Device) -> Result) -> Result {
    let mut first = None;
    for device in &seen.devices {
        let Err(failure) = act(device) else { continue };
        match first {
            None => first = Some(failure),
            Some(_) => eprintln!("vhostctl: {failure}"),
        }
    }
    first.map_or(Ok(()), Err)
}

/// The indices of the vrings that are meant.
pub fn indices(vring: Option<VringName>) -> Vec<u32> {
    match vring {
        None => vec![0, 1],
        Some(VringName::Rx) => vec![0],
        Some(VringName::Tx) => vec![1],
    }
}

fn read(duplicate: &Duplicate<'_>) -> Result<Vec<Polling>> {
    let vrings = [0, 1].map(|index| {
        let (window_us, poll) = duplicate.get(index)?;
        let rest = poll.map(|poll| Rest {
            policy: poll.policy.name(),
            stop_on_competitor: poll.flags.competitor,
            stop_on_guest: poll.flags.guest,
            start_rate: poll.start_rate,
            stop_idle_us: poll.stop_idle_us,
        });
        let device = duplicate.device.id.clone();
        Ok(Polling {
            device,
            vring: vring_name(index),
            window_us,
            rest,
        })
    });
    vrings.into_iter().collect()
}

fn print(out: &mut dyn Write, all: &[Polling], json: bool) -> Result {
    if json {
        writeln!(out, "{}", serde_json::to_string(all).unwrap_or_default())?;
        return Ok(());
    }
    let columns = [
        ("DEVICE", Align::Left),
        ("Q", Align::Left),
        ("WINDOW", Align::Right),
        ("POLICY", Align::Left),
        ("START-RATE", Align::Right),
        ("STOP-IDLE", Align::Right),
        ("STOPS-ON", Align::Left),
    ];
    let row = |polling: &Polling| {
        let rest = polling.rest.as_ref();
        vec![
            polling.device.clone(),
            polling.vring.into(),
            polling.window_us.to_string(),
            or_dash(rest.map(|rest| rest.policy)),
            or_dash(rest.map(|rest| rest.start_rate)),
            or_dash(rest.map(|rest| rest.stop_idle_us)),
            or_dash(rest.map(stops_on)),
        ]
    };
    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
    write!(out, "{}", layout(&columns, &rows))?;
    Ok(())
}

fn stops_on(rest: &Rest) -> &'static str {
    match (rest.stop_on_competitor, rest.stop_on_guest) {
        (false, false) => "-",
        (true, false) => "competitor",
        (false, true) => "guest",
        (true, true) => "competitor,guest",
    }
}

impl Settings {
    fn beyond_window(&self) -> bool {
        let flags = self.stop_on_competitor.or(self.stop_on_guest);
        self.policy.is_some() || flags.is_some() || self.start_rate.or(self.stop_idle).is_some()
    }

    fn change(&self, poll: &mut VringPoll) {
        if let Some(policy) = self.policy {
            poll.policy = Policy::from(policy);
        }
        poll.flags.competitor = self.stop_on_competitor.unwrap_or(poll.flags.competitor);
        poll.flags.guest = self.stop_on_guest.unwrap_or(poll.flags.guest);
        poll.start_rate = self.start_rate.unwrap_or(poll.start_rate);
        poll.stop_idle_us = self.stop_idle.unwrap_or(poll.stop_idle_us);
    }
}
