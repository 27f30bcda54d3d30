// SPDX-License-Identifier: GPL-2.0

use std::cell::{Cell, RefCell};

use vhost_engine::engine::busy_poll::spin;
use vhost_engine::engine::host::{End, Watch};

/// Everything that can be seen, from the turn on at which it shows.
#[derive(Default)]
struct Script {
    start: u64,
    turn: Cell<u64>,
    must_yield: Option<u64>,
    signal: bool,
    wanted: Option<u64>,
    work: Option<u64>,
    hindered: Option<(End, u64)>,
    socket: Option<u64>,
    rx_buffers: Option<u64>,
    tx_packets: Option<u64>,
    looks: RefCell<Vec<&'static str>>,
}

impl Script {
    fn shows(&self, name: &'static str, from: Option<u64>) -> bool {
        self.looks.borrow_mut().push(name);
        from.is_some_and(|from| self.turn.get() >= from)
    }
}

/// A unit of time, 1,024 ns, passes per turn.
impl Watch for Script {
    fn now(&self) -> u64 {
        self.looks.borrow_mut().push("clock");
        self.start.wrapping_add(1024 * self.turn.get())
    }
    fn signal_pending(&self) -> bool {
        self.signal
    }
    fn must_yield(&self) -> bool {
        self.shows("yield", self.must_yield)
    }
    fn wanted(&self) -> bool {
        self.shows("wanted", self.wanted)
    }
    fn hindered(&self, _now: u64) -> Option<End> {
        let (end, from) = self.hindered?;
        self.shows("hindered", Some(from)).then_some(end)
    }
    fn has_work(&self) -> bool {
        self.shows("work", self.work)
    }
    fn socket_ready(&self) -> bool {
        self.shows("socket", self.socket)
    }
    fn rx_empty(&self) -> bool {
        !self.shows("rx", self.rx_buffers)
    }
    fn tx_empty(&self) -> bool {
        !self.shows("tx", self.tx_packets)
    }
    fn relax(&self) {
        self.looks.borrow_mut().push("relax");
        self.turn.set(self.turn.get() + 1);
        assert!(self.turn.get() < 10_000, "this never ends");
    }
}

#[test]
fn a_window_in_which_nothing_shows_closes_after_its_time() {
    let script = Script::default();
    assert_eq!(spin(&script, 50).end, End::Time);
    assert_eq!(script.turn.get(), 51, "as C: the window's last unit counts");
}

#[test]
fn units_are_cut_off_at_their_ends_as_in_c() {
    let late = Script {
        start: 1023,
        ..Script::default()
    };
    let window = spin(&late, 3);
    assert_eq!((window.end, window.ns), (End::Time, 4 * 1024));
    let early = Script {
        start: 1024,
        ..Script::default()
    };
    assert_eq!(spin(&early, 3).ns, 4 * 1024);
}

#[test]
fn a_window_tells_how_long_it_was() {
    let script = Script {
        tx_packets: Some(7),
        ..Script::default()
    };
    assert_eq!(spin(&script, 1000).ns, 7 * 1024);
}

#[test]
fn a_signal_is_told_from_another_task() {
    let script = Script {
        must_yield: Some(2),
        signal: true,
        ..Script::default()
    };
    assert_eq!(spin(&script, 1000).end, End::Signal);
}

#[test]
fn what_was_asked_to_end_it_does() {
    for end in [End::Competitor, End::Guest] {
        let script = Script {
            hindered: Some((end, 4)),
            ..Script::default()
        };
        assert_eq!(spin(&script, 1000).end, end);
        assert_eq!(script.turn.get(), 4);
    }
}

#[test]
fn the_clock_may_wrap_during_a_window() {
    let script = Script {
        start: u64::MAX - 3 * 1024,
        ..Script::default()
    };
    assert_eq!(spin(&script, 10).end, End::Time);
    assert_eq!(script.turn.get(), 11);
}

#[test]
fn each_look_is_made_in_the_order_of_the_c_code() {
    let script = Script::default();
    spin(&script, 0);
    let turn = ["yield", "clock", "work", "wanted", "socket", "tx", "relax"];
    let looks = script.looks.borrow();
    assert_eq!(looks[0], "clock", "the start");
    assert_eq!(looks[1..8], turn);
    assert_eq!(looks[8..], ["yield", "clock"], "the window is over");
}

#[test]
fn a_tx_packet_ends_the_window_at_once() {
    let script = Script {
        tx_packets: Some(7),
        ..Script::default()
    };
    assert_eq!(spin(&script, 1000).end, End::Packet);
    assert_eq!(script.turn.get(), 7);
}

#[test]
fn a_packet_for_the_guest_ends_the_window_when_there_is_a_buffer_for_it() {
    let script = Script {
        socket: Some(3),
        rx_buffers: Some(9),
        ..Script::default()
    };
    assert_eq!(spin(&script, 1000).end, End::Packet);
    assert_eq!(script.turn.get(), 9);
}

#[test]
fn data_without_an_rx_buffer_does_not_end_the_window() {
    let script = Script {
        socket: Some(0),
        ..Script::default()
    };
    assert_eq!(spin(&script, 100).end, End::Time);
}

#[test]
fn an_rx_buffer_without_data_does_not_end_the_window() {
    let script = Script {
        rx_buffers: Some(0),
        ..Script::default()
    };
    assert_eq!(spin(&script, 100).end, End::Time);
}

#[test]
fn other_work_ends_the_window_before_packets_are_seen() {
    let script = Script {
        work: Some(4),
        tx_packets: Some(4),
        ..Script::default()
    };
    assert_eq!(spin(&script, 1000).end, End::Work);
}

#[test]
fn whoever_wants_the_lock_ends_the_window_at_the_next_look() {
    let script = Script {
        wanted: Some(5),
        tx_packets: Some(5),
        ..Script::default()
    };
    assert_eq!(spin(&script, u64::MAX).end, End::Waiter);
    assert_eq!(script.turn.get(), 5);
}

#[test]
fn a_task_that_wants_the_cpu_comes_before_everything() {
    let script = Script {
        must_yield: Some(2),
        work: Some(2),
        wanted: Some(2),
        tx_packets: Some(2),
        ..Script::default()
    };
    assert_eq!(spin(&script, 1000).end, End::Resched);
    assert_eq!(script.turn.get(), 2);
}
