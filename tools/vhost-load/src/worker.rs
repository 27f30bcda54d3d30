// SPDX-License-Identifier: GPL-2.0

//! The thread that does the device's work: found by its name, as management tools find it.

use nix::sched::{sched_setaffinity, CpuSet};
use nix::unistd::{gettid, Pid};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// A vhost worker.
#[derive(Clone, Debug)]
pub struct Worker {
    tid: i32,
    task: PathBuf,
}

impl Worker {
    /// The name that a worker gets if this thread becomes the owner: `vhost-` and the thread's id.
    pub fn own_name() -> String {
        format!("vhost-{}", gettid())
    }

    /// Looks for the newest thread of this name, among this process's own and then among all processes (kernel threads).
    /// An older one is that of a device before, which is about to go.
    pub fn find(name: &str) -> Option<Self> {
        ["/proc/self/task", "/proc"].into_iter().find_map(|folder| {
            let threads = fs::read_dir(folder).ok()?.flatten().filter_map(|entry| {
                let task = entry.path();
                let comm = fs::read_to_string(task.join("comm")).ok()?;
                let tid = entry.file_name().to_str()?.parse().ok()?;
                (comm.trim_end() == name).then_some(Self { tid, task })
            });
            threads.max_by_key(Self::tid)
        })
    }

    /// Its thread id.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// Whether it has ended.
    pub fn is_gone(&self) -> bool {
        !self.task.exists()
    }

    /// How long it has been on a CPU. Nothing if it is gone, or the kernel keeps no scheduler statistics.
    pub fn cpu_time(&self) -> Option<Duration> {
        let schedstat = fs::read_to_string(self.task.join("schedstat")).ok()?;
        let nanos = schedstat.split_whitespace().next()?.parse().ok()?;
        Some(Duration::from_nanos(nanos))
    }

    /// How often it has gone to sleep. Nothing if it is gone.
    pub fn sleeps(&self) -> Option<u64> {
        const KEY: &str = "voluntary_ctxt_switches:";
        let status = fs::read_to_string(self.task.join("status")).ok()?;
        let count = status.lines().find_map(|line| line.strip_prefix(KEY))?;
        count.trim().parse().ok()
    }

    /// Keeps it on one CPU.
    ///
    /// # Errors
    ///
    /// Those of sched_setaffinity(2).
    pub fn pin(&self, cpu: usize) -> nix::Result<()> {
        pin(self.tid, cpu)
    }
}

/// Keeps this thread on one CPU.
///
/// # Errors
///
/// EINVAL if there is no such CPU.
pub fn pin_self(cpu: usize) -> nix::Result<()> {
    pin(0, cpu)
}

fn pin(tid: i32, cpu: usize) -> nix::Result<()> {
    let mut set = CpuSet::new();
    set.set(cpu)?;
    sched_setaffinity(Pid::from_raw(tid), &set)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_thread_is_found_by_name_and_has_used_time() {
        let comm = fs::read_to_string("/proc/thread-self/comm").unwrap();
        let worker = Worker::find(comm.trim_end()).unwrap();
        assert_eq!(worker.tid(), gettid().as_raw());
        assert!(!worker.is_gone());
        let start = std::time::Instant::now();
        while worker.cpu_time() == Some(Duration::ZERO) && start.elapsed() < Duration::from_secs(10)
        {
            std::hint::spin_loop();
        }
        assert!(worker.cpu_time().is_none_or(|time| time > Duration::ZERO));
        let before = worker.sleeps().unwrap();
        std::thread::sleep(Duration::from_millis(1));
        assert!(worker.sleeps().unwrap() > before);
        assert!(Worker::find("vhost-no-such").is_none());
    }
}
