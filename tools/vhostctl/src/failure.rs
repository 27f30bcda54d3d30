// SPDX-License-Identifier: GPL-2.0

//! Why a command ends without having done all, and the exit status that says so.

use std::io;

/// Result of a command or a part of one.
pub type Result<T = ()> = std::result::Result<T, Failure>;

/// Why it failed, by exit status. (2 is clap's, for a wrong command line.)
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// 1: a file or call failed.
    #[error("{0}")]
    Other(String),
    /// 3: no device is what was named.
    #[error("{0}")]
    NoDevice(String),
    /// 4: a right is missing.
    #[error("{0}")]
    Right(String),
    /// 5: the kernel refused, or the driver cannot.
    #[error("{0}")]
    Refused(String),
    /// 0: the reader of the output has gone, as `head` does.
    #[error("the output was closed")]
    Closed,
}

impl Failure {
    /// The exit status.
    pub fn status(&self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::Other(_) => 1,
            Self::NoDevice(_) => 3,
            Self::Right(_) => 4,
            Self::Refused(_) => 5,
        }
    }

    /// The failure of a file, named.
    pub fn file(path: &std::path::Path, err: &io::Error) -> Self {
        let text = format!("{}: {err}", path.display());
        match err.kind() {
            io::ErrorKind::PermissionDenied => Self::Right(text),
            _ => Self::Other(text),
        }
    }
}

/// Of writing to standard output.
impl From<io::Error> for Failure {
    fn from(err: io::Error) -> Self {
        match err.kind() {
            io::ErrorKind::BrokenPipe => Self::Closed,
            _ => Self::Other(format!("output: {err}")),
        }
    }
}
