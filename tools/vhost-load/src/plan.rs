// SPDX-License-Identifier: GPL-2.0

//! What a run will be: options checked against each other, and all that follows from them.

use std::time::Duration;

use anyhow::{bail, ensure, Context, Result};
use vhost_driver::Indirect;
use vhost_uapi::features;

use crate::args::{Options, Xdp};
use crate::backend::{self, BackendOptions, Kind};
use crate::frame::{self, Shape, LEAST_IP, PEER, SIZES};
use crate::inject::{Emission, Injection};
use crate::pace::Pace;
use crate::session::SessionOptions;
use crate::vring::Cut;

/// A run, with all that is derived from its options.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The options as given.
    pub options: Options,
    /// How to set up the device.
    pub session: SessionOptions,
    /// Packets to send.
    pub count: u64,
    /// For no longer than this.
    pub duration: Option<Duration>,
    /// When packets leave.
    pub pace: Pace,
    /// How long to wait for anything to move.
    pub stall: Duration,
    /// What the guest sends.
    pub shape: Shape,
    /// Layout of chains.
    pub cut: Cut,
    /// Bytes of a receive buffer.
    pub rx_len: u32,
    /// Buffers of each ring.
    pub slots: [u32; 2],
    /// A fault to make.
    pub injection: Option<Injection>,
}

/// Largest frame in a tunnel that needs no segmentation: headers and one segment.
const MAX_TUNNELED: usize = 104 + 1448;
/// Most bytes of buffers for one ring.
const BUFFER_LIMIT: u64 = 64 << 20;
/// Buffers begin at multiples of this.
const BUFFER_ALIGN: u64 = 64;

impl Plan {
    /// Checks the options against each other.
    ///
    /// # Errors
    ///
    /// What is wrong, and what would be right.
    pub fn new(options: &Options) -> Result<Self> {
        let mut features = parse_features(&options.features)?;
        if options.iotlb.is_some() || options.iommu {
            features |= 1 << features::ACCESS_PLATFORM;
        }
        let shape = shape(options, features)?;
        let cut = Cut {
            header: features::net_header_size(features),
            descriptors: options.chain,
        };
        let packet = cut.header + options.size as u32; // CAST: Below 65536, checked with the shape.
        check_ring(options, cut, packet)?;
        let chains = chains_in_ring(options, features);
        let (rx_len, rx_slots) = receive_buffers(options, features, packet, chains)?;
        let tx_slots = slots(options, packet, chains);
        let count = options.count.unwrap_or(if options.seconds.is_some() {
            u64::MAX / 2
        } else {
            10_000
        });
        Ok(Self {
            session: session(
                options,
                features,
                BackendOptions::new(options, &shape)?,
                [bytes(rx_slots, rx_len), bytes(tx_slots, packet)],
            )?,
            count,
            duration: options.seconds.map(Duration::from_secs),
            pace: Pace::new(options),
            stall: Duration::from_secs(options.stall),
            shape,
            cut,
            rx_len,
            slots: [rx_slots, tx_slots],
            injection: injection(options)?,
            options: options.clone(),
        })
    }

    /// Bytes from one buffer to the next.
    pub fn stride(len: u32) -> u64 {
        u64::from(len).next_multiple_of(BUFFER_ALIGN)
    }

    /// How many packets are sent in all, faults included.
    pub fn total(&self) -> u64 {
        Emission::total(self.count, self.injection)
    }

    /// How many sequence numbers `sent` packets use up, with the fault among them.
    pub fn sequences(&self, sent: u64) -> u64 {
        (sent + self.count).saturating_sub(self.total())
    }

    /// How many sequence numbers are to arrive of `sent` packets to the wire.
    pub fn arriving(&self, sent: u64) -> u64 {
        if self.options.xdp == Some(Xdp::Drop) {
            0
        } else {
            self.sequences(sent)
        }
    }

    /// With how many buffers left the rx ring is refilled: with too few for a packet at the latest, as the device waits then.
    pub fn refill_at(&self) -> u16 {
        let packet = self.cut.header + self.shape.size as u32; // CAST: Below 65536.
        let too_few = packet.div_ceil(self.rx_len) - 1;
        let too_few = u16::try_from(too_few).unwrap_or(u16::MAX);
        self.options.refill_at.unwrap_or(u16::MAX).max(too_few)
    }

    /// Whether the device spreads a packet over several receive buffers.
    pub fn mergeable(&self) -> bool {
        features::has(self.session.features, features::MRG_RXBUF)
    }
}

fn parse_features(list: &str) -> Result<u128> {
    if list == "none" {
        return Ok(0);
    }
    const IN_USE: &[u32] = &[
        features::MRG_RXBUF,
        features::NOTIFY_ON_EMPTY,
        features::ANY_LAYOUT,
        features::INDIRECT,
        features::EVENT_IDX,
        features::VERSION_1,
        features::IN_ORDER,
        features::RING_RESET,
        features::GUEST_UDP_TUNNEL_GSO,
        features::HOST_UDP_TUNNEL_GSO,
    ];
    let known = || {
        IN_USE
            .iter()
            .map(|bit| features::describe(1 << bit))
            .collect::<Vec<_>>()
            .join(", ")
    };
    list.split(',').try_fold(0, |set, name| {
        let found = features::NAMES
            .iter()
            .find(|(known, bit)| *known == name && IN_USE.contains(bit));
        let (_, bit) = found
            .with_context(|| format!("feature `{name}` is not one of: {}, or none", known()))?;
        Ok(set | 1 << bit)
    })
}

fn shape(options: &Options, features: u128) -> Result<Shape> {
    ensure!(
        SIZES.contains(&options.size),
        "--size {} is not in 43..=65535",
        options.size
    );
    if options.tunnel {
        check_tunnel(options, features)?;
    }
    let most = backend::max_plain(options.backend);
    let segmented = options.size > most && !options.jumbo;
    ensure!(
        !segmented || !features::has(features, features::ANY_LAYOUT),
        "with any_layout the tap has no header that could ask for segmentation: add --jumbo, or --size {most} at most"
    );
    let kind = match options.backend {
        _ if options.tunnel => frame::Kind::Tunnel,
        _ if segmented => frame::Kind::Segment,
        // Nothing else finds its way there.
        Kind::Tun | Kind::Ipvtap => frame::Kind::Ip,
        Kind::Tap | Kind::Macvtap | Kind::Packet => frame::Kind::Plain,
    };
    ensure!(
        kind == frame::Kind::Plain || options.size >= LEAST_IP,
        "--size {} is too small for an IP packet: {LEAST_IP} at least, or another --backend",
        options.size
    );
    Ok(Shape {
        size: options.size,
        kind,
        bare: options.backend == Kind::Tun,
        source: backend::guest(options)?,
        destination: PEER,
    })
}

fn check_tunnel(options: &Options, features: u128) -> Result<()> {
    let has = |bit| features::has(features, bit);
    ensure!(
        has(features::GUEST_UDP_TUNNEL_GSO) && has(features::HOST_UDP_TUNNEL_GSO),
        "--tunnel needs the features guest_udp_tunnel_gso and host_udp_tunnel_gso"
    );
    ensure!(
        options.backend == Kind::Tap && !has(features::ANY_LAYOUT),
        "--tunnel needs a tap with a header: --backend tap, and no any_layout"
    );
    ensure!(
        options.size > MAX_TUNNELED,
        "--tunnel is for frames that need segmentation: --size {} at least",
        MAX_TUNNELED + 1
    );
    Ok(())
}

fn check_ring(options: &Options, cut: Cut, packet: u32) -> Result<()> {
    let num = options.ring_size;
    ensure!(
        num.is_power_of_two() && num <= 32768,
        "--ring-size {num} is not a power of two in 1..=32768"
    );
    ensure!(options.chain >= 1, "a chain has at least 1 descriptor");
    ensure!(
        options.chain <= num,
        "--chain {} is longer than the ring of {num}",
        options.chain
    );
    let body = packet - cut.header;
    ensure!(
        options.chain - 1 <= body,
        "--chain {} has more descriptors than {body} bytes to put into them",
        options.chain
    );
    ensure!(
        !options.identity || options.regions == 1,
        "--identity goes with --regions 1 only"
    );
    ensure!(
        options.iotlb.is_none() || options.regions == 1,
        "--iotlb goes with --regions 1 only"
    );
    Ok(())
}

fn chains_in_ring(options: &Options, features: u128) -> u32 {
    let indirect = features::has(features, features::INDIRECT) && options.chain > 1;
    options.ring_size / if indirect { 1 } else { options.chain }
}

fn slots(options: &Options, len: u32, chains: u32) -> u32 {
    let affordable = u32::try_from(BUFFER_LIMIT / Plan::stride(len)).unwrap_or(u32::MAX);
    chains
        .min(affordable)
        .min(options.buffers.unwrap_or(u32::MAX))
        .max(1)
}

fn bytes(slots: u32, len: u32) -> u64 {
    u64::from(slots) * Plan::stride(len)
}

/// Length and number of receive buffers.
fn receive_buffers(
    options: &Options,
    features: u128,
    packet: u32,
    chains: u32,
) -> Result<(u32, u32)> {
    /// What Linux guests use for mergeable buffers.
    const MERGEABLE: u32 = 1536;
    let mergeable = features::has(features, features::MRG_RXBUF);
    let most = slots(options, 1, chains);
    let len = match options.rx_buf {
        Some(len) => len,
        // In a ring too short for small buffers, large ones.
        None if mergeable => packet.min(MERGEABLE).max(packet.div_ceil(most)),
        None => packet,
    };
    let header = features::net_header_size(features);
    ensure!(
        len >= header + options.chain,
        "--rx-buf {len} has no room for the header of {header} bytes and {} descriptors",
        options.chain
    );
    let slots = slots(options, len, chains);
    let room = if mergeable {
        u64::from(len) * u64::from(slots)
    } else {
        u64::from(len)
    };
    ensure!(
        room >= u64::from(packet),
        "{slots} receive buffers of {len} bytes hold no packet of {packet}: raise --rx-buf, --ring-size or --buffers, or lower --size"
    );
    Ok((len, slots))
}

fn session(
    options: &Options,
    features: u128,
    backend: BackendOptions,
    buffer_bytes: [u64; 2],
) -> Result<SessionOptions> {
    let entries = if options.chain > 1 { options.chain } else { 0 };
    let entries = u16::try_from(entries).context("--chain")?;
    let num = u16::try_from(options.ring_size).context("--ring-size")?;
    ensure!(
        Indirect::size(num, entries) <= BUFFER_LIMIT,
        "indirect tables of {entries} descriptors for a ring of {num} take more than {} MiB",
        BUFFER_LIMIT >> 20
    );
    Ok(SessionOptions {
        node: options.device.clone(),
        features,
        ring_size: options.ring_size,
        start: options.start,
        indirect_entries: entries,
        buffer_bytes,
        regions: options.regions,
        identity: options.identity,
        iotlb: options.iotlb,
        top: options.top,
        iommu: options.iommu,
        busyloop: options.busyloop,
        backend,
        kthread: options.kthread,
    })
}

fn injection(options: &Options) -> Result<Option<Injection>> {
    const BY_DEFAULT: u64 = 100;
    let Some(fault) = options.inject else {
        return Ok(None);
    };
    let at = options.count.map_or(BY_DEFAULT, |count| count / 2);
    if options.count.is_some_and(|count| count < 4) {
        bail!("--inject needs --count 4 or more");
    }
    Ok(Some(Injection { fault, at }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Mode};
    use clap::Parser;

    fn plan(args: &[&str]) -> Result<Plan> {
        let cli = Cli::try_parse_from([&["vhost-load", "tx"], args].concat())?;
        let Mode::Tx(options) = cli.mode else {
            bail!("tx was asked for")
        };
        Plan::new(&options)
    }

    fn refusal(args: &[&str]) -> String {
        plan(args).expect_err("refused").to_string()
    }

    #[test]
    fn defaults_make_a_plan() {
        let plan = plan(&[]).unwrap();
        assert_eq!(
            (plan.count, plan.slots, plan.rx_len),
            (10_000, [256, 256], 76)
        );
        assert_eq!(
            features::describe(plan.session.features),
            "mrg_rxbuf,indirect,event_idx,version_1"
        );
    }

    #[test]
    fn bad_options_are_refused_with_the_reason() {
        assert!(refusal(&["--size", "42"]).contains("43..=65535"));
        assert!(refusal(&["--size", "59", "--backend", "tun"]).contains("60 at least"));
        assert!(refusal(&["--size", "65536"]).contains("43..=65535"));
        assert!(refusal(&["--ring-size", "3"]).contains("power of two"));
        assert!(refusal(&["--ring-size", "65536"]).contains("power of two"));
        assert!(refusal(&["--ring-size", "4", "--chain", "5"]).contains("longer than the ring"));
        assert!(refusal(&["--features", "event_idx,packed"]).contains("`packed`"));
        assert!(refusal(&["--size", "9000", "--features", "any_layout"]).contains("--jumbo"));
        assert!(
            refusal(&["--size", "9000", "--rx-buf", "1536", "--features", "none"])
                .contains("hold no packet")
        );
        let tunnel = "version_1,guest_udp_tunnel_gso,host_udp_tunnel_gso";
        let tunnel = |size| refusal(&["--tunnel", "--features", tunnel, "--size", size]);
        assert!(tunnel("1552").contains("--size 1553"));
        assert!(refusal(&["--tunnel", "--size", "9000"]).contains("host_udp_tunnel_gso"));
        assert!(refusal(&["--identity", "--regions", "2"]).contains("--regions 1"));
        assert!(refusal(&["--iotlb", "2", "--regions", "2"]).contains("--regions 1"));
        assert!(refusal(&["--inject", "swap", "--count", "3"]).contains("--count 4"));
        assert!(refusal(&["--count", "0"]).contains("--count"));
        for (args, reason) in [
            ("--backend packet", "--backend packet needs --ifname"),
            ("--backend macvtap --ifname lo", "and --wire"),
            (
                "--backend packet --ifname lo --wire lo --jumbo",
                "--jumbo is for --backend tap",
            ),
            (
                "--backend packet --ifname lo --wire lo --requeue 5",
                "--requeue is for",
            ),
            ("--backend tun --xdp pass", "--xdp is for --backend tap"),
            ("--xdp pass --size 9000", "--size 1514 at most"),
            ("--xdp redirect", "--via go together"),
            ("--xdp pass --via lo --wire lo", "--via go together"),
            ("--via lo --xdp redirect", "--wire"),
            ("--backpressure", "--flood"),
            ("--top --identity", "--identity"),
            ("--iommu --regions 2", "--regions"),
            ("--take 100", "--iommu"),
        ] {
            let args: Vec<&str> = args.split(' ').collect();
            assert!(
                refusal(&args).contains(reason),
                "{args:?}: {}",
                refusal(&args)
            );
        }
    }

    #[test]
    fn large_packets_get_large_buffers_in_small_rings() {
        let small = plan(&["--size", "65535", "--ring-size", "1"]).unwrap();
        assert_eq!((small.rx_len, small.slots), (65547, [1, 1]));
        let large = plan(&["--size", "65535", "--ring-size", "64"]).unwrap();
        assert_eq!(large.rx_len, 1536);
        let memory = plan(&[
            "--size",
            "65535",
            "--ring-size",
            "32768",
            "--features",
            "none",
        ])
        .unwrap();
        assert!(memory.session.buffer_bytes[0] <= BUFFER_LIMIT && memory.slots[0] > 1000);
    }

    #[test]
    fn ring_is_refilled_before_a_packet_finds_too_little() {
        let args = ["--size", "12510", "--refill-at", "0"];
        assert_eq!(plan(&args).unwrap().refill_at(), 8);
        assert_eq!(plan(&["--refill-at", "0"]).unwrap().refill_at(), 0);
        assert_eq!(plan(&[]).unwrap().refill_at(), u16::MAX);
    }

    #[test]
    fn direct_chains_share_the_ring() {
        let args = ["--chain", "4", "--ring-size", "64", "--features"];
        assert_eq!(
            plan(&[&args[..], &["event_idx"]].concat()).unwrap().slots,
            [16, 16]
        );
        assert_eq!(
            plan(&[&args[..], &["indirect"]].concat()).unwrap().slots,
            [64, 64]
        );
    }
}
