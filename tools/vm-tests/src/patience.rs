// SPDX-License-Identifier: GPL-2.0

//! How long to wait and what to allow: more on a kernel that looks at each memory access.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::{ensure, Result};

/// Longest wait for something that is to happen, on the stock kernel.
const STOCK: Duration = Duration::from_secs(3);
/// How many times slower code is on a debug kernel, at most.
const SLOWNESS: u32 = 10;

/// Longest wait for something that is to happen.
pub fn patience() -> Duration {
    scaled(STOCK)
}

/// A limit for the stock kernel, as the running kernel is given it.
pub fn scaled(limit: Duration) -> Duration {
    limit * factor()
}

/// Whether this is a kernel on which what repeats is done once.
pub(crate) fn is_slow() -> bool {
    factor() > 1
}

/// A limit in time that was not held.
#[derive(Debug)]
pub(crate) struct OverLimit(String);

impl std::fmt::Display for OverLimit {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        to.write_str(&self.0)
    }
}

impl std::error::Error for OverLimit {}

/// Holds to a limit that means something on the stock kernel only: on another one the test is skipped that fails by it.
///
/// # Errors
///
/// It is not held: then `otherwise` says what was found.
pub(crate) fn limit(holds: bool, otherwise: impl FnOnce() -> String) -> Result<()> {
    if !holds {
        return Err(OverLimit(otherwise()).into());
    }
    Ok(())
}

fn factor() -> u32 {
    static FACTOR: OnceLock<u32> = OnceLock::new();
    *FACTOR.get_or_init(|| {
        let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        slowness(release.trim_end())
    })
}

/// How slow a kernel of this release is.
fn slowness(release: &str) -> u32 {
    let debug = ["-kasan", "-kcsan"];
    if debug.iter().any(|suffix| release.ends_with(suffix)) {
        SLOWNESS
    } else {
        1
    }
}

/// Waits until `condition` holds.
///
/// # Errors
///
/// It does not for [`patience()`].
pub fn wait_for(condition: impl Fn() -> bool) -> Result<()> {
    wait_at_most(patience(), condition)
}

/// Waits until `condition` holds.
///
/// # Errors
///
/// It does not for so long.
pub(crate) fn wait_at_most(patience: Duration, condition: impl Fn() -> bool) -> Result<()> {
    let end = Instant::now() + patience;
    while !condition() {
        ensure!(Instant::now() < end, "nothing came within {patience:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// What the devices and workers of this process are at, for a message about something that did not come.
pub fn what_goes_on() -> String {
    what_goes_on_in("self")
}

/// The same for the process of an id.
pub(crate) fn what_goes_on_in(process: &str) -> String {
    let mut text = String::new();
    each_file(&format!("/proc/{process}/fdinfo"), |_, path| {
        let lines = fs::read_to_string(path).unwrap_or_default();
        let line = |line: &str| line.starts_with("vhost-") && !line.ends_with("\t0");
        lines.lines().filter(|text| line(text)).for_each(|line| {
            text += &format!("\n#     {}", line.replace('\t', " "));
        });
    });
    each_file(&format!("/proc/{process}/task"), |tid, task| {
        let read = |name: &str| fs::read_to_string(task.join(name)).unwrap_or_default();
        let comm = read("comm");
        let stat = read("stat");
        let state = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        let state = state.get(..1).unwrap_or("?");
        text += &format!("\n#     thread {tid} {}: {state}", comm.trim_end());
        if comm.starts_with("vhost-") || process != "self" {
            text += &format!(", on CPU, waiting, turns: {}", read("schedstat").trim_end());
            for frame in read("stack").lines() {
                text += &format!("\n#       {frame}");
            }
        }
    });
    text
}

/// Calls `each` with the name and path of everything in a folder.
fn each_file(folder: &str, mut each: impl FnMut(&str, &Path)) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        each(&entry.file_name().to_string_lossy(), &entry.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_kernels_get_more() {
        assert_eq!(slowness("7.3.4+deb13-cloud-amd64"), 1);
        assert_eq!(slowness("7.3.4-kasan"), SLOWNESS);
        assert_eq!(slowness("7.3.4-kcsan"), SLOWNESS);
    }

    #[test]
    fn a_message_names_the_threads() {
        let name = fs::read_to_string("/proc/thread-self/comm").unwrap();
        assert!(what_goes_on().contains(&format!(" {}: ", name.trim_end())));
    }
}
