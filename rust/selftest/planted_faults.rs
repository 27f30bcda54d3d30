// SPDX-License-Identifier: GPL-2.0

//! Faults planted on purpose, one per detector of a debug kernel.
//!
//! Write the name of a fault to `/dev/planted-faults` and the kernel must report it. A kernel
//! that stays silent here is blind, and a clean log from it proves nothing. Never load this
//! module outside a virtual machine made for it: the faults are real.
//!
//! The functions are not inlined: their names are what the reports are searched for.

use core::{
    cell::UnsafeCell,
    hint::black_box, //
};
use kernel::{
    c_str,
    fs::{
        File,
        Kiocb, //
    },
    iov::IovIterSource,
    miscdevice::{
        MiscDevice,
        MiscDeviceOptions,
        MiscDeviceRegistration, //
    },
    new_mutex, new_spinlock,
    prelude::*,
    sync::{
        Mutex,
        SpinLock, //
    },
};
use pin_init::stack_pin_init;

module! {
    type: PlantedFaults,
    name: "planted_faults",
    authors: ["vhost_net_rs maintainers"],
    description: "Deliberate faults that a debug kernel must report",
    license: "GPL",
}

/// A fault: the name that user space writes, and the function that commits it.
type Fault = (&'static [u8], fn() -> Result);

const FAULTS: [Fault; 8] = [
    (b"lock_order", lock_order),
    (b"sleep_in_atomic", sleep_in_atomic),
    (b"leak", leak),
    (b"failing_allocation", failing_allocation),
    (b"use_after_free", use_after_free),
    (b"out_of_bounds", out_of_bounds),
    (b"data_race", data_race),
    (b"overflow", overflow),
];

/// Lockdep: two mutexes taken in both orders.
#[inline(never)]
fn lock_order() -> Result {
    stack_pin_init!(let first = new_mutex!(0u32, "planted_faults::first"));
    stack_pin_init!(let second = new_mutex!(0u32, "planted_faults::second"));
    let in_turn = |outer: &Mutex<u32>, inner: &Mutex<u32>| {
        let _outer = outer.lock();
        let _inner = inner.lock();
    };
    in_turn(&first, &second);
    in_turn(&second, &first);
    Ok(())
}

/// `DEBUG_ATOMIC_SLEEP`: an allocation that may sleep, under a spinlock.
#[inline(never)]
fn sleep_in_atomic() -> Result {
    stack_pin_init!(let lock = new_spinlock!(0u64, "planted_faults::spin"));
    let lock: &SpinLock<u64> = &lock;
    let guard = lock.lock();
    let value = KBox::new(*guard, GFP_KERNEL)?;
    black_box(&value);
    Ok(())
}

/// kmemleak: a thousand blocks that nothing points to any more. It takes that many for some to be
/// reported: stale pointers on stacks and in allocator caches hide a few.
#[inline(never)]
fn leak() -> Result {
    for i in 0..1000u64 {
        core::mem::forget(black_box(KBox::new([i; 24], GFP_KERNEL)?));
    }
    Ok(())
}

/// failslab: an allocation that the caller makes fail through `/proc/self/fail-nth`.
#[inline(never)]
fn failing_allocation() -> Result {
    black_box(KVec::<u64>::with_capacity(64, GFP_KERNEL)?);
    Ok(())
}

/// KASAN: a read of freed memory.
#[inline(never)]
fn use_after_free() -> Result {
    let value = KBox::new([7u64; 8], GFP_KERNEL)?;
    let gone = black_box(&raw const *value);
    drop(value);
    // SAFETY: There is none, and that is the fault: the memory is freed. What is read is not used.
    black_box(unsafe { gone.cast::<u64>().read_volatile() });
    Ok(())
}

/// KASAN: a read behind the end of a vector.
#[inline(never)]
fn out_of_bounds() -> Result {
    let values = KVec::from_elem(7u8, 60, GFP_KERNEL)?;
    let behind = black_box(values.as_ptr().wrapping_add(60));
    // SAFETY: There is none, and that is the fault: the vector ends before this byte. The slab
    // object is 64 bytes long, so the byte is mapped and belongs to no one.
    black_box(unsafe { behind.read_volatile() });
    Ok(())
}

/// A number that all callers share, without a lock.
struct Shared(UnsafeCell<u64>);

// SAFETY: There is none, and that is the fault: nothing keeps two threads apart. Any value of the
// number is valid and it is never used.
unsafe impl Sync for Shared {}

static SHARED: Shared = Shared(UnsafeCell::new(0));

/// KCSAN: a plain read and write that races with the same function in another process.
#[inline(never)]
fn data_race() -> Result {
    for _ in 0..300_000u32 {
        let number = black_box(SHARED.0.get());
        // SAFETY: `number` points to `SHARED`, which is static and initialised. That two threads
        // may be here at once is the fault.
        unsafe { *number = (*number).wrapping_add(1) };
    }
    Ok(())
}

/// Rust's overflow checks: an addition that overflows is a panic, and so a `BUG()`.
#[inline(never)]
fn overflow() -> Result {
    black_box(black_box(u8::MAX) + 1);
    Ok(())
}

#[pin_data]
struct PlantedFaults {
    #[pin]
    device: MiscDeviceRegistration<Trigger>,
}

impl kernel::InPlaceModule for PlantedFaults {
    fn init(_module: &'static ThisModule) -> impl PinInit<Self, Error> {
        let options = MiscDeviceOptions {
            name: c_str!("planted-faults"),
        };
        try_pin_init!(Self {
            device <- MiscDeviceRegistration::register(options),
        })
    }
}

struct Trigger;

#[vtable]
impl MiscDevice for Trigger {
    type Ptr = KBox<Self>;

    fn open(_file: &File, _misc: &MiscDeviceRegistration<Self>) -> Result<KBox<Self>> {
        Ok(KBox::new(Self, GFP_KERNEL)?)
    }

    fn write_iter(_kiocb: Kiocb<'_, Self::Ptr>, iov: &mut IovIterSource<'_>) -> Result<usize> {
        let mut text = [0u8; 32];
        let len = iov.copy_from_iter(&mut text);
        let name = text.get(..len).unwrap_or_default().trim_ascii();
        if name.is_empty() {
            return Err(EFAULT);
        }
        let (_, commit) = FAULTS
            .iter()
            .find(|(known, _)| *known == name)
            .ok_or(EINVAL)?;
        commit()?;
        Ok(len)
    }
}
