// SPDX-License-Identifier: GPL-2.0

//! A system call on a device, as data: the tables of cases are made of these.

use std::os::fd::{AsFd, BorrowedFd};

use anyhow::Result;
use nix::poll::{poll, PollFd, PollFlags, PollTimeout};
use nix::unistd::{lseek, Whence};
use vhost_uapi::{Address, Arena, Gate, Place};

use crate::objects::{Kind, Objects};

/// What a call is given.
#[derive(Clone, Debug)]
pub enum Arg {
    /// An address where no argument is.
    Wild(Address),
    /// Bytes somewhere.
    Bytes {
        /// The bytes.
        bytes: Vec<u8>,
        /// Where they lie.
        place: Place,
        /// A file descriptor among them: its offset, and what is behind it.
        file: Option<(usize, Kind)>,
    },
}

impl Arg {
    /// Bytes, so that nothing is behind them.
    pub fn bytes(bytes: impl Into<Vec<u8>>) -> Self {
        Self::Bytes {
            bytes: bytes.into(),
            place: Place::Edge,
            file: None,
        }
    }

    /// Zeroes.
    pub fn zeroes(len: usize) -> Self {
        Self::bytes(vec![0; len])
    }

    /// 32-bit words.
    pub fn words(words: &[u32]) -> Self {
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
        Self::bytes(bytes.collect::<Vec<_>>())
    }

    /// 64-bit words.
    pub fn longs(words: &[u64]) -> Self {
        let bytes = words.iter().flat_map(|word| word.to_ne_bytes());
        Self::bytes(bytes.collect::<Vec<_>>())
    }

    /// A `struct vhost_vring_file`.
    pub fn file(index: u32, kind: Kind) -> Self {
        Self::words(&[index, 0]).with_file(4, kind)
    }

    /// Puts a file descriptor into the bytes.
    pub fn with_file(mut self, offset: usize, kind: Kind) -> Self {
        if let Self::Bytes { file, .. } = &mut self {
            *file = Some((offset, kind));
        }
        self
    }

    /// Lays the bytes somewhere else.
    pub fn at(mut self, there: Place) -> Self {
        if let Self::Bytes { place, .. } = &mut self {
            *place = there;
        }
        self
    }

    fn len(&self) -> usize {
        match self {
            Self::Wild(_) => 0,
            Self::Bytes { bytes, .. } => bytes.len(),
        }
    }

    /// Puts it into the arena.
    fn put(&self, arena: &mut Arena, files: &mut Files<'_>) -> Result<Address> {
        match self {
            Self::Wild(address) => {
                arena.put(Place::Middle, &[])?;
                Ok(*address)
            }
            Self::Bytes { bytes, place, file } => {
                let mut bytes = bytes.clone();
                if let Some((offset, kind)) = file {
                    let number = files.objects.number(*kind, files.device)?;
                    let field = bytes.iter_mut().skip(*offset);
                    for (to, from) in field.zip(number.to_ne_bytes()) {
                        *to = from;
                    }
                }
                Ok(arena.put(*place, &bytes)?)
            }
        }
    }
}

/// A system call.
#[derive(Clone, Debug)]
pub enum Call {
    /// ioctl(2) with a number.
    Ioctl(u32, Arg),
    /// read(2) of so many bytes, into an argument that is as long or not.
    Read(usize, Arg),
    /// write(2) of the argument, or of this length.
    Write(Arg, Option<usize>),
    /// poll(2) for everything, without waiting.
    Poll,
    /// lseek(2).
    Seek,
    /// mmap(2).
    Map,
}

/// What file descriptors in arguments stand for.
#[derive(Debug)]
pub struct Files<'a> {
    /// Files of the process.
    pub objects: &'a mut Objects,
    /// The device itself.
    pub device: BorrowedFd<'a>,
}

/// What came of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What it returned, or the errno.
    pub returned: String,
    /// What it changed, in its argument and around.
    pub changed: String,
}

/// An outcome as text: a number, or the name of an errno.
pub fn text(result: nix::Result<i32>) -> String {
    match result {
        Ok(value) => value.to_string(),
        Err(errno) => format!("{errno:?}"),
    }
}

impl Call {
    /// Makes the call.
    ///
    /// # Errors
    ///
    /// The argument cannot be made: a fault of the table, or of the machine.
    pub fn make(&self, arena: &mut Arena, gate: Gate, mut files: Files<'_>) -> Result<Answer> {
        let fd = files.device;
        let arg = match self {
            Self::Ioctl(_, arg) | Self::Read(_, arg) | Self::Write(arg, _) => arg,
            Self::Poll | Self::Seek | Self::Map => &Arg::Wild(Address::Null),
        };
        let at = arg.put(arena, &mut files)?;
        let result = match self {
            Self::Ioctl(request, _) => arena.ioctl(gate, fd, *request, at),
            Self::Read(len, _) => arena.read(gate, fd, at, *len),
            Self::Write(arg, len) => arena.write(gate, fd, at, len.unwrap_or(arg.len())),
            Self::Poll => Ok(poll_now(fd)?),
            // CAST: An offset of a file that has none.
            Self::Seek => lseek(fd, 7, Whence::SeekSet).map(|at| at as i32),
            Self::Map => vhost_uapi::try_map(fd).map(|()| 0),
        };
        Ok(Answer {
            returned: text(result),
            changed: changes(arena),
        })
    }
}

/// The events that poll(2) has for a device, as bits.
///
/// # Errors
///
/// Those of poll(2).
pub fn poll_now(fd: BorrowedFd<'_>) -> Result<i32> {
    let mut polled = [PollFd::new(fd.as_fd(), PollFlags::all())];
    poll(&mut polled, PollTimeout::ZERO)?;
    let events = polled[0].revents().unwrap_or(PollFlags::empty());
    Ok(events.bits().into())
}

/// Runs of changed bytes, as `+OFFSET:HEX`; `-` for none.
fn changes(arena: &mut Arena) -> String {
    let mut text = String::new();
    let mut next = None;
    for (at, byte) in arena.changes() {
        if next != Some(at) {
            let gap = if text.is_empty() { "" } else { " " };
            text.push_str(&format!("{gap}{at:+}:"));
        }
        text.push_str(&format!("{byte:02x}"));
        next = Some(at + 1);
    }
    if text.is_empty() {
        text.push('-');
    }
    text
}
