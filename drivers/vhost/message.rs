// SPDX-License-Identifier: GPL-2.0

//! What the owner writes to the device: changes of the IOTLB.

use crate::{
    device::{Control, Device},
    engine::miss::{Message, MSG_BYTES, MSG_MIN},
    iotlb,
    kapi::{iter::Source, work::WorkItem},
    worker::Work,
};
use kernel::{prelude::*, sync::ArcBorrow};

/// Serves `write(2)`. C: `vhost_chr_write_iter()`.
///
/// When it returns, no vring uses what was taken out of the IOTLB.
///
/// # Errors
///
/// `EINVAL` for what is no message, or an update of no bytes; `EFAULT` for one
/// that cannot be served.
pub(crate) fn write<W: Work>(
    device: &Device<W>,
    item: ArcBorrow<'_, WorkItem<W>>,
    from: &mut Source<'_>,
) -> Result<usize> {
    let mut bytes = [0; MSG_MIN];
    if from.read(&mut bytes) != MSG_MIN {
        return Err(EINVAL);
    }
    let message = Message::parse(&bytes).ok_or(EINVAL)?;

    // The device's, so that two writers change all vrings in one order.
    let control = device.lock();
    serve(device, &control, item, message).map_err(|_| EFAULT)?;
    // As in C, whatever the padding that was written.
    Ok(MSG_BYTES)
}

/// C: `vhost_process_iotlb_msg()`.
fn serve<W: Work>(
    device: &Device<W>,
    control: &Control<W>,
    item: ArcBorrow<'_, WorkItem<W>>,
    message: Message,
) -> Result {
    match message {
        Message::Update {
            iova,
            size,
            uva,
            access,
        } => {
            let entry = iotlb::entry(iova, size, uva, access)?;

            // Before one vring has it and the other one cannot.
            for vring in device.vrings() {
                let mut state = vring.lock();
                iotlb::make_room(state.iotlb.as_mut().ok_or(EFAULT)?)?;
            }
            for vring in device.vrings() {
                if let Some(iotlb) = &mut vring.lock().iotlb {
                    iotlb.add(entry)?;
                }
            }
            control.look_again(item, device.channel().answer(entry.start(), entry.last()));
        }
        Message::Invalidate { iova, size } => {
            for vring in device.vrings() {
                let mut state = vring.lock();
                let entries = state.iotlb.as_mut().ok_or(EFAULT)?;

                if size == 0 {
                    return Err(EINVAL);
                }
                entries.remove(iova, iotlb::last_of(iova, size));
            }
        }
        Message::Other => return Err(EINVAL),
    }
    Ok(())
}
