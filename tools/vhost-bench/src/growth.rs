// SPDX-License-Identifier: GPL-2.0

//! Many devices at the same time: in one process, in many, in pairs over bridges.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, ensure, Context, Result};
use clap::{Args, Parser, ValueEnum};
use serde_json::{json, Value};
use vhost_load::args::{Cli, Mode};
use vhost_load::gate::Gate;
use vhost_load::plan::Plan;
use vhost_load::report::Measured;
use vhost_load::session::Session;
use vhost_load::{run, rx, tx};
use vhost_uapi::{netdev, Bridge, Policy, VringPoll};

/// What the devices are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shape {
    /// Devices of one process, each sends
    Process,
    /// As many processes, one device each, which sends
    Processes,
    /// Pairs in one process: one device sends, over a bridge, to the other
    Pairs,
}

/// Options of `growth`.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Device node
    #[arg(long, value_name = "NODE", default_value = "/dev/vhost-net")]
    pub device: String,
    /// What the devices are
    #[arg(long)]
    pub shape: Shape,
    /// Devices, or pairs of them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256))]
    pub number: u32,
    /// Packets of each
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub count: u64,
    /// One packet each US microseconds
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub pace: u64,
    /// Busy polling window in microseconds
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub busyloop: u32,
    /// Poll with the policy `adaptive`
    #[arg(long)]
    pub adaptive: bool,
    /// Be one of the processes: say `ready`, send when a line comes
    #[arg(long, hide = true)]
    pub one: bool,
    /// Print the results as JSON; there is no other form
    #[arg(long)]
    pub json: bool,
}

impl Options {
    /// Options of `vhost-load` for one device.
    fn plan(&self, mode: &str) -> Result<Plan> {
        let numbers = [self.count, self.pace, self.busyloop.into()].map(|n| n.to_string());
        let [count, pace, busyloop] = &numbers;
        let cli = Cli::try_parse_from([
            "vhost-load",
            mode,
            "--no-verify",
            "--device",
            &self.device,
            "--count",
            count,
            "--pace",
            pace,
            "--busyloop",
            busyloop,
        ])?;
        match &cli.mode {
            Mode::Tx(options) | Mode::Rx(options) => Plan::new(options),
            Mode::Rr(_) => bail!("rr is not for many devices"),
        }
    }

    fn open(&self, plan: &Plan, mode: run::Mode) -> Result<Session> {
        let session = run::open(plan, mode)?;
        if self.adaptive {
            let poll = VringPoll {
                policy: Policy::Adaptive,
                ..VringPoll::default()
            };
            for index in [0, 1] {
                session.device.vhost.set_poll(index, poll)?;
            }
        }
        Ok(session)
    }
}

/// What devices did together.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    /// When the last packet was there.
    end: Option<Instant>,
    packets: u64,
    worker: Duration,
    kicks: u64,
    calls: u64,
}

impl Sum {
    fn add(&mut self, other: Self) {
        self.end = self.end.max(other.end);
        self.packets += other.packets;
        self.worker += other.worker;
        self.kicks += other.kicks;
        self.calls += other.calls;
    }

    /// How long it took from `start` until the last packet was there.
    fn since(&self, start: Instant) -> Duration {
        self.end
            .map_or(Duration::ZERO, |end| end.saturating_duration_since(start))
    }

    fn of(session: &mut Session, packets: u64, measured: &Measured) -> Result<Self> {
        session.rx.take_calls()?;
        session.tx.take_calls()?;
        Ok(Self {
            end: None,
            packets,
            worker: measured.worker_cpu.unwrap_or_default(),
            kicks: session.rx.kicks() + session.tx.kicks(),
            calls: session.rx.calls() + session.tx.calls(),
        })
    }

    fn json(&self, elapsed: Duration) -> Value {
        json!({
            "result": "OK",
            "packets": self.packets,
            "worker_cpu_ns": nanos(self.worker),
            "elapsed_ns": nanos(elapsed),
            "kicks": self.kicks,
            "calls": self.calls,
        })
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Has all devices work at the same time; answers as `vhost-load --json` does.
///
/// # Errors
///
/// A device that could not be set up, packets that were lost.
pub fn measure(options: &Options) -> Result<Value> {
    let (sum, elapsed) = match options.shape {
        _ if options.one => together(options, |_, start| {
            sender(options, || {
                println!("ready");
                std::io::stdin().read_line(&mut String::new())?;
                start.wait()
            })
        })?,
        Shape::Process => together(options, |_, start| sender(options, || start.wait()))?,
        Shape::Pairs => together(options, |number, start| pair(options, number, start))?,
        Shape::Processes => processes(options)?,
    };
    let expected = options.count * u64::from(options.number);
    ensure!(
        sum.packets == expected,
        "{} of {expected} packets arrived",
        sum.packets
    );
    Ok(sum.json(elapsed))
}

/// Where a thread waits for all others.
struct Start {
    ready: Sender<bool>,
    go: Receiver<()>,
}

impl Start {
    fn wait(&self) -> Result<()> {
        self.ready.send(true)?;
        self.go.recv().context("another device could not be set up")
    }
}

/// Runs each in a thread of this process. Answers what they did, and how long it took from when all were ready.
fn together<F>(options: &Options, each: F) -> Result<(Sum, Duration)>
where
    F: Fn(u32, &Start) -> Result<Sum> + Sync,
{
    let (ready, readies) = mpsc::channel();
    thread::scope(|scope| {
        let mut threads = Vec::new();
        let mut goes = Vec::new();
        for number in 0..options.number {
            let (send, go) = mpsc::channel();
            let ready = ready.clone();
            let each = &each;
            goes.push(send);
            threads.push(scope.spawn(move || {
                let start = Start { ready, go };
                let done = each(number, &start);
                if done.is_err() {
                    // Nobody listens if it was ready.
                    let _ = start.ready.send(false);
                }
                done
            }));
        }
        let all = (0..options.number).all(|_| readies.recv() == Ok(true));
        let start = Instant::now();
        if all {
            for go in &goes {
                go.send(())?;
            }
        }
        // Those that wait and may not go end.
        drop(goes);
        let mut sum = Sum::default();
        let mut failure = Ok(());
        for thread in threads {
            match run::join(thread) {
                Ok(one) => sum.add(one),
                Err(err) => failure = failure.and(Err(err)),
            }
        }
        failure.map(|()| (sum, sum.since(start)))
    })
}

/// One device that sends, when `start` returns.
fn sender(options: &Options, start: impl FnOnce() -> Result<()>) -> Result<Sum> {
    let plan = options.plan("tx")?;
    let mut session = options.open(&plan, run::Mode::Tx)?;
    start()?;
    let gate = Gate::new(u64::MAX);
    let mut measured = Measured::default();
    let name = session.device.backend.name().to_owned();
    finding(tx::drive(&plan, &mut session, &gate, &mut measured)?)?;
    let end = Some(Instant::now());
    let packets = netdev::statistic(&name, "rx_packets")?;
    let sum = Sum::of(&mut session, packets, &measured)?;
    Ok(Sum { end, ..sum })
}

fn finding(found: Result<(), String>) -> Result<()> {
    found.map_err(|what| anyhow!(what))
}

/// Two devices on the ports of a bridge of their own.
fn pair(options: &Options, number: u32, start: &Start) -> Result<Sum> {
    let (from, to) = (options.plan("tx")?, options.plan("rx")?);
    let mut sends = options.open(&from, run::Mode::Tx)?;
    // Workers are known by the thread that sets the owner: the other has its own.
    let open = || options.open(&to, run::Mode::Rx);
    let mut receives = thread::scope(|scope| run::join(scope.spawn(open)))?;
    let ports = [&sends, &receives].map(|session| session.device.backend.name().to_owned());
    let [one, other] = &ports;
    let _bridge = Bridge::new(&format!("pair{number}"), &[one, other])?;
    let gate = Gate::new(receives.device.backend.rx_window(from.shape.size)?);
    start.wait()?;

    let begin = Instant::now();
    let (mut sent, mut received) = (Measured::default(), Measured::default());
    let packets = thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let found = tx::drive(&from, &mut sends, &gate, &mut sent);
            gate.close();
            found
        });
        let arrived = rx::receive(&to, &mut receives, &gate, &mut received);
        finding(run::join(sender)?)?;
        let (found, checker) = arrived?;
        finding(found)?;
        anyhow::Ok(checker.tally().received)
    })?;
    let mut sum = Sum::of(&mut sends, packets, &sent)?;
    sum.add(Sum::of(&mut receives, 0, &received)?);
    // After the last packet the receiver waits for more, and finds out late that none comes.
    sum.end = Some(begin + received.elapsed);
    Ok(sum)
}

/// A process with one device.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn new(options: &Options) -> Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["growth", "--one", "--shape", "process", "--number", "1"]);
        for (option, value) in [
            ("--count", options.count),
            ("--pace", options.pace),
            ("--busyloop", options.busyloop.into()),
        ] {
            command.args([option, &value.to_string()]);
        }
        if options.adaptive {
            command.arg("--adaptive");
        }
        command.args(["--device", &options.device]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("another process")?;
        let output = child.stdout.take().context("its output")?;
        let input = child.stdin.take().context("its input")?;
        Ok(Self {
            child,
            input,
            output: BufReader::new(output),
        })
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(line.ends_with('\n'), "a process ended too early");
        Ok(line)
    }

    fn result(mut self) -> Result<Sum> {
        let report: Value = serde_json::from_str(&self.line()?)?;
        ensure!(self.child.wait()?.success(), "a process failed");
        let number = |key: &str| {
            let number = report.get(key).and_then(Value::as_u64);
            number.with_context(|| format!("a process gave no {key}"))
        };
        Ok(Sum {
            end: Some(Instant::now()),
            packets: number("packets")?,
            worker: Duration::from_nanos(number("worker_cpu_ns")?),
            kicks: number("kicks")?,
            calls: number("calls")?,
        })
    }
}

/// Starts a process for each device, and has them send when all are ready.
fn processes(options: &Options) -> Result<(Sum, Duration)> {
    let mut all = Vec::new();
    for _ in 0..options.number {
        all.push(Process::new(options)?);
    }
    for process in &mut all {
        ensure!(
            process.line()? == "ready\n",
            "a process said something else"
        );
    }
    let start = Instant::now();
    for process in &mut all {
        process.input.write_all(b"\n")?;
    }
    let mut sum = Sum::default();
    for process in all {
        sum.add(process.result()?);
    }
    Ok((sum, sum.since(start)))
}
