// SPDX-License-Identifier: GPL-2.0

//! Where workers are in the hierarchies of cgroups.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{bail, ensure, Context, Result};
use nix::unistd::gettid;

use crate::patience::wait_for;

use super::{expect_refused, open, own, Kind};

/// A cgroup2 file system, and a hierarchy of the older kind.
const ROOTS: [&str; 2] = ["/sys/fs/cgroup", "/run/old"];
const NAME: &str = "vhost-tests";
const THREADS: &str = "threads";

/// A cgroup of each hierarchy, in which this process is as long as it lives.
struct Cgroup;

impl Cgroup {
    fn new() -> Result<Self> {
        let this = Self;
        for root in ROOTS {
            let cgroup = Path::new(root).join(NAME);
            fs::create_dir(&cgroup)
                .with_context(|| format!("{} (is {root} mounted?)", cgroup.display()))?;
            enter(&cgroup)?;
        }
        Ok(this)
    }

    fn path() -> PathBuf {
        Path::new(ROOTS[0]).join(NAME)
    }

    /// A cgroup below it for single threads.
    fn threads(&self) -> Result<PathBuf> {
        let path = Self::path().join(THREADS);
        fs::create_dir(&path)?;
        fs::write(path.join("cgroup.type"), "threaded")?;
        Ok(path)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for root in ROOTS {
            let (root, cgroup) = (Path::new(root), Path::new(root).join(NAME));
            let remove = |cgroup: &Path| {
                // Threads that have ended may take a moment to leave.
                !cgroup.exists() || wait_for(|| fs::remove_dir(cgroup).is_ok()).is_ok()
            };
            let left = enter(root).and_then(|()| {
                let removed = remove(&cgroup.join(THREADS)) && remove(&cgroup);
                ensure!(removed, "it cannot be removed");
                Ok(())
            });
            if let Err(err) = left {
                eprintln!("vm-tests: {}: {err:#}", cgroup.display());
            }
        }
    }
}

/// Moves this process.
fn enter(cgroup: &Path) -> Result<()> {
    fs::write(cgroup.join("cgroup.procs"), std::process::id().to_string())
        .with_context(|| cgroup.display().to_string())
}

/// Checks that worker and caller are in the same cgroups, of all hierarchies. With `thread`, the caller is in one that the
/// rest of its process is not in.
pub(super) fn same(node: &Path, kind: Kind, thread: bool) -> Result<()> {
    let cgroup = Cgroup::new()?;
    let threads = if thread {
        Some(cgroup.threads()?)
    } else {
        None
    };
    let test = || -> Result<()> {
        let tid = gettid();
        if let Some(threads) = &threads {
            fs::write(threads.join("cgroup.threads"), tid.to_string())?;
        }
        let vhost = open(node, kind)?;
        let worker = own(&vhost)?;
        let wanted = fs::read_to_string(format!("/proc/self/task/{tid}/cgroup"))?;
        let found = fs::read_to_string(format!("/proc/{}/cgroup", worker.tid()))?;
        ensure!(found == wanted, "it is in {found:?}, not {wanted:?}");
        let place = if thread { THREADS } else { NAME };
        let inside = found.lines().filter(|line| line.ends_with(place)).count();
        let wanted = if thread { 1 } else { ROOTS.len() };
        ensure!(inside == wanted, "the caller is in {found:?}");
        vhost.reset_owner()?;
        Ok(())
    };
    thread::scope(|scope| scope.spawn(test).join())
        .unwrap_or_else(|_| bail!("the thread that owns the device panicked"))
}

/// A limit on the tasks of the owner's cgroup counts threads of the owner, as it always did; the kernel's are moved there
/// whatever it says.
pub(super) fn full(node: &Path, kind: Kind) -> Result<()> {
    fs::write(Path::new(ROOTS[0]).join("cgroup.subtree_control"), "+pids")?;
    let _cgroup = Cgroup::new()?;
    let vhost = open(node, kind)?;
    let file = |name: &str| Cgroup::path().join(name);
    let now = fs::read_to_string(file("pids.current"))?;
    fs::write(file("pids.max"), now.trim_end())?;
    let owned = vhost.set_owner();
    fs::write(file("pids.max"), "max")?;
    match kind {
        Kind::Owner => expect_refused(&vhost, &owned, kind),
        Kind::Kernel => Ok(owned?),
    }
}
