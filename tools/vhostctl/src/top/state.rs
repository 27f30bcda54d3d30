// SPDX-License-Identifier: GPL-2.0

//! What the keys of `vhostctl top` do, apart from any terminal.

use clap::ValueEnum;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::args::{Column, TopOptions};

/// What a key asks for, besides another look at the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// Draw again what was read.
    Draw,
    /// Read the counters now.
    Read,
    /// End.
    Quit,
}

/// What is shown, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// Column to sort by.
    pub sort: Column,
    /// Smallest first.
    pub reverse: bool,
    /// Totals in place of rates.
    pub totals: bool,
    /// Milliseconds between two readings.
    pub delay: u64,
    /// First line that is shown.
    pub first: usize,
    /// The help is shown.
    pub help: bool,
    /// A new delay that is being typed.
    pub typed: Option<String>,
    /// Only lines with this text, while it is not empty.
    pub filter: String,
    /// The filter is being typed.
    pub filtering: bool,
}

impl State {
    /// As the command line says.
    pub fn new(options: &TopOptions) -> Self {
        Self {
            sort: options.sort,
            reverse: options.reverse,
            totals: options.totals,
            delay: options.delay,
            first: 0,
            help: false,
            typed: None,
            filter: String::new(),
            filtering: false,
        }
    }

    /// Does what a key says.
    pub fn key(&mut self, key: KeyEvent) -> Wish {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return match key.code {
                KeyCode::Char('c') => Wish::Quit,
                KeyCode::Char('l') => Wish::Draw,
                _ => Wish::Draw,
            };
        }
        if self.typed.is_some() {
            return self.typing(key.code);
        }
        if self.filtering {
            return self.filter_key(key.code);
        }
        if self.help {
            self.help = false;
            return if key.code == KeyCode::Char('q') {
                Wish::Quit
            } else {
                Wish::Draw
            };
        }
        match key.code {
            KeyCode::Char('q') | KeyCode::F(10) => return Wish::Quit,
            KeyCode::Char('h' | '?') | KeyCode::F(1) => self.help = true,
            KeyCode::Char('d' | 's') => self.typed = Some(String::new()),
            KeyCode::Char('/' | 'o') | KeyCode::F(4) => self.filtering = true,
            KeyCode::Char('t') => self.totals = !self.totals,
            KeyCode::Char('R' | 'I') => self.reverse = !self.reverse,
            KeyCode::Char('<') => self.next_column(-1),
            KeyCode::Char('>') | KeyCode::F(6) => self.next_column(1),
            KeyCode::Char(' ') => return Wish::Read,
            KeyCode::Up | KeyCode::Char('k') => self.first = self.first.saturating_sub(1),
            KeyCode::Down | KeyCode::Char('j') => self.first = self.first.saturating_add(1),
            KeyCode::PageUp => self.first = self.first.saturating_sub(20),
            KeyCode::PageDown => self.first = self.first.saturating_add(20),
            KeyCode::Home => self.first = 0,
            KeyCode::Char(letter) => self.sort_by(letter),
            _ => {}
        }
        Wish::Draw
    }

    fn sort_by(&mut self, letter: char) {
        self.sort = match letter {
            'P' => Column::Cpu,
            'N' => Column::Pid,
            'V' => Column::Vm,
            'p' => Column::Packets,
            'b' => Column::Bytes,
            'K' => Column::Kicks,
            'C' => Column::Calls,
            'w' => Column::Won,
            'D' => Column::Drops,
            'E' => Column::Errors,
            _ => return,
        };
    }

    fn next_column(&mut self, step: isize) {
        let all = Column::value_variants();
        let place = all
            .iter()
            .position(|column| *column == self.sort)
            .unwrap_or(0);
        let next = place
            .checked_add_signed(step)
            .filter(|next| *next < all.len());
        self.sort = next
            .and_then(|next| all.get(next))
            .copied()
            .unwrap_or(self.sort);
    }

    fn typing(&mut self, code: KeyCode) -> Wish {
        let typed = self.typed.get_or_insert_default();
        match code {
            KeyCode::Esc => self.typed = None,
            KeyCode::Enter => {
                let delay = crate::args::delay(typed);
                self.typed = None;
                if let Ok(delay) = delay {
                    self.delay = delay;
                    return Wish::Read;
                }
            }
            KeyCode::Backspace => {
                typed.pop();
            }
            KeyCode::Char(c) if c.is_ascii_digit() || c == '.' => typed.push(c),
            _ => {}
        }
        Wish::Draw
    }

    fn filter_key(&mut self, code: KeyCode) -> Wish {
        match code {
            KeyCode::Enter => self.filtering = false,
            KeyCode::Esc => {
                self.filtering = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(c) => self.filter.push(c),
            _ => {}
        }
        Wish::Draw
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser;

    fn state() -> State {
        match Cli::parse_from(["vhostctl", "top"]).command {
            Command::Top(options) => State::new(&options),
            _ => unreachable!(),
        }
    }

    fn press(state: &mut State, keys: &str) -> Wish {
        let code = |c| match c {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            c => KeyCode::Char(c),
        };
        let wishes = keys
            .chars()
            .map(|c| state.key(KeyEvent::new(code(c), KeyModifiers::NONE)));
        wishes.last().unwrap()
    }

    #[test]
    fn q_and_control_c_quit_also_while_something_is_typed() {
        assert_eq!(press(&mut state(), "q"), Wish::Quit);
        let mut typing = state();
        press(&mut typing, "d1");
        let control_c = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(typing.key(control_c), Wish::Quit);
    }

    #[test]
    fn delay_is_typed_and_a_wrong_one_changes_nothing() {
        let mut state = state();
        assert_eq!(press(&mut state, "d0.5\n"), Wish::Read);
        assert_eq!(state.delay, 500);
        press(&mut state, "s0\n");
        assert_eq!((state.delay, state.typed.clone()), (500, None));
        press(&mut state, "d9\x1b");
        assert_eq!(state.delay, 500);
        press(&mut state, "d17\x08\n");
        assert_eq!(state.delay, 1000);
    }

    #[test]
    fn sort_keys_are_those_of_top() {
        let mut state = state();
        assert_eq!(state.sort, Column::Cpu);
        press(&mut state, "N");
        assert_eq!(state.sort, Column::Pid);
        press(&mut state, "P>");
        assert_eq!(state.sort, Column::Packets);
        press(&mut state, "<<<");
        assert_eq!(state.sort, Column::Cpu);
        press(&mut state, "R");
        assert!(state.reverse);
    }

    #[test]
    fn filter_takes_letters_that_are_keys_elsewhere() {
        let mut state = state();
        press(&mut state, "/qtap\n");
        assert_eq!((state.filter.as_str(), state.totals), ("qtap", false));
        press(&mut state, "/\x1b");
        assert_eq!(state.filter, "");
    }

    #[test]
    fn help_goes_with_any_key() {
        let mut state = state();
        press(&mut state, "h");
        assert!(state.help);
        press(&mut state, "t");
        assert_eq!((state.help, state.totals), (false, false));
    }
}
