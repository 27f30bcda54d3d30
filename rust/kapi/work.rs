// SPDX-License-Identifier: GPL-2.0

//! Pending work: bits in a word of each item, and a list of the items whose
//! word is not empty. Queueing allocates nothing and works in any context.
//!
//! C header: [`include/linux/llist.h`](srctree/include/linux/llist.h)

use super::atomic::Bits;
use crate::bindings;
use core::marker::PhantomData;
use core::ops::Deref;
use core::ptr;
use kernel::container_of;
use kernel::prelude::*;
use kernel::sync::Arc;
use kernel::sync::ArcBorrow;
use kernel::types::Opaque;

/// Something that may have work pending.
///
/// # Invariants
///
/// Whoever changes `pending` from zero owns `node` until it has put it into a
/// list; a node in a list, or taken from one, belongs to whoever makes `pending`
/// zero again. So nobody touches a node while another may.
#[pin_data]
pub(crate) struct WorkItem<T> {
    node: Opaque<bindings::llist_node>,
    pending: Bits,
    #[pin]
    data: T,
}

// SAFETY: By the invariant `node` is never used by two threads at once.
unsafe impl<T: Send> Send for WorkItem<T> {}
// SAFETY: As above; `data` is shared, and the last reference, which may be a
// list's, drops it on any thread.
unsafe impl<T: Send + Sync> Sync for WorkItem<T> {}

impl<T> WorkItem<T> {
    /// Makes an item with no work pending, for an [`Arc`].
    pub(crate) fn new<E>(data: impl PinInit<T, E>) -> impl PinInit<Self, E> {
        try_pin_init!(Self {
            node: Opaque::new(bindings::llist_node {
                next: ptr::null_mut(),
            }),
            pending: Bits::new(),
            data <- data,
        }? E)
    }
}

impl<T> WorkItem<T> {
    /// The pending work, which [`Claimed::take`] clears before the work is
    /// done.
    #[inline]
    pub(crate) fn pending(&self) -> &Bits {
        &self.pending
    }
}

impl<T> Deref for WorkItem<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.data
    }
}

/// The items that have work pending. May be moved: nothing points at it.
///
/// # Invariants
///
/// Each entry is the `node` of a `WorkItem<T>` in an [`Arc`], of which the list
/// owns one reference.
pub(crate) struct WorkList<T> {
    head: Opaque<bindings::llist_head>,
    _items: PhantomData<Arc<WorkItem<T>>>,
}

// SAFETY: The list holds references, which can be sent.
unsafe impl<T: Send + Sync> Send for WorkList<T> {}
// SAFETY: The head is only reached by atomic operations; see `Send`.
unsafe impl<T: Send + Sync> Sync for WorkList<T> {}

impl<T> WorkList<T> {
    /// An empty list.
    pub(crate) const fn new() -> Self {
        Self {
            head: Opaque::new(bindings::llist_head {
                first: ptr::null_mut(),
            }),
            _items: PhantomData,
        }
    }

    /// Marks `bits` as pending and sees to it that the item is in a list.
    /// Fully ordered. Any context.
    ///
    /// Answers whether it was put into this one: then its worker must be woken.
    /// Otherwise it is in one already, or about to be. Without `bits` nothing
    /// is done.
    pub(crate) fn queue(&self, item: ArcBorrow<'_, WorkItem<T>>, bits: u32) -> bool {
        if bits == 0 || item.pending.fetch_or(bits) != 0 {
            return false;
        }

        // Before the list has it: from then on another thread may drop it.
        let item = Arc::into_raw(Arc::from(item));
        // SAFETY: `item` points at a live item. `pending` was zero, so by the
        // invariant of `WorkItem` the node is ours.
        let node = Opaque::cast_into(unsafe { &raw const (*item).node });
        // INVARIANT: The list gets the reference made above.
        // SAFETY: The head is valid, the node valid and in no list.
        unsafe { bindings::vnr_list_add(self.head.get(), node) };
        true
    }

    /// Whether no item is in the list. Any context.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        // SAFETY: The head is valid, and others change it by atomic operations
        // only: a volatile load of a word is one load (`READ_ONCE()`).
        unsafe { (&raw const (*self.head.get()).first).read_volatile() }.is_null()
    }

    /// Takes all items off the list.
    pub(crate) fn take(&self) -> Taken<T> {
        Taken {
            // INVARIANT: The list's entries, and their references, move here.
            // SAFETY: The head is valid.
            next: unsafe { bindings::vnr_list_take(self.head.get()) },
            _items: PhantomData,
        }
    }
}

impl<T> Drop for WorkList<T> {
    fn drop(&mut self) {
        drop(self.take());
    }
}

/// The items taken off a list, the oldest first. What is left when it is
/// dropped loses its pending work.
///
/// # Invariants
///
/// `next` starts a chain of nodes as [`WorkList`] has them, and its references
/// are ours.
pub(crate) struct Taken<T> {
    next: *mut bindings::llist_node,
    _items: PhantomData<Arc<WorkItem<T>>>,
}

impl<T> Iterator for Taken<T> {
    type Item = Claimed<T>;

    fn next(&mut self) -> Option<Claimed<T>> {
        let node = self.next;
        if node.is_null() {
            return None;
        }

        // Before the item's word is taken: after that the node may be queued
        // again, and its pointer be another list's.
        // SAFETY: By the invariant the node is live, and ours to read.
        self.next = unsafe { (*node).next };
        let node = Opaque::cast_from(node);
        // SAFETY: By the invariant the node is the field of a `WorkItem<T>`.
        let item = unsafe { container_of!(node, WorkItem<T>, node) };
        // SAFETY: By the invariant it came from `Arc::into_raw()`, and the
        // reference is ours; it moves on.
        let item = unsafe { Arc::from_raw(item) };
        Some(Claimed { item, taken: false })
    }
}

impl<T> Drop for Taken<T> {
    fn drop(&mut self) {
        self.for_each(drop);
    }
}

/// An item that is off its list, and whose pending work is to be taken.
pub(crate) struct Claimed<T> {
    item: Arc<WorkItem<T>>,
    taken: bool,
}

impl<T> Claimed<T> {
    /// Takes the pending work, once: it is 0 after the first time. Fully
    /// ordered. From here on the item may be queued again.
    pub(crate) fn take(&mut self) -> u32 {
        // A second time could empty the word of an item that is in a list.
        if self.taken {
            return 0;
        }

        self.taken = true;
        self.item.pending.take()
    }

    /// The item.
    #[inline]
    pub(crate) fn borrow(&self) -> ArcBorrow<'_, WorkItem<T>> {
        self.item.as_arc_borrow()
    }
}

impl<T> Drop for Claimed<T> {
    fn drop(&mut self) {
        // An item that is in no list must have an empty word, or it would never
        // be queued again.
        self.take();
    }
}
