// SPDX-License-Identifier: GPL-2.0

//! What sysfs and procfs know of a network interface, and let root change.

use nix::errno::Errno;
use std::fs;
use std::path::PathBuf;

use crate::error::{Context, Error, Result};

const IFF_UP: u64 = 1;

fn path(name: &str, attribute: &str) -> PathBuf {
    PathBuf::from(format!("/sys/class/net/{name}/{attribute}"))
}

fn read(name: &str, attribute: &str) -> Result<String> {
    let path = path(name, attribute);
    let text = fs::read_to_string(&path).context(&format!("read {}", path.display()))?;
    Ok(text.trim().to_owned())
}

fn write(name: &str, attribute: &str, value: &str) -> Result {
    let path = path(name, attribute);
    fs::write(&path, value).context(&format!("write {value} to {}", path.display()))
}

fn number(name: &str, attribute: &str) -> Result<u64> {
    let bad = |_| {
        Error::new(
            format!("number in {}", path(name, attribute).display()),
            Errno::EINVAL,
        )
    };
    read(name, attribute)?.parse().map_err(bad)
}

/// Index of the interface.
///
/// # Errors
///
/// ENOENT if there is no such interface, as for all functions here.
pub fn index(name: &str) -> Result<i32> {
    let too_large = |_| Error::new(format!("index of {name}"), Errno::ERANGE);
    i32::try_from(number(name, "ifindex")?).map_err(too_large)
}

/// Ethernet address of the interface.
pub fn address(name: &str) -> Result<[u8; 6]> {
    let text = read(name, "address")?;
    let mut address = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut address {
        let part = parts
            .next()
            .and_then(|part| u8::from_str_radix(part, 16).ok());
        *byte =
            part.ok_or_else(|| Error::new(format!("address {text} of {name}"), Errno::EINVAL))?;
    }
    Ok(address)
}

/// Takes the interface up.
pub fn set_up(name: &str) -> Result {
    change_flags(name, |flags| flags | IFF_UP)
}

/// Takes the interface down.
pub fn set_down(name: &str) -> Result {
    change_flags(name, |flags| flags & !IFF_UP)
}

fn change_flags(name: &str, change: impl Fn(u64) -> u64) -> Result {
    let text = read(name, "flags")?;
    let flags = u64::from_str_radix(text.trim_start_matches("0x"), 16)
        .map_err(|_| Error::new(format!("flags {text} of {name}"), Errno::EINVAL))?;
    write(name, "flags", &format!("{:#x}", change(flags)))
}

/// Keeps the kernel from sending IPv6 packets of its own through the interface. Nothing to do without IPv6.
pub fn disable_ipv6(name: &str) -> Result {
    let path = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
    match fs::write(&path, "1") {
        Err(err) if err.kind() == std::io::ErrorKind::NotFound => Ok(()),
        result => result.context(&format!("write 1 to {path}")),
    }
}

/// Sets the largest packet, in bytes without the Ethernet header.
pub fn set_mtu(name: &str, mtu: u32) -> Result {
    write(name, "mtu", &mtu.to_string())
}

/// Packets that the interface's transmit queue holds: also the size of a tap's ring.
pub fn tx_queue_len(name: &str) -> Result<u64> {
    number(name, "tx_queue_len")
}

/// A counter of `/sys/class/net/NAME/statistics`.
pub fn statistic(name: &str, counter: &str) -> Result<u64> {
    number(name, &format!("statistics/{counter}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_there_and_others_are_not() {
        assert!(index("lo").unwrap() > 0);
        assert_eq!(address("lo").unwrap(), [0; 6]);
        let err = index("no-such-if").unwrap_err();
        assert_eq!(err.errno, Errno::ENOENT);
        assert!(err
            .to_string()
            .contains("/sys/class/net/no-such-if/ifindex"));
    }
}
