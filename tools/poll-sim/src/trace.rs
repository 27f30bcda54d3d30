// SPDX-License-Identifier: GPL-2.0

//! When packets come.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{ensure, Context, Result};
use fastrand::Rng;

use crate::US;

/// A way in which packets come; times in microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trace {
    /// One each so often.
    Constant(u64),
    /// One each so often on average, whatever came before.
    Poisson(u64),
    /// So many, so close together, then a pause.
    Bursts(u64, u64, u64),
    /// The next comes so long after the one before was answered, give or take a fifth.
    PingPong(u64),
    /// As Poisson for some milliseconds, then nothing for some.
    OnOff(u64, u64, u64),
    /// Requests with keys of 250 bytes, answered with values of 2,048: so many under way.
    Requests(u64),
    /// Nanoseconds at which packets came, one a line.
    File(PathBuf),
}

impl Trace {
    /// One of each kind that is made up, and more of those where much depends on the time.
    pub fn all() -> Vec<Self> {
        let constant = [1, 2, 5, 10, 20, 25, 40, 60, 100, 200].map(Self::Constant);
        let poisson = [5, 25, 100].map(Self::Poisson);
        let mut all: Vec<Self> = constant.into_iter().chain(poisson).collect();
        all.extend([
            Self::Bursts(8, 2, 400),
            Self::Bursts(64, 5, 2_000),
            Self::PingPong(30),
            Self::PingPong(1_000),
            Self::OnOff(10, 5, 20),
            Self::Requests(128),
        ]);
        all
    }

    /// The times between `count` packets, in nanoseconds; of a file, all.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or whose times are none, or not in order.
    pub fn gaps(&self, count: usize, seed: u64) -> Result<Vec<u64>> {
        let mut rng = Rng::with_seed(seed);
        let gap = |at: u64, rng: &mut Rng| match *self {
            Self::Constant(us) => us * US,
            Self::Poisson(us) => exponential(rng, us * US),
            Self::Bursts(size, close, pause) => {
                US * if (at + 1) % size == 0 { pause } else { close }
            }
            Self::PingPong(us) => rng.u64(us * US * 4 / 5..=us * US * 6 / 5),
            _ => 0,
        };
        match self {
            Self::OnOff(us, on, off) => Ok(on_off(
                &mut rng,
                count,
                [us * US, on * 1000 * US, off * 1000 * US],
            )),
            Self::Requests(outstanding) => Ok(requests(&mut rng, count, *outstanding)),
            Self::File(path) => recorded(path),
            _ => Ok((0..).take(count).map(|at| gap(at, &mut rng)).collect()),
        }
    }
}

/// A time of an exponential distribution.
fn exponential(rng: &mut Rng, mean: u64) -> u64 {
    let share = 1.0 - rng.f64();
    // CAST: Times below a minute; what comes after the point does not matter.
    (-share.ln() * mean as f64) as u64
}

fn on_off(rng: &mut Rng, count: usize, [mean, on, off]: [u64; 3]) -> Vec<u64> {
    let mut at = 0;
    let gap = |_| {
        let gap = exponential(rng, mean);
        at += gap;
        if at < on {
            return gap;
        }
        at = 0;
        gap + off
    };
    (0..count).map(gap).collect()
}

/// What a worker sees of a server: a packet for each request, two for each answer. A client has its answer after a while, and
/// asks again.
fn requests(rng: &mut Rng, count: usize, outstanding: u64) -> Vec<u64> {
    const SERVICE: u64 = 12 * US;
    const NETWORK: u64 = 60 * US;
    const NEXT_PACKET: u64 = US;

    let mut times = Vec::new();
    let mut arriving: BinaryHeap<Reverse<u64>> =
        (0..outstanding).map(|at| Reverse(at * US)).collect();
    let mut free = 0;
    while let Some(Reverse(at)) = arriving.pop().filter(|_| times.len() < count) {
        let done = free.max(at) + exponential(rng, SERVICE);
        times.extend([at, done, done + NEXT_PACKET]);
        free = done;
        arriving.push(Reverse(done + exponential(rng, NETWORK) + NETWORK));
    }
    times.sort_unstable();
    between(&times)
}

fn between(times: &[u64]) -> Vec<u64> {
    times.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

fn recorded(path: &PathBuf) -> Result<Vec<u64>> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    let lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let times: Vec<u64> = lines
        .map(|line| {
            line.parse()
                .with_context(|| format!("{name}: '{line}' is no time in nanoseconds"))
        })
        .collect::<Result<_>>()?;
    ensure!(times.len() > 1, "{name}: there are no two times in it");
    ensure!(times.is_sorted(), "{name}: the times are not in order");
    Ok(between(&times))
}

impl fmt::Display for Trace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Constant(us) => write!(out, "constant:{us}"),
            Self::Poisson(us) => write!(out, "poisson:{us}"),
            Self::Bursts(count, us, pause) => write!(out, "bursts:{count}:{us}:{pause}"),
            Self::PingPong(us) => write!(out, "ping-pong:{us}"),
            Self::OnOff(us, on, off) => write!(out, "on-off:{us}:{on}:{off}"),
            Self::Requests(count) => write!(out, "requests:{count}"),
            Self::File(path) => write!(out, "file:{}", path.display()),
        }
    }
}

impl FromStr for Trace {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const USAGE: &str = "a trace is constant:US, poisson:US, bursts:COUNT:US:PAUSE_US, ping-pong:US, \
                             on-off:US:ON_MS:OFF_MS, requests:OUTSTANDING or file:PATH, its numbers from 1 to 1000000";
        let (kind, rest) = text.split_once(':').ok_or(USAGE)?;
        if kind == "file" {
            return Ok(Self::File(rest.into()));
        }
        let number = |text: &str| {
            text.parse()
                .ok()
                .filter(|number| (1..=1_000_000).contains(number))
        };
        let numbers: Option<Vec<u64>> = rest.split(':').map(number).collect();
        match (kind, &numbers.unwrap_or_default()[..]) {
            ("constant", &[us]) => Ok(Self::Constant(us)),
            ("poisson", &[us]) => Ok(Self::Poisson(us)),
            ("bursts", &[count, us, pause]) => Ok(Self::Bursts(count, us, pause)),
            ("ping-pong", &[us]) => Ok(Self::PingPong(us)),
            ("on-off", &[us, on, off]) => Ok(Self::OnOff(us, on, off)),
            ("requests", &[count]) => Ok(Self::Requests(count)),
            _ => Err(USAGE.into()),
        }
    }
}
