// SPDX-License-Identifier: GPL-2.0

//! What is left in the system when all processes that had a device are gone: nothing.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{anyhow, ensure, Context, Result};

use super::field::BALLAST;
use crate::patience::wait_for;
use crate::stop::expect_no_worker;

/// KiB of a page.
const PAGE_KIB: u64 = 4;

/// The system as it is without devices.
pub(crate) struct Clean {
    refcnt: String,
    files: u64,
    pages: u64,
    links: BTreeSet<String>,
}

/// The numbers behind a word that begins a line of a file, in its order: at least one.
fn numbers(path: &str, key: &str) -> Result<Vec<u64>> {
    let text = fs::read_to_string(path).with_context(|| path.to_owned())?;
    let number = |line: &str| {
        let mut words = line.split_whitespace();
        (words.next() == Some(key)).then(|| words.next()?.parse().ok())?
    };
    let found: Vec<u64> = text.lines().filter_map(number).collect();
    ensure!(!found.is_empty(), "there is no {key} in {path}");
    Ok(found)
}

/// The first of them.
fn number(path: &str, key: &str) -> Result<u64> {
    let found = numbers(path, key)?;
    found.first().copied().context("no number")
}

/// Open files of all processes.
fn files() -> Result<u64> {
    let text = fs::read_to_string("/proc/sys/fs/file-nr")?;
    let first = text.split_whitespace().next();
    Ok(first.context("an empty file-nr")?.parse()?)
}

/// Pages of processes, and of files without a disk.
fn pages() -> Result<u64> {
    let sum = ["nr_anon_pages", "nr_shmem"].map(|key| number("/proc/vmstat", key));
    sum.into_iter().sum()
}

fn links() -> Result<BTreeSet<String>> {
    let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
    Ok(fs::read_dir("/sys/class/net")?
        .flatten()
        .map(name)
        .collect())
}

impl Clean {
    pub(crate) fn new(module: &str) -> Result<Self> {
        Ok(Self {
            refcnt: format!("/sys/module/{module}/refcnt"),
            files: files()?,
            pages: pages()?,
            links: links()?,
        })
    }

    /// Waits until nothing is left of a device and its owner: no worker, no file, no interface, no memory.
    ///
    /// # Errors
    ///
    /// What is left.
    pub(crate) fn expect(&self) -> Result<()> {
        wait_for(|| expect_no_worker().is_ok()).or_else(|_| expect_no_worker())?;
        // The file is not there while the module is not.
        let users = || fs::read_to_string(&self.refcnt).unwrap_or_else(|_| "0\n".to_owned());
        wait_for(|| users() == "0\n")
            .with_context(|| format!("{} users of the module are left", users().trim_end()))?;
        wait_for(|| files().is_ok_and(|files| files <= self.files))
            .with_context(|| format!("open files: {:?}, {} before", files(), self.files))?;
        wait_for(|| links().is_ok_and(|links| links == self.links))
            .with_context(|| format!("interfaces are left: {:?}", links()))?;
        let slack = BALLAST as u64 / 2; // CAST: Widens.
        wait_for(|| pages().is_ok_and(|pages| pages < self.pages + slack))
            .with_context(|| format!("pages in use: {:?}, {} before", pages(), self.pages))
    }
}

/// KiB that neither processes nor the page cache have: what the kernel has, and what it lost.
pub(crate) fn kernel_memory() -> Result<u64> {
    fs::write("/proc/sys/vm/drop_caches", "3")?;
    // Adds what each CPU has counted by itself to the sums.
    fs::write("/proc/sys/vm/stat_refresh", "1")?;
    let get = |key| number("/proc/meminfo", key);
    let others = ["MemFree:", "Cached:", "Buffers:", "AnonPages:"].map(get);
    let others: u64 = others.into_iter().sum::<Result<u64>>()?;
    // Free pages on the CPUs' own lists, tens of MiB, are not in MemFree.
    let lists = numbers("/proc/zoneinfo", "count:")?;
    let others = others + lists.into_iter().sum::<u64>() * PAGE_KIB;
    let all = get("MemTotal:")?;
    ensure!(
        others <= all,
        "{others} KiB of {all} KiB are not the kernel's"
    );
    Ok(all - others)
}

/// Compares the least of two halves of some looks: what is freed late makes a saw of it. `None` after a few, which say nothing.
/// The first third does not count: a kernel that keeps freed memory aside, as KASAN does, fills its store then.
pub(crate) fn memory_grows(looks: &[u64]) -> Option<Result<()>> {
    const LOOKS: usize = 12;
    /// A page lost in each round of an hour's races is more. What the kernel keeps for itself comes and goes by half of it.
    const SLACK: u64 = 32 << 10;
    if looks.len() < LOOKS {
        return None;
    }
    let (_, looks) = looks.split_at(looks.len() / 3);
    let (first, second) = looks.split_at(looks.len() / 2);
    let (before, after) = (first.iter().min()?, second.iter().min()?);
    Some(if *after >= before + SLACK {
        Err(anyhow!("{before} KiB, then {after} KiB"))
    } else {
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_fills_is_no_growth_and_a_leak_is() {
        let looks = |leak: u64| -> Vec<u64> {
            let look = |nth: u64| (nth * 20_000).min(80_000) + nth % 3 * 1000 + nth * leak;
            (0..24).map(look).collect()
        };
        assert!(memory_grows(&looks(0)[..11]).is_none());
        assert!(matches!(memory_grows(&looks(0)), Some(Ok(()))));
        assert!(matches!(memory_grows(&looks(5000)), Some(Err(_))));
    }
}
