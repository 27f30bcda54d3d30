// SPDX-License-Identifier: GPL-2.0

//! What `vhost-count` counted, by function and by whose work it was.

use anyhow::{bail, Context, Result};
use std::collections::BTreeMap;

use crate::symbols::{Symbol, Symbols};

/// The modules that a driver is made of.
const C_MODULES: [&str; 3] = ["vhost", "vhost_net", "vhost_iotlb"];
const RUST_MODULE: &str = "vhost_net_rs";

/// What the second column takes in of the kernel proper, if a driver calls it: user access, `iov_iter`, page fragments,
/// `memcpy()` and `memset()`, slab, eventfds, wait queues. A `*` at the end stands for anything.
const CALLED: [&str; 50] = [
    "__get_user_*",
    "__put_user_*",
    "_copy_from_user*",
    "_copy_to_user*",
    "__copy_user*",
    "copy_user*",
    "rep_movs_alternative",
    "rep_stos_alternative",
    "__check_object_size*",
    "check_heap_object",
    "_copy_from_iter*",
    "_copy_to_iter*",
    "copy_page_from_iter*",
    "copy_page_to_iter*",
    "import_*",
    "iov_iter_*",
    "iov_*",
    "__page_frag_*",
    "page_frag_*",
    "__put_page",
    "__folio_put",
    "memcpy*",
    "__memcpy",
    "memset*",
    "__memset",
    "memmove*",
    "__memmove",
    "kfree*",
    "__kfree*",
    "kvfree*",
    "__kmalloc*",
    "__kvmalloc*",
    "kmem_cache_*",
    "__kmem_cache_*",
    "__slab*",
    "eventfd_*",
    "__wake_up*",
    "wake_up_*",
    "try_to_wake_up",
    "default_wake_function",
    "add_wait_queue*",
    "remove_wait_queue",
    "prepare_to_wait*",
    "finish_wait",
    "vhost_task_wake",
    "init_wait_entry",
    "autoremove_wake_function",
    "__wake_up_locked_key",
    "__init_waitqueue_head",
    "poll_*",
];

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == pattern,
    }
}

/// Whether a function is the driver's own: of its modules, or what Rust brings along in the kernel proper.
fn is_own(symbol: &Symbol) -> bool {
    match symbol.module.as_deref() {
        Some(module) => module == RUST_MODULE || C_MODULES.contains(&module),
        None => symbol.name.starts_with("rust_helper_") || symbol.name.starts_with("_R"),
    }
}

/// Instructions of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The driver's own functions: the first column.
    pub own: BTreeMap<String, u64>,
    /// What they call in the kernel proper, by function, of the kinds that the second column adds.
    /// Repetitions of string instructions, which copy what the packets hold, are left out.
    pub called: BTreeMap<String, u64>,
    /// What they call of other kinds.
    pub others: BTreeMap<String, u64>,
    /// Repetitions that were left out.
    pub repeated: u64,
    /// Each instruction of the driver's own, by address, for who looks at the code.
    pub addresses: BTreeMap<u64, u64>,
}

impl Counts {
    /// Takes a file of `vhost-count`'s.
    ///
    /// # Errors
    ///
    /// A line that is none of its kinds, or a file in which the driver did nothing.
    pub fn parse(text: &str, symbols: &Symbols) -> Result<Self> {
        let mut counts = Self::default();
        for line in text.lines() {
            counts
                .take(line, symbols)
                .with_context(|| format!("not a count: `{line}`"))?;
        }
        if counts.own.is_empty() {
            bail!("no instruction of a driver was counted");
        }
        Ok(counts)
    }

    fn take(&mut self, line: &str, symbols: &Symbols) -> Result<()> {
        let hex = |word: &str| u64::from_str_radix(word, 16);
        match *line.split(' ').collect::<Vec<_>>() {
            ["u", _] => {}
            ["i" | "s", address, count] => {
                let (address, count) = (hex(address)?, count.parse::<u64>()?);
                if let Some(symbol) = symbols.find(address).filter(|symbol| is_own(symbol)) {
                    *self.own.entry(symbol.readable()).or_default() += count;
                    self.addresses.insert(address, count);
                }
            }
            ["c", caller, root, count, repeated] => {
                let caller = symbols.find(hex(caller)?);
                let root = symbols.find(hex(root)?);
                let repeated = repeated.parse::<u64>()?;
                let count = count.parse::<u64>()? - repeated;
                let (Some(caller), Some(root)) = (caller, root) else {
                    return Ok(());
                };
                // What Rust brings along is in the first column.
                if caller.module.is_none() || !is_own(caller) || is_own(root) {
                    return Ok(());
                }
                if CALLED.iter().any(|name| matches(name, &root.name)) {
                    *self.called.entry(root.name.clone()).or_default() += count;
                    self.repeated += repeated;
                } else {
                    *self.others.entry(root.name.clone()).or_default() += count;
                }
            }
            _ => bail!("unknown kind"),
        }
        Ok(())
    }

    /// The first column.
    pub fn first(&self) -> u64 {
        self.own.values().sum()
    }

    /// The second column, copies excluded.
    pub fn second(&self) -> u64 {
        self.first() + self.called.values().sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SYMBOLS: [&str; 6] = [
        "ffffffff81000000 T __get_user_2",
        "ffffffff81000100 T schedule",
        "ffffffff81000200 T rust_helper_spin_lock",
        "ffffffff81000300 T last",
        "ffffffffc0000000 t run\t[vhost_net_rs]",
        "ffffffffc0001000 t tun_sendmsg\t[tun]",
    ];

    #[test]
    fn instructions_go_to_their_columns() {
        let symbols = Symbols::parse(SYMBOLS.into_iter()).unwrap();
        let text = "u 5\ni ffffffffc0000000 7\ni ffffffffc0000004 7\ni ffffffff81000204 3\n\
            i ffffffff81000004 9\ns ffffffffc0001000 100\n\
            c ffffffffc0000000 ffffffff81000000 20 4\nc ffffffffc0001000 ffffffff81000000 1000 0\n\
            c ffffffffc0000000 ffffffff81000100 50 0\nc ffffffffc0000000 ffffffff81000200 3 0\n";
        let counts = Counts::parse(text, &symbols).unwrap();
        assert_eq!((counts.first(), counts.second()), (17, 33));
        assert_eq!((counts.repeated, counts.others["schedule"]), (4, 50));
        assert_eq!(counts.addresses.len(), 3);
    }

    #[test]
    fn files_without_a_driver_are_refused() {
        let symbols = Symbols::parse(SYMBOLS.into_iter()).unwrap();
        assert!(Counts::parse("u 5\n", &symbols).is_err());
        assert!(Counts::parse("x 5\n", &symbols).is_err());
    }
}
