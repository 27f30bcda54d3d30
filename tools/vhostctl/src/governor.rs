// SPDX-License-Identifier: GPL-2.0

//! How `vhostctl tune` decides, apart from any device.

/// The limits that it keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Governor {
    /// The host's idle share that is to be kept, in thousandths.
    pub idle_min: u64,
    /// The largest window to give, in microseconds; nothing for what was found.
    pub window_max: Option<u32>,
}

/// What a vring did since the last look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Kicks and packets.
    pub events: u64,
    /// Busy-poll windows.
    pub polls: u64,
    /// Windows after which there was something to do.
    pub won: u64,
}

/// Growing waits for so much more idle time than is to be kept, in thousandths: else windows would swing.
const ROOM: u64 = 50;
/// So far below, all windows shrink, also those that win.
const DEEP: u64 = 100;
/// The first window of a vring that has none, in microseconds.
const FIRST: u32 = 4;

impl Governor {
    /// The window of a vring for the time to come. `found` is what it had before anything was set.
    ///
    /// While the host has too little idle time windows shrink to a half and then to nothing, those that lose before those
    /// that win. When there is time to spare, those of vrings with traffic double, up to the limit.
    pub fn window(&self, idle: u64, now: u32, found: u32, activity: Activity) -> u32 {
        if idle < self.idle_min {
            let loses = activity.won * 2 < activity.polls || activity.events == 0;
            let deep = idle + DEEP < self.idle_min || idle * 2 < self.idle_min;
            return if loses || deep { now / 2 } else { now };
        }
        let limit = self.window_max.unwrap_or(found);
        let room = idle >= (self.idle_min + ROOM).min(1000);
        if room && activity.events > 0 && now < limit {
            return now.saturating_mul(2).max(FIRST).min(limit);
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP_20: Governor = Governor {
        idle_min: 200,
        window_max: None,
    };
    const WINS: Activity = Activity {
        events: 100,
        polls: 10,
        won: 9,
    };
    const LOSES: Activity = Activity {
        events: 100,
        polls: 10,
        won: 1,
    };
    const QUIET: Activity = Activity {
        events: 0,
        polls: 0,
        won: 0,
    };

    #[test]
    fn windows_that_lose_shrink_first() {
        assert_eq!(KEEP_20.window(150, 50, 50, LOSES), 25);
        assert_eq!(KEEP_20.window(150, 50, 50, QUIET), 25);
        assert_eq!(KEEP_20.window(150, 50, 50, WINS), 50);
    }

    #[test]
    fn all_shrink_to_nothing_while_the_host_has_no_time() {
        let mut window = 50;
        for _ in 0..6 {
            window = KEEP_20.window(10, window, 50, WINS);
        }
        assert_eq!(window, 0);
    }

    #[test]
    fn windows_come_back_up_to_what_was_found_and_no_further() {
        let mut window = 0;
        for _ in 0..10 {
            window = KEEP_20.window(600, window, 50, WINS);
        }
        assert_eq!(window, 50);
        assert_eq!(KEEP_20.window(600, 0, 0, WINS), 0);
    }

    #[test]
    fn nothing_changes_between_the_limits_and_nothing_grows_without_traffic() {
        assert_eq!(KEEP_20.window(220, 25, 50, WINS), 25);
        assert_eq!(KEEP_20.window(900, 25, 50, QUIET), 25);
    }

    #[test]
    fn limit_that_is_given_holds_for_vrings_without_a_window_too() {
        let governor = Governor {
            window_max: Some(20),
            ..KEEP_20
        };
        assert_eq!(governor.window(900, 0, 0, WINS), 4);
        assert_eq!(governor.window(900, 16, 0, WINS), 20);
        assert_eq!(governor.window(900, 20, 0, WINS), 20);
    }

    #[test]
    fn idle_share_that_cannot_be_exceeded_can_be_reached() {
        let all = Governor {
            idle_min: 1000,
            window_max: None,
        };
        assert_eq!(all.window(999, 8, 8, LOSES), 4);
        assert_eq!(all.window(1000, 4, 8, WINS), 8);
    }
}
