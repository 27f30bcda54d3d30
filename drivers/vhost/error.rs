// SPDX-License-Identifier: GPL-2.0

//! The one place where an engine error becomes an errno.

use crate::engine;
use kernel::prelude::*;

impl From<engine::error::Error> for kernel::error::Error {
    fn from(err: engine::error::Error) -> Self {
        use engine::error::Error as Engine;

        match err {
            Engine::Fault | Engine::Unmapped { .. } | Engine::Denied => EFAULT,
            Engine::BadRing => EINVAL,
            Engine::TooManySegments => ENOBUFS,
        }
    }
}
