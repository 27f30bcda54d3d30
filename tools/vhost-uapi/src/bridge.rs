// SPDX-License-Identifier: GPL-2.0

//! A bridge between interfaces, which goes away with its owner.

use std::os::fd::{AsFd, OwnedFd};

use nix::sys::socket::{socket, AddressFamily, SockFlag, SockType};

use crate::error::{Context, Result};
use crate::netdev;
use crate::sys::{self, IfReq};

const SIOCBRADDBR: u64 = 0x89a0;
const SIOCBRDELBR: u64 = 0x89a1;
const SIOCBRADDIF: u64 = 0x89a2;

/// A bridge that was made here.
#[derive(Debug)]
pub struct Bridge {
    control: OwnedFd,
    name: String,
}

impl Bridge {
    /// Makes a bridge called `name` between `ports`, and takes it up.
    ///
    /// # Errors
    ///
    /// ENOPKG without the bridge module, EPERM without CAP_NET_ADMIN, EEXIST if there is such an interface, EBUSY if a port
    /// has a bridge.
    pub fn new(name: &str, ports: &[&str]) -> Result<Self> {
        let control = socket(
            AddressFamily::Inet,
            SockType::Datagram,
            SockFlag::SOCK_CLOEXEC,
            None,
        )
        .context("socket")?;
        sys::ioctl(control.as_fd(), SIOCBRADDBR, &mut IfReq::named(name)?)
            .context("SIOCBRADDBR")?;
        // From here on it goes away if anything fails.
        let name = name.to_owned();
        let bridge = Self { control, name };
        for port in ports {
            let mut request = IfReq::named(&bridge.name)?;
            request.set_index(netdev::index(port)?);
            sys::ioctl(bridge.control.as_fd(), SIOCBRADDIF, &mut request).context("SIOCBRADDIF")?;
        }
        netdev::disable_ipv6(&bridge.name)?;
        // It would ask its ports for members of groups, unless the kernel is one where it cannot.
        let snooping = format!("/sys/class/net/{}/bridge/multicast_snooping", bridge.name);
        if std::path::Path::new(&snooping).exists() {
            std::fs::write(&snooping, "0").context(&snooping)?;
        }
        netdev::set_up(&bridge.name)?;
        Ok(bridge)
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        // What is left of a bridge without ports does no harm.
        let _ = netdev::set_down(&self.name);
        if let Ok(mut request) = IfReq::named(&self.name) {
            let _ = sys::ioctl(self.control.as_fd(), SIOCBRDELBR, &mut request);
        }
    }
}
