// SPDX-License-Identifier: GPL-2.0

//! The kernel's files of this host, or of a recorded one.

use procfs_core::{process::Stat, FromRead};
use rustix::fs::{statx, AtFlags, FileType, StatxFlags, CWD};
use std::cmp::Ordering;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A device number: major, minor.
pub type DeviceNumber = (u32, u32);
/// A file descriptor of a process: process id, number.
pub type Descriptor = (u32, i32);

/// Flag of a kernel thread in `/proc/PID/stat` (`PF_KTHREAD`).
const KERNEL_THREAD: u32 = 0x0020_0000;

/// Where `/proc` and `/sys` are.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
    /// In a recorded tree the link of a device's descriptor reads `char:MAJOR:MINOR:FILE`, FILE being equal for duplicates.
    recorded: bool,
}

impl Host {
    /// This host.
    pub fn live() -> Self {
        Self {
            root: PathBuf::from("/"),
            recorded: false,
        }
    }

    /// A recorded tree, for tests.
    pub fn recorded(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
            recorded: true,
        }
    }

    /// The path of a file, given without its first slash.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    /// The text of a file. What is not UTF-8 in it (names of processes, arguments) is replaced.
    ///
    /// # Errors
    ///
    /// Those of open(2) and read(2).
    pub fn text(&self, path: &str) -> io::Result<String> {
        fs::read(self.path(path)).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The first line of a file, nothing if it cannot be read.
    pub fn line(&self, path: &str) -> Option<String> {
        let text = self.text(path).ok()?;
        text.lines().next().map(str::to_owned)
    }

    /// The names in a folder that are numbers, in order.
    ///
    /// # Errors
    ///
    /// Those of opendir(3).
    pub fn numbers(&self, folder: &str) -> io::Result<Vec<u32>> {
        let names = fs::read_dir(self.path(folder))?;
        let numbers = names.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let mut numbers: Vec<u32> = numbers.collect();
        numbers.sort_unstable();
        Ok(numbers)
    }

    /// The number of the device that a descriptor is open on, nothing if it is on something else or gone.
    ///
    /// # Errors
    ///
    /// EACCES without the right to read it, which reading the folder does not take.
    pub fn device_number(&self, (pid, fd): Descriptor) -> io::Result<Option<DeviceNumber>> {
        let link = self.path(&format!("proc/{pid}/fd/{fd}"));
        let text = match fs::read_link(&link) {
            Err(err) if err.kind() == io::ErrorKind::PermissionDenied => return Err(err),
            Err(_) => return Ok(None),
            Ok(text) => text,
        };
        let text = text.to_string_lossy();
        if self.recorded {
            return Ok(recorded_number(&text));
        }
        // The text of a device's link is a path, though often not one of our mount namespace.
        if !text.starts_with('/') && !text.starts_with("(unreachable)") {
            return Ok(None);
        }
        // Without asking a file server that may be down.
        let Ok(stat) = statx(CWD, &link, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE) else {
            return Ok(None);
        };
        let kind = FileType::from_raw_mode(u32::from(stat.stx_mode));
        let number = (stat.stx_rdev_major, stat.stx_rdev_minor);
        Ok((kind == FileType::CharacterDevice).then_some(number))
    }

    /// Whether two descriptors are of one open file. Where the kernel does not say, they are taken for two.
    pub fn compare(&self, one: Descriptor, other: Descriptor) -> Ordering {
        if self.recorded {
            let file = |(pid, fd)| fs::read_link(self.path(&format!("proc/{pid}/fd/{fd}"))).ok();
            return file(one).cmp(&file(other));
        }
        vhost_uapi::compare_files(one, other).unwrap_or_else(|_| one.cmp(&other))
    }

    /// Whether a process is the kernel's own, which holds no files.
    pub fn is_kernel_thread(&self, pid: u32) -> bool {
        Stat::from_file(self.path(&format!("proc/{pid}/stat")))
            .is_ok_and(|stat| stat.flags & KERNEL_THREAD != 0)
    }

    /// CPU time of one thread in nanoseconds; nothing if it is gone.
    pub fn cpu_time(&self, tid: u32) -> Option<u64> {
        // A thread's number finds it without its process's.
        let folder = format!("proc/{tid}/task/{tid}");
        if let Some(line) = self.line(&format!("{folder}/schedstat")) {
            return line.split(' ').next()?.parse().ok();
        }
        // A kernel without schedstat counts ticks, 100 a second for programs.
        let stat = Stat::from_file(self.path(&format!("{folder}/stat"))).ok()?;
        stat.utime.checked_add(stat.stime)?.checked_mul(10_000_000)
    }

    /// The host's CPU time so far in ticks: all of it, and idle.
    pub fn cpu_ticks(&self) -> Option<(u64, u64)> {
        let line = self.line("proc/stat")?;
        let times = line.strip_prefix("cpu ")?.split_whitespace();
        // user nice system idle iowait irq softirq steal; what guests use is part of user and nice.
        let times: Vec<u64> = times.take(8).map_while(|time| time.parse().ok()).collect();
        let idle = times.get(3)? + times.get(4)?;
        Some((times.iter().sum(), idle))
    }
}

fn recorded_number(link: &str) -> Option<DeviceNumber> {
    let mut parts = link.strip_prefix("char:")?.split(':');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}
