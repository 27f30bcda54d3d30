// SPDX-License-Identifier: GPL-2.0

//! Being told when a kick eventfd or a socket becomes ready.
//!
//! C header: [`include/linux/poll.h`](srctree/include/linux/poll.h)

use super::atomic::Bits;
use super::eventfd::KickFile;
use super::file::FileRef;
use super::module::ModuleRef;
use super::socket::NetSocket;
use crate::bindings;
use core::ptr::NonNull;
use kernel::prelude::*;

/// What is done when a file becomes ready.
pub(crate) trait Wake: Send + Sync + 'static {
    /// The file became ready, or was already when waiting started.
    ///
    /// Called in any context, hard interrupts included, and with a lock held, as
    /// that of the file's wait queue: it must not sleep, nor start or stop
    /// entries.
    fn wake(&self);

    /// A word and bits in it: while one of these is set, [`Wake::wake`] would
    /// change nothing and need not be called.
    ///
    /// Whoever clears them does so in full order before the file is looked at.
    fn is_superfluous(&self) -> Option<(&Bits, u32)> {
        None
    }
}

/// What a socket is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// It has a packet for the guest.
    In,
    /// It has room for a frame from the guest.
    Out,
}

/// Keeps the file of an entry alive.
enum Watched {
    Kick(KickFile),
    Socket(NetSocket),
}

impl Watched {
    fn file(&self) -> &FileRef {
        match self {
            Self::Kick(kick) => kick.file(),
            Self::Socket(socket) => socket.file(),
        }
    }
}

/// Waits for a file to become ready and then calls `W`; it goes on waiting.
/// C: `struct vhost_poll`.
///
/// # Invariants
///
/// `poll` is a live entry of ours. Its file is that of `watched`, and its
/// callback is [`woken`] with `waker`, which is on the heap: both outlive it,
/// and `_module` the callback's code.
pub(crate) struct PollEntry<W: Wake> {
    poll: NonNull<bindings::vnr_poll>,
    started: bool,
    watched: Watched,
    _waker: KBox<W>,
    _module: ModuleRef,
}

// SAFETY: An entry is bound to no thread, and what it owns can be sent.
unsafe impl<W: Wake> Send for PollEntry<W> {}
// SAFETY: Shared use only reads fields that are written through `&mut`, and all
// of what it owns can be shared.
unsafe impl<W: Wake> Sync for PollEntry<W> {}

impl<W: Wake> PollEntry<W> {
    /// Makes an entry for a kick eventfd. It does not wait yet.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn for_kick(kick: KickFile, waker: W) -> Result<Self> {
        Self::new(Watched::Kick(kick), bindings::POLLIN, waker)
    }

    /// Makes an entry for a socket. It does not wait yet.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub(crate) fn for_socket(socket: &NetSocket, direction: Direction, waker: W) -> Result<Self> {
        let events = match direction {
            Direction::In => bindings::POLLIN,
            Direction::Out => bindings::POLLOUT,
        };
        Self::new(Watched::Socket(socket.clone()), events, waker)
    }

    fn new(watched: Watched, events: u32, waker: W) -> Result<Self> {
        let module = ModuleRef::get()?;
        let waker = KBox::new(waker, GFP_KERNEL)?;
        let data = (&raw const *waker).cast_mut().cast();
        let file = watched.file().as_ptr();
        // SAFETY: `file` is live. The helper only notes its arguments; what
        // must hold when the callback is called is the type's invariant.
        let poll = unsafe { bindings::vnr_poll_alloc(file, events, Some(woken::<W>), data) };

        let poll = NonNull::new(poll).ok_or(ENOMEM)?;
        if let Some((word, bits)) = waker.is_superfluous() {
            // SAFETY: The entry is live and does not wait. The waker is
            // borrowed for as long as it lives: nobody changes or drops it
            // before, and so not the word that it refers to.
            unsafe { bindings::vnr_poll_quiet_while(poll.as_ptr(), word.as_raw(), bits) };
        }

        // INVARIANT: The entry is new, and made of the fields beside it.
        Ok(Self {
            poll,
            started: false,
            watched,
            _waker: waker,
            _module: module,
        })
    }

    /// Whether it is made for the eventfd `kick`.
    pub(crate) fn watches(&self, kick: &KickFile) -> bool {
        match &self.watched {
            Watched::Kick(own) => own.same_file(kick),
            Watched::Socket(_) => false,
        }
    }

    /// Starts waiting, if it does not wait. Sleeps. C: `vhost_poll_start()`.
    ///
    /// A file that is ready now wakes at once.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the file is in error (`EPOLLERR`); it does not wait then.
    pub(crate) fn start(&mut self) -> Result {
        self.enter(false)
    }

    /// Starts waiting again, also while the file is in error: it may get over
    /// that, as a packet socket whose interface went down.
    ///
    /// Answers whether it waits; a file that is done for does not let it.
    pub(crate) fn restart(&mut self) -> bool {
        // With this argument there is no error.
        self.enter(true).is_ok() && self.started
    }

    fn enter(&mut self, in_error_too: bool) -> Result {
        if self.started {
            return Ok(());
        }

        // SAFETY: By the invariant the entry and its file are live; `&mut self`
        // keeps others away.
        let ret = unsafe { bindings::vnr_poll_start(self.poll.as_ptr(), in_error_too) };
        self.started = ret > 0;
        if ret < 0 {
            // What `to_result()` does, which is a call.
            return Err(Error::from_errno(ret));
        }
        Ok(())
    }

    /// Stops waiting. When it returns no [`Wake::wake`] runs, and none comes
    /// until it is started again. Takes the wait queue's lock.
    pub(crate) fn stop(&mut self) {
        if !self.started {
            return;
        }

        // SAFETY: As in `enter`.
        unsafe { bindings::vnr_poll_stop(self.poll.as_ptr()) };
        self.started = false;
    }
}

impl<W: Wake> Drop for PollEntry<W> {
    fn drop(&mut self) {
        // SAFETY: By the invariant the entry is live and ours. The helper stops
        // it first; its file and its waker are dropped after this.
        unsafe { bindings::vnr_poll_free(self.poll.as_ptr()) };
    }
}

/// Called by C when there is news.
///
/// # Safety
///
/// `data` must point at a live `W`.
pub(super) unsafe extern "C" fn woken<W: Wake>(data: *mut c_void) {
    // SAFETY: By the contract; `W` is `Sync`, and only shared references to it
    // exist while C may call.
    unsafe { &*data.cast::<W>() }.wake();
}
