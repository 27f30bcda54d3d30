// SPDX-License-Identifier: GPL-2.0

//! What is known of a process: its virtual machine's name, its vhost workers.

use std::collections::HashSet;

use crate::host::Host;

/// The name of the virtual machine that a process runs (QEMU's `-name`), else the process's own.
pub(crate) fn vm_name(host: &Host, pid: u32) -> String {
    let arguments = host
        .text(&format!("proc/{pid}/cmdline"))
        .unwrap_or_default();
    let mut arguments = arguments.split('\0');
    let named = arguments.find(|argument| matches!(*argument, "-name" | "--name"));
    let named = named.and_then(|_| guest(arguments.next()?));
    named
        .or_else(|| host.line(&format!("proc/{pid}/comm")))
        .unwrap_or_default()
}

/// The name in the value of QEMU's `-name`: `NAME`, or `guest=NAME,debug-threads=on`.
fn guest(value: &str) -> Option<String> {
    let mut parts = value.split(',');
    let named = parts.clone().find_map(|part| part.strip_prefix("guest="));
    let plain = parts.next().filter(|first| !first.contains('='));
    let name = named.or(plain)?;
    (!name.is_empty()).then(|| name.to_owned())
}

/// The threads `vhost-TID` of a process, TID being that of the caller of VHOST_SET_OWNER, and the kernel's of that name.
pub(crate) fn workers(host: &Host, pid: u32) -> Vec<u32> {
    let threads = host
        .numbers(&format!("proc/{pid}/task"))
        .unwrap_or_default();
    let is_worker = |comm: &str| {
        comm.strip_prefix("vhost-")
            .is_some_and(|n| n.parse::<u32>().is_ok())
    };
    let of_process = |tid: &&u32| {
        let comm = host.line(&format!("proc/{pid}/task/{tid}/comm"));
        comm.is_some_and(|comm| is_worker(&comm))
    };
    let own: Vec<u32> = threads.iter().filter(of_process).copied().collect();
    if !own.is_empty() {
        return own;
    }
    let callers: HashSet<String> = threads.iter().map(|tid| format!("vhost-{tid}")).collect();
    let all = host.numbers("proc").unwrap_or_default();
    let named = all.into_iter().filter(|kthread| {
        let comm = host.line(&format!("proc/{kthread}/comm"));
        comm.is_some_and(|comm| callers.contains(&comm)) && host.is_kernel_thread(*kthread)
    });
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guest_is_found_in_all_forms_of_the_option() {
        assert_eq!(guest("web-1").as_deref(), Some("web-1"));
        assert_eq!(
            guest("guest=web-1,debug-threads=on").as_deref(),
            Some("web-1")
        );
        assert_eq!(
            guest("debug-threads=on,guest=web-1").as_deref(),
            Some("web-1")
        );
        assert_eq!(guest("debug-threads=on"), None);
        assert_eq!(guest("guest="), None);
    }
}
