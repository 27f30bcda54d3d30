// SPDX-License-Identifier: GPL-2.0

//! Open files, passed from one process to another.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::sys::socket::{sendmsg, ControlMessage, MsgFlags};

use crate::error::{Context, Result};
use crate::sys;

/// Sends a number and a file.
///
/// # Errors
///
/// Those of sendmsg(2).
pub fn send_file(channel: &UnixStream, number: u32, file: BorrowedFd<'_>) -> Result {
    let number = number.to_ne_bytes();
    let files = [file.as_raw_fd()];
    let control = [ControlMessage::ScmRights(&files)];
    let data = [IoSlice::new(&number)];
    sendmsg::<()>(
        channel.as_raw_fd(),
        &data,
        &control,
        MsgFlags::empty(),
        None,
    )
    .context("sendmsg")?;
    Ok(())
}

/// Duplicates the file that another process has open as `file` (pidfd_getfd(2)).
///
/// # Errors
///
/// ESRCH without such a process, EPERM without the right to trace it, EBADF without such a file.
pub fn fetch_file(pid: u32, file: i32) -> Result<OwnedFd> {
    sys::fetch_file(pid, file).context("pidfd_getfd")
}

/// Receives what [`send_file`] sent; nothing when the other side has closed the channel.
///
/// # Errors
///
/// Those of recvmsg(2); EBADMSG for what came without a file.
pub fn receive_file(channel: &UnixStream) -> Result<Option<(u32, OwnedFd)>> {
    let mut number = [0; 4];
    let mut data = [IoSliceMut::new(&mut number)];
    let file = sys::receive_file(channel, &mut data).context("recvmsg")?;
    Ok(file.map(|file| (u32::from_ne_bytes(number), file)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    #[test]
    fn a_file_comes_with_its_number_and_then_the_end() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = File::open("/proc/self/comm").unwrap();
        send_file(&ours, 77, file.as_fd()).unwrap();
        drop(ours);
        let (number, file) = receive_file(&theirs).unwrap().unwrap();
        assert_eq!(number, 77);
        let mut text = String::new();
        File::from(file).read_to_string(&mut text).unwrap();
        assert!(!text.is_empty());
        assert!(receive_file(&theirs).unwrap().is_none());
    }
}
