// SPDX-License-Identifier: GPL-2.0

//! A block-like device on the engine, and a driver whose jobs submit anew as
//! soon as they are served: calls must not come while their handler is at work.

use vhost_engine::engine::batch::Batch;

use crate::model::{inp, out};
use crate::rig::{arena, Rig, EVENT_IDX, GPA, V1};

const JOBS: usize = 16;
const DEPTH: usize = 64;
/// Descriptors of a request: what is wanted, the data, the status.
const DESCS: u16 = 3;
const SECTOR: u32 = 512;
const REQUESTS: usize = 30_000;

/// How a driver handles completions.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// Calls stay on: one pass for each.
    CallsOn,
    /// Calls off, drain, calls on, look again.
    CallsOff,
}

/// Where the handler is between two steps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Handler {
    Asleep,
    Draining,
    LookingAgain,
}

#[derive(Default)]
struct Seen {
    calls: usize,
    /// How often calls were turned on at the end of a handler.
    looks: usize,
    /// Calls that came while the handler was active.
    inside: usize,
    /// Those of them that came while calls were off.
    while_off: usize,
    served: usize,
}

struct World<'m, 'a> {
    rig: Rig<'m, 'a>,
    shape: Shape,
    handler: Handler,
    called: bool,
    kicked: bool,
    device_asleep: bool,
    submitted: usize,
    /// Requests that each job has under way, and whose a head is.
    under_way: [usize; JOBS],
    job_of: Vec<usize>,
    seen: Seen,
}

impl World<'_, '_> {
    fn calls(&mut self, on: bool) {
        let (mem, driver) = (self.rig.mem, &self.rig.driver);
        if driver.event_idx {
            let event = driver.last_used.wrapping_sub(u16::from(!on));
            mem.poke_u16(driver.place.used_event(), event);
        } else {
            mem.poke_u16(driver.place.avail, u16::from(!on));
        }
    }

    /// Submits for every job that has less than its depth under way.
    fn submit(&mut self) {
        let before = self.rig.driver.avail_idx;
        for job in 0..JOBS {
            while self.under_way[job] < DEPTH && self.submitted < REQUESTS {
                let bufs = [
                    out(GPA, 16),
                    inp(GPA + 16, SECTOR),
                    inp(GPA + 16 + u64::from(SECTOR), 1),
                ];
                let head = self.rig.driver.add(&bufs);
                self.job_of[usize::from(head)] = job;
                self.under_way[job] += 1;
                self.submitted += 1;
            }
        }
        let added = self.rig.driver.avail_idx.wrapping_sub(before);
        self.kicked |= added > 0 && self.rig.driver.kicks_for(before, added);
    }

    /// Serves up to `most` requests.
    fn device(&mut self, most: usize) {
        if self.device_asleep && !std::mem::take(&mut self.kicked) {
            return;
        }
        let Rig {
            mem,
            queue,
            scratch,
            ..
        } = &mut self.rig;
        if self.device_asleep {
            queue.kicks_off(*mem).unwrap();
            self.device_asleep = false;
        }
        let mut batch = Batch::new(most);
        while usize::from(batch.taken()) < most
            && (batch.has_next() || batch.fetch(queue, *mem, scratch).unwrap())
        {
            let head = batch.head(queue, scratch).unwrap();
            batch.take(scratch, head.id, SECTOR + 1);
        }
        match batch.publish(queue, *mem, scratch).unwrap() {
            None => self.device_asleep = !queue.kicks_on(*mem).unwrap(),
            Some(false) => {}
            Some(true) => {
                let active = self.handler != Handler::Asleep;
                let off = self.handler == Handler::Draining && self.shape == Shape::CallsOff;
                self.called = true;
                self.seen.calls += 1;
                self.seen.inside += usize::from(active);
                self.seen.while_off += usize::from(off);
            }
        }
    }

    fn driver(&mut self) {
        let calls_on = self.shape == Shape::CallsOn;
        match self.handler {
            Handler::Asleep => {
                if std::mem::take(&mut self.called) {
                    self.calls(calls_on);
                    self.handler = Handler::Draining;
                }
            }
            Handler::Draining => {
                let used = self.rig.driver.collect();
                for &(head, len) in &used {
                    assert_eq!(len, SECTOR + 1);
                    self.under_way[self.job_of[usize::from(head)]] -= 1;
                }
                self.seen.served += used.len();
                self.submit();
                if used.is_empty() || calls_on {
                    self.calls(true);
                }
                if used.is_empty() {
                    self.seen.looks += 1;
                    self.handler = Handler::LookingAgain;
                }
            }
            Handler::LookingAgain => {
                let used_idx = self.rig.mem.peek_u16(self.rig.driver.place.used_idx());
                if used_idx == self.rig.driver.last_used {
                    self.handler = Handler::Asleep;
                } else {
                    self.calls(calls_on);
                    self.handler = Handler::Draining;
                }
            }
        }
    }
}

/// Runs all requests; driver and device take their steps in a random order.
fn run(shape: Shape, features: u64, seed: u64) -> Seen {
    let num = (JOBS as u16 * DEPTH as u16 * DESCS).next_power_of_two();
    let world = arena(num);
    world.0.limit.set(u64::MAX);
    let mut world = World {
        rig: Rig::new(&world, features),
        shape,
        handler: Handler::Asleep,
        called: false,
        kicked: true,
        device_asleep: true,
        submitted: 0,
        under_way: [0; JOBS],
        job_of: vec![0; num.into()],
        seen: Seen::default(),
    };
    world.calls(true);
    world.submit();
    let mut x = seed;
    let mut idle = 0;
    while world.seen.served < REQUESTS {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let before = world.seen.served + world.submitted;
        if x >> 63 == 0 {
            world.device(1 + (x >> 40) as usize % 32);
            world.rig.mem.forget_touches();
        } else {
            world.driver();
        }
        idle = if world.seen.served + world.submitted > before {
            0
        } else {
            idle + 1
        };
        assert!(idle < 10_000, "a call or a kick was lost");
    }
    assert!(world.rig.driver.out.is_empty());
    world.seen
}

#[test]
fn calls_that_are_off_do_not_come_while_the_handler_drains() {
    for features in [V1, V1 | EVENT_IDX] {
        for seed in 1..=3 {
            let off = run(Shape::CallsOff, features, seed);
            assert_eq!(off.while_off, 0, "features {features:#x}, seed {seed}");
            if features & EVENT_IDX != 0 {
                assert!(off.inside <= off.looks, "an index is passed once");
            }
        }
    }
}

#[test]
fn calls_that_stay_on_come_inside_the_handler() {
    for features in [V1, V1 | EVENT_IDX] {
        let (on, off) = (
            run(Shape::CallsOn, features, 1),
            run(Shape::CallsOff, features, 1),
        );
        let (more, less) = (on.inside, off.inside);
        assert!(
            more > 2 * less,
            "{more} with calls on, {less} with them off"
        );
        assert!(on.calls > 2 * off.calls);
    }
}
