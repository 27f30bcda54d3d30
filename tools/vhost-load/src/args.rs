// SPDX-License-Identifier: GPL-2.0

//! The command line.

use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;

use crate::backend::Kind;
use crate::inject::Fault;

/// Plays a guest's network driver against a vhost-net device, without a guest.
///
/// The rings are in this process's memory, the other end of the wire is a packet socket on the tap's interface, or on the
/// peer of a veth. Every payload is checked: nothing may be lost, reordered, corrupted or duplicated. One line of results goes to standard output.
///
/// Exit status: 0 if all is well, 1 if a check failed, 2 if the run could not be set up.
#[derive(Debug, Parser)]
#[command(version)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub mode: Mode,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Mode {
    /// Guest to host: packets go through the tx ring and are captured on the tap
    Tx(Options),
    /// Host to guest: packets are sent into the tap and arrive in the rx ring
    Rx(Options),
    /// Round trips: what goes through the tx ring is sent back by the host
    Rr(RrOptions),
}

/// Options of `rr`.
#[derive(Args, Debug)]
pub struct RrOptions {
    /// Round trips under way at a time, in each flow
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub outstanding: u32,
    /// Flows, each with a sequence of its own
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub flows: u32,
    /// Microseconds that the host sleeps before it answers a packet
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub think: u64,
    /// The others.
    #[command(flatten)]
    pub common: Options,
}

/// What an XDP program on the tap does with the guest's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Xdp {
    /// They go on
    Pass,
    /// All are dropped: none may arrive
    Drop,
    /// They leave through the veth --via, and what comes in there is redirected to the tap
    Redirect,
}

/// Options of all modes.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Device node
    #[arg(long, value_name = "NODE", default_value = "/dev/vhost-net")]
    pub device: PathBuf,
    /// Packets to send [default: 10000, or as many as --seconds allows]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Stop sending after this many seconds
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: Option<u64>,
    /// Bytes of a packet, with its Ethernet header: 43 (1 byte in UDP; of IP packets 60) to 65535. Above 1514 it is a TCP segment to be cut up by others
    #[arg(long, value_name = "BYTES", default_value_t = 64)]
    pub size: usize,
    /// Raise the tap's MTU for packets above 1514 bytes, in place of segmentation
    #[arg(long)]
    pub jumbo: bool,
    /// Send segments in UDP tunnels, and have a tap behind a bridge as the host's end
    #[arg(long, conflicts_with_all = ["jumbo", "wire", "flood", "xdp"])]
    pub tunnel: bool,
    /// Features to agree on, separated by commas; `none` for none
    #[arg(
        long,
        value_name = "LIST",
        default_value = "version_1,event_idx,indirect,mrg_rxbuf"
    )]
    pub features: String,
    /// Descriptors of each ring: a power of two, 1 to 32768
    #[arg(long, value_name = "N", default_value_t = 256)]
    pub ring_size: u32,
    /// What ring indices start at
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub start: u16,
    /// Descriptors of a chain; with 2 or more, the first holds the header alone
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub chain: u32,
    /// Kick after so many packets [default: when the ring is full]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub batch: Option<u32>,
    /// Take back sent packets all the time; without it, only when the ring is full, and then all of them
    #[arg(long)]
    pub stream: bool,
    /// Leave calls on while one is handled, as drivers did that made one pass an interrupt; without it they are off until
    /// nothing is left
    #[arg(long)]
    pub calls_on: bool,
    /// When a call has come and calls are off, look on for US microseconds before anything else: a call that comes then was
    /// under way, and is not one inside the handler
    #[arg(
        long,
        value_name = "US",
        default_value_t = 0,
        conflicts_with = "calls_on"
    )]
    pub settle: u64,
    /// Packets or receive buffers in the ring at a time [default: what fits]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub buffers: Option<u32>,
    /// Bytes of a receive buffer, header included [default: a whole packet; 1536 with mrg_rxbuf]
    #[arg(long, value_name = "BYTES")]
    pub rx_buf: Option<u32>,
    /// Refill the rx ring when no more than N buffers, or too few for a packet, are left in it [default: always]
    #[arg(long, value_name = "N")]
    pub refill_at: Option<u16>,
    /// Regions of the memory table
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub regions: usize,
    /// Give the device the owner's addresses as the guest's (one region)
    #[arg(long)]
    pub identity: bool,
    /// Put the device behind an IOMMU whose N mappings are all in the device's table
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub iotlb: Option<u32>,
    /// Have the memory at the top of the owner's address space
    #[arg(long, conflicts_with = "identity")]
    pub top: bool,
    /// Agree on access_platform, and be the IOMMU: the device is told of a page when it has missed it; pages lie in the
    /// owner's memory in any order
    #[arg(long, conflicts_with_all = ["identity", "regions", "iotlb"])]
    pub iommu: bool,
    /// Take a page away from the device every US microseconds
    #[arg(long, value_name = "US", requires = "iommu", value_parser = clap::value_parser!(u64).range(1..))]
    pub take: Option<u64>,
    /// Busy polling window in microseconds
    #[arg(long, value_name = "US")]
    pub busyloop: Option<u32>,
    /// One packet each US microseconds
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub pace: u64,
    /// Make that the mean of random times, whatever came before (a Poisson process)
    #[arg(long)]
    pub random: bool,
    /// Sleep until the next packet is due, in place of waiting on the CPU
    #[arg(long)]
    pub doze: bool,
    /// Detach and attach the backend every MS milliseconds
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub reattach: Option<u64>,
    /// What is behind the rings
    #[arg(long, value_name = "KIND", default_value = "tap")]
    pub backend: Kind,
    /// Interface of the backend; a tap or tun of this name is made if there is none [default: a new tap]
    #[arg(long, value_name = "IFNAME")]
    pub ifname: Option<String>,
    /// Interface at the other end of the wire: with macvtap, ipvtap, packet and --via the peer of a veth [default: the tap]
    #[arg(long, value_name = "IFNAME")]
    pub wire: Option<String>,
    /// Send buffer of the backend in bytes [default: unlimited; of a packet socket, the system's]
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(i32).range(1..))]
    pub sndbuf: Option<i32>,
    /// Have the interface wait while the tap's ring is full, in place of dropping (IFF_BACKPRESSURE); needs --flood
    #[arg(long, requires = "flood")]
    pub backpressure: bool,
    /// Send to the guest without waiting for it, through the interface's queueing discipline
    #[arg(long)]
    pub flood: bool,
    /// Detach and attach the queue of the tap or tun every MS milliseconds (TUNSETQUEUE)
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..))]
    pub requeue: Option<u64>,
    /// Attach an XDP program to the tap
    #[arg(long, value_name = "PROGRAM")]
    pub xdp: Option<Xdp>,
    /// Interface that --xdp redirect redirects to: a veth whose peer is --wire
    #[arg(long, value_name = "IFNAME", requires = "wire")]
    pub via: Option<String>,
    /// Have a kernel thread as worker (true), or a thread of this process (false)
    #[arg(long, value_name = "BOOL")]
    pub kthread: Option<bool>,
    /// CPU of the driver
    #[arg(long, value_name = "CPU")]
    pub cpu: Option<usize>,
    /// CPU of the worker
    #[arg(long, value_name = "CPU")]
    pub worker_cpu: Option<usize>,
    /// CPU of the host's end of the wire
    #[arg(long, value_name = "CPU")]
    pub peer_cpu: Option<usize>,
    /// Count packets only; tx packets by the interface's counter
    #[arg(long, conflicts_with = "inject")]
    pub no_verify: bool,
    /// Make a fault, to see that it is found
    #[arg(long, value_name = "FAULT")]
    pub inject: Option<Fault>,
    /// Give up when nothing has moved for S seconds
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..))]
    pub stall: u64,
    /// When the results are printed, keep the device until standard input ends
    #[arg(long)]
    pub linger: bool,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}
