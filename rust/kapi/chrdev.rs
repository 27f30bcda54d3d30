// SPDX-License-Identifier: GPL-2.0

//! A misc device with a fixed minor, which the kernel crate's have not.
//!
//! C header: [`include/linux/miscdevice.h`](srctree/include/linux/miscdevice.h)

use super::iter::Dest;
use super::iter::Source;
use super::module::Barrier;
use crate::bindings;
use crate::LocalModule;
use core::marker::PhantomData;
use kernel::error::to_result;
use kernel::fs::File;
use kernel::module::this_module;
use kernel::prelude::*;
use kernel::seq_file::SeqFile;
use kernel::sync::poll::PollCondVar;
use kernel::sync::poll::PollTable;
use kernel::sync::Arc;
use kernel::sync::ArcBorrow;
use kernel::types::Opaque;

/// There is data to read (`EPOLLIN`, `EPOLLRDNORM`).
const EPOLLIN: bindings::__poll_t = 0x0001;
const EPOLLRDNORM: bindings::__poll_t = 0x0040;

/// What an open file of a device does. All functions are called in process
/// context and may sleep.
pub(crate) trait CharDevice: Sized + 'static {
    /// What an open file is.
    type Data: Send + Sync + 'static;

    /// A file is opened.
    fn open() -> Result<Arc<Self::Data>>;

    /// The last user of the file closed it.
    fn release(data: Arc<Self::Data>);

    /// `ioctl(2)`, of a 32-bit program also. `arg` is an address there.
    fn ioctl(data: ArcBorrow<'_, Self::Data>, cmd: u32, arg: usize) -> Result<isize>;

    /// `read(2)`; it may wait if `wait`.
    fn read(data: ArcBorrow<'_, Self::Data>, to: &mut Dest<'_>, wait: bool) -> Result<usize>;

    /// `write(2)`.
    fn write(data: ArcBorrow<'_, Self::Data>, from: &mut Source<'_>) -> Result<usize>;

    /// `poll(2)`: says to `poll` what to wait for, and answers whether there is
    /// something to read now.
    fn poll(data: ArcBorrow<'_, Self::Data>, poll: &Poll<'_>) -> bool;

    /// Somebody reads `/proc/PID/fdinfo/FD`.
    fn show_fdinfo(data: ArcBorrow<'_, Self::Data>, file: &SeqFile);
}

/// Somebody who polls a file.
pub(crate) struct Poll<'a> {
    file: &'a File,
    table: PollTable<'a>,
}

impl Poll<'_> {
    /// Has `news` wake them up.
    pub(crate) fn wait_for(&self, news: &PollCondVar) {
        self.table.register_wait(self.file, news);
    }
}

/// The minor number of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Minor {
    /// That of `/dev/vhost-net`: 238.
    VhostNet,
    /// One that is free.
    Dynamic,
}

/// A device node; it is there as long as this is. It must be dropped before the
/// module goes, as a field of the module is.
///
/// # Invariants
///
/// `inner` is registered.
#[pin_data(PinnedDrop)]
pub(crate) struct Registration<T: CharDevice> {
    #[pin]
    inner: Opaque<bindings::miscdevice>,
    /// Dropped when the node is gone, and nothing can begin any more.
    _barrier: Barrier,
    _type: PhantomData<fn() -> T>,
}

// SAFETY: Any thread may take the node away.
unsafe impl<T: CharDevice> Send for Registration<T> {}
// SAFETY: There is no shared use.
unsafe impl<T: CharDevice> Sync for Registration<T> {}

impl<T: CharDevice> Registration<T> {
    /// Makes the node `name`. What goes wrong is printed as well.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the name is none of a file, `EBUSY` if the minor is
    /// taken, `EEXIST` if the name is.
    pub(crate) fn register(name: &'static CStr, minor: Minor) -> impl PinInit<Self, Error> {
        try_pin_init!(Self {
            // INVARIANT: Registered when this succeeds.
            inner <- Opaque::try_ffi_init(move |slot: *mut bindings::miscdevice| {
                check_name(name)?;
                let mut device: bindings::miscdevice = pin_init::zeroed();
                device.minor = match minor {
                    Minor::VhostNet => bindings::VHOST_NET_MINOR,
                    Minor::Dynamic => bindings::MISC_DYNAMIC_MINOR,
                } as c_int; // CAST: a constant below 256.
                device.name = name.as_char_ptr();
                device.fops = FileOps::<T>::TABLE;
                // SAFETY: `slot` is valid for writing, and stays where it is
                // until `drop` has taken the device back. The name and the
                // table are never freed.
                let result = to_result(unsafe {
                    slot.write(device);
                    bindings::misc_register(slot)
                });
                result.inspect_err(|err| explain(*err, name))
            }),
            _barrier: Barrier,
            _type: PhantomData,
        })
    }
}

fn check_name(name: &CStr) -> Result {
    let bytes = name.to_bytes_with_nul();
    if matches!(bytes, b"\0" | b".\0" | b"..\0") || bytes.iter().any(|&byte| byte == b'/') {
        pr_err!("node= must be the name of a file in /dev, such as vhost-net-rs\n");
        return Err(EINVAL);
    }
    Ok(())
}

fn explain(err: Error, name: &CStr) {
    if err == EBUSY || err == EEXIST {
        pr_err!(
            "/dev/{} is taken: is the C vhost_net loaded? Unload it (rmmod vhost_net), or load with another node=NAME\n",
            name
        );
    } else {
        pr_err!("cannot make /dev/{}: error {}\n", name, err.to_errno());
    }
}

#[pinned_drop]
impl<T: CharDevice> PinnedDrop for Registration<T> {
    fn drop(self: Pin<&mut Self>) {
        // SAFETY: By the invariant it is registered.
        unsafe { bindings::misc_deregister(self.inner.get()) };
    }
}

/// The file operations of a [`CharDevice`].
///
/// From `open` to `release` the private data of a file is what
/// `Arc::into_raw()` made of the file's reference to its data.
struct FileOps<T: CharDevice>(PhantomData<T>);

impl<T: CharDevice> FileOps<T> {
    const TABLE: &'static bindings::file_operations = &bindings::file_operations {
        owner: this_module::<LocalModule>().as_ptr(),
        open: Some(Self::open),
        release: Some(Self::release),
        read_iter: Some(Self::read),
        write_iter: Some(Self::write),
        poll: Some(Self::poll),
        unlocked_ioctl: Some(Self::ioctl),
        #[cfg(CONFIG_COMPAT)]
        compat_ioctl: bindings::compat_ptr_ioctl,
        llseek: Some(bindings::noop_llseek),
        show_fdinfo: Some(Self::show_fdinfo),
        ..pin_init::zeroed()
    };

    /// # Safety
    ///
    /// `file` must be a file of such a device that is being opened.
    unsafe extern "C" fn open(_inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
        match T::open() {
            Ok(data) => {
                // SAFETY: By the contract the private data is ours to set.
                unsafe { (*file).private_data = Arc::into_raw(data).cast_mut().cast() };
                0
            }
            Err(err) => err.to_errno(),
        }
    }

    /// # Safety
    ///
    /// `file` must be a file of such a device that is being released.
    unsafe extern "C" fn release(_inode: *mut bindings::inode, file: *mut bindings::file) -> c_int {
        // SAFETY: By the contract `open` set the private data, and nobody uses
        // the file any more: the reference is ours to give up.
        T::release(unsafe { Arc::from_raw((*file).private_data.cast::<T::Data>()) });
        0
    }

    /// Borrows the data of an open file.
    ///
    /// # Safety
    ///
    /// `file` must be a file of such a device, open as long as `'a`.
    unsafe fn data<'a>(file: *mut bindings::file) -> ArcBorrow<'a, T::Data> {
        // SAFETY: By the contract `open` set the private data, and `release`
        // does not run during `'a`.
        unsafe { ArcBorrow::from_raw((*file).private_data.cast::<T::Data>()) }
    }

    /// # Safety
    ///
    /// `file` must be an open file of such a device.
    unsafe extern "C" fn ioctl(file: *mut bindings::file, cmd: c_uint, arg: c_ulong) -> c_long {
        // SAFETY: By the contract; the file is open during the call.
        let data = unsafe { Self::data(file) };
        match T::ioctl(data, cmd, arg) {
            // CAST: both have 64 bits.
            Ok(ret) => ret as c_long,
            // CAST: from 32 bits to 64.
            Err(err) => err.to_errno() as c_long,
        }
    }

    /// # Safety
    ///
    /// `iocb` must be a read of an open file of such a device, to `iter`.
    unsafe extern "C" fn read(iocb: *mut bindings::kiocb, iter: *mut bindings::iov_iter) -> isize {
        // SAFETY: By the contract; all three are valid during the call.
        let (data, mut to, flags) = unsafe {
            let file = (*iocb).ki_filp;
            (Self::data(file), Dest::new(iter), (*file).f_flags)
        };
        let room = to.len();
        let done = T::read(data, &mut to, flags & bindings::O_NONBLOCK == 0);
        answer(done, room)
    }

    /// # Safety
    ///
    /// `iocb` must be a write to an open file of such a device, from `iter`.
    unsafe extern "C" fn write(iocb: *mut bindings::kiocb, iter: *mut bindings::iov_iter) -> isize {
        // SAFETY: By the contract; both are valid during the call.
        let (data, mut from) = unsafe { (Self::data((*iocb).ki_filp), Source::new(iter)) };
        answer(T::write(data, &mut from), WRITE_MAX)
    }

    /// # Safety
    ///
    /// `file` must be an open file of such a device, and `table` NULL or valid.
    unsafe extern "C" fn poll(
        file: *mut bindings::file,
        table: *mut bindings::poll_table_struct,
    ) -> bindings::__poll_t {
        // SAFETY: By the contract; both are valid during the call, and this
        // thread uses no position of the file in it.
        let (data, poll) = unsafe {
            let (file, table) = (File::from_raw_file(file), PollTable::from_raw(table));
            (Self::data(file.as_ptr()), Poll { file, table })
        };
        if T::poll(data, &poll) {
            EPOLLIN | EPOLLRDNORM
        } else {
            0
        }
    }

    /// # Safety
    ///
    /// `file` must be an open file of such a device, and `seq` valid.
    unsafe extern "C" fn show_fdinfo(seq: *mut bindings::seq_file, file: *mut bindings::file) {
        // SAFETY: By the contract; both are valid during the call.
        let (data, seq) = unsafe { (Self::data(file), SeqFile::from_raw(seq)) };
        T::show_fdinfo(data, seq);
    }
}

/// The most that `write(2)` answers, which may be more than was written: unlike
/// a read's, no caller steps over it. C: `MAX_RW_COUNT`.
const WRITE_MAX: usize = 0x7fff_f000;

/// What `read(2)` and `write(2)` answer, a length of at most `max`.
///
/// Callers trust both: they step over what a read says was there, and wait for
/// the answer that `EIOCBQUEUED` promises.
fn answer(done: Result<usize>, max: usize) -> isize {
    match done {
        // CAST: a length of a buffer fits.
        Ok(len) => len.min(max) as isize,
        Err(err) => {
            let err = if err == EIOCBQUEUED { EIO } else { err };
            // CAST: from 32 bits to 64.
            err.to_errno() as isize
        }
    }
}
