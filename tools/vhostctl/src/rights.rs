// SPDX-License-Identifier: GPL-2.0

//! Which rights this process has, and what it may not see for lack of them.

use std::fs::read_link;

use crate::device::Snapshot;
use crate::host::Host;

/// Bits of capabilities (capabilities(7)).
const CAP_NET_ADMIN: u32 = 12;
const CAP_SYS_PTRACE: u32 = 19;
/// The initial namespaces have fixed inode numbers.
const INITIAL_USER: &str = "user:[4026531837]";
const INITIAL_PID: &str = "pid:[4026531836]";

/// The rights of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rights {
    effective: u64,
    /// In the initial user namespace.
    pub initial_user: bool,
    /// In the initial pid namespace.
    pub initial_pid: bool,
    /// `kernel.yama.ptrace_scope`; 0 without Yama.
    pub ptrace_scope: u32,
}

impl Rights {
    /// Looks them up.
    pub fn of_this_process(host: &Host) -> Self {
        let status = host.text("proc/self/status").unwrap_or_default();
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
        let is = |name: &str, initial: &str| {
            let link = read_link(host.path(&format!("proc/self/ns/{name}")));
            link.map_or(true, |link| link.as_os_str() == initial)
        };
        let scope = host.line("proc/sys/kernel/yama/ptrace_scope");
        Self {
            effective: effective.unwrap_or(0),
            initial_user: is("user", INITIAL_USER),
            initial_pid: is("pid", INITIAL_PID),
            ptrace_scope: scope.and_then(|scope| scope.parse().ok()).unwrap_or(0),
        }
    }

    /// Whether it may set what is not its own device's.
    pub fn net_admin(&self) -> bool {
        self.effective >> CAP_NET_ADMIN & 1 == 1
    }

    /// Whether it may look into, and take descriptors of, any process.
    pub fn ptrace(&self) -> bool {
        self.effective >> CAP_SYS_PTRACE & 1 == 1
    }

    /// Why a descriptor of a process could not be taken (pidfd_getfd(2) said EPERM).
    pub fn why_no_descriptor(&self, pid: u32) -> String {
        let what = format!(
            "process {pid}: may not take its descriptor: the right to ptrace-attach is missing"
        );
        match self.ptrace_scope {
            3.. => format!("{what}: kernel.yama.ptrace_scope is 3, which forbids it to all until the next boot"),
            2 if !self.ptrace() => format!("{what}: kernel.yama.ptrace_scope is 2: run as root, with CAP_SYS_PTRACE"),
            _ if !self.ptrace() => format!("{what}: run as root, with CAP_SYS_PTRACE"),
            _ => format!("{what}: a security module (AppArmor, SELinux) or a user namespace forbids it"),
        }
    }

    /// Why a device refused to say or to be set (the ioctl said EPERM).
    pub fn why_refused(&self, id: &str) -> String {
        if !self.net_admin() {
            format!("{id}: the device refuses who is not its owner: CAP_NET_ADMIN is missing: run as root")
        } else if !self.initial_user {
            format!("{id}: the device refuses: CAP_NET_ADMIN is wanted in the initial user namespace: run outside of the container")
        } else {
            format!("{id}: the device refuses: it has no owner: nothing can be set before the VMM has called VHOST_SET_OWNER")
        }
    }

    /// What a snapshot leaves out, in a line each; none if it has all.
    pub fn left_out(&self, host: &Host, snapshot: &Snapshot) -> Vec<String> {
        let mut lines = Vec::new();
        match snapshot.unseen.as_slice() {
            [] => {}
            [pid] => lines.push(format!(
                "process {pid} may not be looked into{}",
                self.how_to_see()
            )),
            pids => lines.push(format!(
                "{} processes may not be looked into{}",
                pids.len(),
                self.how_to_see()
            )),
        }
        if !self.initial_pid {
            lines.push("this is a container: only its own processes are seen: run in the host's pid namespace".into());
        }
        if !self.ptrace() && hides_processes(host) {
            lines.push("/proc hides the processes of other users (hidepid): run as root, with CAP_SYS_PTRACE".into());
        }
        lines
    }

    fn how_to_see(&self) -> &'static str {
        if self.ptrace() {
            ": a security module (AppArmor, SELinux) or a user namespace forbids it"
        } else {
            ": the right to ptrace-read them is missing: run as root, with CAP_SYS_PTRACE"
        }
    }
}

/// Whether /proc is mounted with hidepid.
fn hides_processes(host: &Host) -> bool {
    let mounts = host.text("proc/self/mountinfo").unwrap_or_default();
    let proc = |line: &&str| line.contains(" /proc ") && line.contains(" - proc ");
    mounts.lines().filter(proc).any(|line| {
        line.split(['=', ',', ' ']).any(|word| word == "hidepid") && !line.contains("hidepid=0")
    })
}
