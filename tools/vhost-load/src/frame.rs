// SPDX-License-Identifier: GPL-2.0

//! The frames that are sent: what they look like, and whether one that arrived is what was sent.
//!
//! A frame carries a stamp (flow, sequence number, size, checksum) and filler that depends on the sequence number. Plain frames
//! have an Ethernet type that no protocol claims, so that the host's stack drops them at once. Where only IP passes they are
//! IPv4 packets of a protocol that nobody has, and frames larger than an MTU are TCP segments, as segmentation offload
//! knows no others. A tunnel carries such a segment in UDP, as VXLAN does (RFC 7348).

use std::ops::Range;

use crate::sums::{checksum, filler, ones_complement_sum};

/// An Ethernet address.
pub type Mac = [u8; 6];

/// Who sends or receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    /// Ethernet address.
    pub mac: Mac,
    /// IPv4 address.
    pub ip: [u8; 4],
}

/// The guest: its addresses are locally administered, and one for documentation.
pub const GUEST: End = End {
    mac: [0x02, 0, 0, 0, 0x56, 0x01],
    ip: [192, 0, 2, 1],
};
/// Whom the guest sends to. It is nobody, so that the host's stack drops what is sent to it.
pub const PEER: End = End {
    mac: [0x02, 0, 0, 0, 0x56, 0x02],
    ip: [192, 0, 2, 2],
};

/// Smallest and largest frame, in bytes with the Ethernet header and without the checksum behind it. A UDP datagram with one byte
/// is the smallest.
pub const SIZES: Range<usize> = 43..65536;
/// Smallest frame that is not [`Kind::Plain`].
pub const LEAST_IP: usize = 60;
/// Largest frame that needs no segmentation on an ordinary interface.
pub const MAX_PLAIN: usize = 1514;
/// IP protocol of plain packets: "for experimentation and testing" (RFC 3692).
const IPPROTO_EXPERIMENTAL: u8 = 253;
const IPPROTO_TCP: u8 = 6;
const IPPROTO_UDP: u8 = 17;

/// Ethernet type of plain frames: "local experimental 1" of IEEE 802.
const ETH_P_EXPERIMENTAL: u16 = 0x88B5;
const ETH_P_IP: u16 = 0x0800;
const ETH_SIZE: usize = 14;
const IP_SIZE: usize = 20;
const TCP_SIZE: usize = 20;
const UDP_SIZE: usize = 8;
const VXLAN_SIZE: usize = 8;
/// What a tunnel puts in front of a frame.
const TUNNEL_SIZE: usize = ETH_SIZE + IP_SIZE + UDP_SIZE + VXLAN_SIZE;
const MOST_HEADERS: usize = TUNNEL_SIZE + ETH_SIZE + IP_SIZE + TCP_SIZE;
/// TCP payload of a segment.
const GSO_SIZE: u16 = 1448;

const MAGIC: u32 = 0x7668_6c64;
/// Bytes of a stamp; the checksum is its end.
pub const STAMP_SIZE: usize = 24;

/// Bytes of the largest virtio-net header.
pub const MAX_HEADER: usize = 24;
const HEADER_F_NEEDS_CSUM: u8 = 1;
const HEADER_GSO_TCPV4: u8 = 1;
const HEADER_GSO_UDP_TUNNEL_IPV4: u8 = 0x20;

/// What a frame is, from its headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A frame of a type that no protocol claims.
    Plain,
    /// An IPv4 packet of a protocol that nobody has.
    Ip,
    /// A TCP segment, to be cut up by whoever needs it smaller.
    Segment,
    /// Such a segment in a UDP tunnel.
    Tunnel,
}

/// What all frames of a run have in common.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Bytes.
    pub size: usize,
    /// What they are.
    pub kind: Kind,
    /// Whether they have no Ethernet header. Not for [`Kind::Plain`], which is nothing else.
    pub bare: bool,
    /// Sender.
    pub source: End,
    /// Receiver.
    pub destination: End,
}

/// The headers of a frame, up to the stamp.
struct Headers {
    bytes: [u8; MOST_HEADERS],
    len: usize,
}

impl Headers {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }

    fn get(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// What a frame says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Flow that it belongs to.
    pub flow: u32,
    /// Its number in the flow.
    pub sequence: u64,
}

/// What is found in a received frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// A frame of ours, as it was sent.
    Sound(Stamp),
    /// A frame of ours that is not as it was sent; says what is wrong.
    Corrupted(String),
    /// Somebody else's frame.
    Foreign,
}

impl Shape {
    /// Plain frames from the guest.
    pub fn plain(size: usize) -> Self {
        Self {
            size,
            kind: Kind::Plain,
            bare: false,
            source: GUEST,
            destination: PEER,
        }
    }

    /// Ethernet type of the frames.
    pub fn protocol(&self) -> u16 {
        match self.kind {
            Kind::Plain => ETH_P_EXPERIMENTAL,
            Kind::Ip | Kind::Segment | Kind::Tunnel => ETH_P_IP,
        }
    }

    /// The shape of what comes back.
    pub fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            ..*self
        }
    }

    /// Whether a frame is segmented by whoever needs it smaller.
    pub fn segmented(&self) -> bool {
        matches!(self.kind, Kind::Segment | Kind::Tunnel)
    }

    /// Where the IP header is, the inner one in a tunnel.
    fn ip_at(&self) -> usize {
        match self.kind {
            Kind::Tunnel => TUNNEL_SIZE + ETH_SIZE,
            _ if self.bare => 0,
            _ => ETH_SIZE,
        }
    }

    fn stamp_at(&self) -> usize {
        self.ip_at()
            + match self.kind {
                Kind::Plain => 0,
                Kind::Ip => IP_SIZE,
                Kind::Segment | Kind::Tunnel => IP_SIZE + TCP_SIZE,
            }
    }

    /// The virtio-net header of such a frame: its first 10 bytes (virtio 1.3, section 5.1.6.2), and where the tunnel's headers
    /// are.
    pub fn header(&self) -> [u8; MAX_HEADER] {
        let mut header = [0; MAX_HEADER];
        if self.segmented() {
            let headers = self.stamp_at() as u16; // CAST: 104 at most.
            let checksum_from = (self.ip_at() + IP_SIZE) as u16; // CAST: 84 at most.
            header[0] = HEADER_F_NEEDS_CSUM;
            header[1] = HEADER_GSO_TCPV4;
            header[2..4].copy_from_slice(&headers.to_le_bytes());
            header[4..6].copy_from_slice(&GSO_SIZE.to_le_bytes());
            header[6..8].copy_from_slice(&checksum_from.to_le_bytes());
            header[8..10].copy_from_slice(&16u16.to_le_bytes());
        }
        if self.kind == Kind::Tunnel {
            let outer_transport = (ETH_SIZE + IP_SIZE) as u16; // CAST: 34.
            let inner_network = self.ip_at() as u16; // CAST: 64.
            header[1] |= HEADER_GSO_UDP_TUNNEL_IPV4;
            header[20..22].copy_from_slice(&outer_transport.to_le_bytes());
            header[22..24].copy_from_slice(&inner_network.to_le_bytes());
        }
        header
    }

    /// Writes the frame of `stamp` over `frame`.
    pub fn write(&self, stamp: Stamp, frame: &mut Vec<u8>) {
        frame.clear();
        frame.extend(self.headers().get());
        frame.extend(MAGIC.to_le_bytes());
        frame.extend(stamp.flow.to_le_bytes());
        frame.extend(stamp.sequence.to_le_bytes());
        frame.extend((self.size as u32).to_le_bytes()); // CAST: Below 65536.
        frame.extend([0; 4]);
        let room = self.size.saturating_sub(frame.len());
        frame.extend(filler(stamp, room));
        let checksum = checksum(&frame[self.stamp_at()..]);
        self.put_checksum(frame, checksum);
    }

    /// Makes a frame that was read the answer to itself: its headers are turned round, and in no checksum of ours.
    pub fn answer(&self, frame: &mut [u8]) {
        let headers = self.reversed().headers();
        if let Some(start) = frame.get_mut(..headers.len) {
            start.copy_from_slice(headers.get());
        }
    }

    fn put_checksum(&self, frame: &mut [u8], checksum: u32) {
        let end = self.stamp_at() + STAMP_SIZE;
        frame[end - 4..end].copy_from_slice(&checksum.to_le_bytes());
    }

    /// What is in front of the stamp.
    fn headers(&self) -> Headers {
        let mut headers = Headers {
            bytes: [0; MOST_HEADERS],
            len: 0,
        };
        if self.kind == Kind::Tunnel {
            self.push_tunnel(&mut headers);
        }
        if !self.bare {
            self.push_ethernet(&mut headers);
        }
        let ip_len = (self.size - self.ip_at()) as u16; // CAST: Below 65536.
        match self.kind {
            Kind::Plain => {}
            Kind::Ip => headers.push(&self.ip_header(ip_len, IPPROTO_EXPERIMENTAL)),
            Kind::Segment | Kind::Tunnel => {
                headers.push(&self.ip_header(ip_len, IPPROTO_TCP));
                headers.push(&self.tcp_header(ip_len - IP_SIZE as u16)); // CAST: 20.
            }
        }
        headers
    }

    fn push_ethernet(&self, headers: &mut Headers) {
        headers.push(&self.destination.mac);
        headers.push(&self.source.mac);
        headers.push(&self.protocol().to_be_bytes());
    }

    /// The headers around a tunnel's frame. There is no UDP checksum.
    fn push_tunnel(&self, headers: &mut Headers) {
        /// Source port, and the destination port of VXLAN.
        const PORTS: [u8; 4] = [0xc0, 0x01, 0x12, 0xb5];
        /// A valid network number, 1.
        const VXLAN: [u8; VXLAN_SIZE] = [8, 0, 0, 0, 0, 0, 1, 0];
        self.push_ethernet(headers);
        let ip_len = (self.size - ETH_SIZE) as u16; // CAST: Below 65536.
        headers.push(&self.ip_header(ip_len, IPPROTO_UDP));
        let mut udp = [0; UDP_SIZE];
        udp[..4].copy_from_slice(&PORTS);
        udp[4..6].copy_from_slice(&(ip_len - IP_SIZE as u16).to_be_bytes()); // CAST: 20.
        headers.push(&udp);
        headers.push(&VXLAN);
    }

    fn ip_header(&self, len: u16, protocol: u8) -> [u8; IP_SIZE] {
        let mut ip = [0; IP_SIZE];
        ip[0] = 0x45;
        ip[2..4].copy_from_slice(&len.to_be_bytes());
        ip[6..10].copy_from_slice(&[0x40, 0, 64, protocol]);
        ip[12..16].copy_from_slice(&self.source.ip);
        ip[16..20].copy_from_slice(&self.destination.ip);
        let sum = ones_complement_sum(&ip);
        ip[10..12].copy_from_slice(&(!sum).to_be_bytes());
        ip
    }

    /// A TCP header, with the sum over the pseudo header where the checksum will be.
    fn tcp_header(&self, len: u16) -> [u8; TCP_SIZE] {
        let mut pseudo = [0; 12];
        pseudo[..4].copy_from_slice(&self.source.ip);
        pseudo[4..8].copy_from_slice(&self.destination.ip);
        pseudo[9] = IPPROTO_TCP;
        pseudo[10..].copy_from_slice(&len.to_be_bytes());
        let mut tcp = [0; TCP_SIZE];
        tcp[..4].copy_from_slice(&[0x56, 0x01, 0x56, 0x02]);
        tcp[12..14].copy_from_slice(&[0x50, 0x10]);
        tcp[14..16].copy_from_slice(&[0xff, 0xff]);
        tcp[16..18].copy_from_slice(&ones_complement_sum(&pseudo).to_be_bytes());
        tcp
    }

    /// Looks at a received frame and the virtio-net header in front of it, which is all zero if there was none.
    pub fn read(&self, header: &[u8], frame: &[u8]) -> Found {
        let start = self.stamp_at();
        if frame.get(start..start + 4) != Some(&MAGIC.to_le_bytes()) {
            return self.without_magic(frame);
        }
        let stamp = Stamp {
            flow: u32_at(frame, start + 4),
            sequence: u64::from(u32_at(frame, start + 8))
                | u64::from(u32_at(frame, start + 12)) << 32,
        };
        let Stamp { flow, sequence } = stamp;
        let wrong =
            |what: String| Found::Corrupted(format!("packet {sequence} of flow {flow}: {what}"));
        if frame.len() != self.size {
            return wrong(format!("{} bytes in place of {}", frame.len(), self.size));
        }
        if !frame.starts_with(self.headers().get()) {
            return wrong(format!("headers {:02x?}", &frame[..start]));
        }
        let (expected, found) = (checksum(&frame[start..]), u32_at(frame, start + 20));
        if expected != found {
            return wrong(format!("checksum {found:#010x}, computed {expected:#010x}"));
        }
        let ours = self.header();
        let tunnel = self.kind == Kind::Tunnel;
        if header.get(1) != Some(&ours[1])
            || header.get(4..6) != Some(&ours[4..6])
            || tunnel && header.get(20..) != Some(&ours[20..])
        {
            return wrong(format!("virtio-net header {header:02x?}"));
        }
        Found::Sound(stamp)
    }

    /// A frame between our addresses and without our mark can only be one of ours that was damaged.
    fn without_magic(&self, frame: &[u8]) -> Found {
        // Of an Ethernet header the two addresses; of an IP header all of it.
        let addresses = if self.bare { IP_SIZE } else { 12 };
        let headers = self.headers();
        let ours = headers.get().get(..addresses);
        if frame.get(..addresses) == ours {
            let start = &frame[..frame.len().min(48)];
            return Found::Corrupted(format!(
                "a packet of {} bytes without a stamp: {start:02x?}",
                frame.len()
            ));
        }
        Found::Foreign
    }
}

fn u32_at(frame: &[u8], at: usize) -> u32 {
    let mut bytes = [0; 4];
    if let Some(found) = frame.get(at..at + 4) {
        bytes.copy_from_slice(found);
    }
    u32::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(size: usize, kind: Kind) -> Shape {
        Shape {
            kind,
            ..Shape::plain(size)
        }
    }

    const STAMP: Stamp = Stamp {
        flow: 3,
        sequence: 0x1_0000_0002,
    };

    #[test]
    fn frame_reads_as_it_was_written() {
        let mut shapes = vec![
            shape(43, Kind::Plain),
            shape(1514, Kind::Plain),
            shape(60, Kind::Ip),
            shape(65535, Kind::Segment),
            shape(1600, Kind::Segment),
            shape(65535, Kind::Tunnel),
            shape(1700, Kind::Tunnel),
        ];
        shapes.extend([60, 1500].map(|size| Shape {
            bare: true,
            ..shape(size, Kind::Ip)
        }));
        for shape in shapes {
            let mut frame = Vec::new();
            shape.write(STAMP, &mut frame);
            assert_eq!(frame.len(), shape.size);
            assert_eq!(shape.read(&shape.header(), &frame), Found::Sound(STAMP));
            shape.answer(&mut frame);
            let back = shape.reversed();
            assert_eq!(back.read(&back.header(), &frame), Found::Sound(STAMP));
        }
    }

    #[test]
    fn tunnel_says_where_its_headers_are() {
        let shape = shape(4000, Kind::Tunnel);
        let mut frame = Vec::new();
        shape.write(STAMP, &mut frame);
        let mut header = shape.header();
        let field = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
        let (outer_udp, inner_ip, inner_tcp) = (field(20), field(22), field(6));
        assert_eq!(frame[outer_udp + 2..][..2], 4789u16.to_be_bytes());
        assert_eq!(frame[outer_udp + 4..][..2], (4000u16 - 34).to_be_bytes());
        assert_eq!((frame[inner_ip], frame[inner_ip + 9]), (0x45, IPPROTO_TCP));
        assert_eq!(frame[inner_ip + 2..][..2], (4000u16 - 64).to_be_bytes());
        assert_eq!(inner_tcp, inner_ip + IP_SIZE);
        header[22] += 1;
        assert!(matches!(shape.read(&header, &frame), Found::Corrupted(_)));
    }

    #[test]
    fn any_flipped_bit_is_seen() {
        let bare = Shape {
            bare: true,
            ..shape(64, Kind::Ip)
        };
        for shape in [shape(64, Kind::Plain), shape(64, Kind::Ip), bare] {
            let mut frame = Vec::new();
            shape.write(STAMP, &mut frame);
            for bit in 0..64 * 8 {
                let mut damaged = frame.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                let found = shape.read(&shape.header(), &damaged);
                assert!(matches!(found, Found::Corrupted(_)), "bit {bit}: {found:?}");
            }
        }
    }

    #[test]
    fn frame_of_another_size_or_offload_is_corrupted() {
        let shape = shape(4000, Kind::Segment);
        let mut frame = Vec::new();
        shape.write(STAMP, &mut frame);
        let header = shape.header();
        assert!(matches!(
            shape.read(&header, &frame[..3999]),
            Found::Corrupted(_)
        ));
        assert!(matches!(shape.read(&[0; 12], &frame), Found::Corrupted(_)));
        assert_eq!(shape.reversed().read(&header, &[0xff; 60]), Found::Foreign);
    }

    #[test]
    fn ip_header_sums_to_all_ones() {
        let mut frame = Vec::new();
        shape(65535, Kind::Segment).write(STAMP, &mut frame);
        assert_eq!(
            ones_complement_sum(&frame[ETH_SIZE..ETH_SIZE + IP_SIZE]),
            0xffff
        );
    }
}
