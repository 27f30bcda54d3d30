// SPDX-License-Identifier: GPL-2.0

//! Where one driver's instructions are.

use anyhow::Result;
use std::collections::BTreeMap;
use std::fmt::Write;

use crate::results::Case;
use crate::table::per;

/// The case's functions, or its instructions by address, in instructions per packet.
///
/// # Errors
///
/// If `vhost-load` did not say how many packets there were.
pub fn text(case: &Case, addresses: bool) -> Result<String> {
    let packets = case.packets()?;
    let counts = &case.counts;
    let mut text = String::new();
    // Writing to a string cannot fail.
    if addresses {
        for (address, count) in &counts.addresses {
            let _ = writeln!(text, "{address:x} {:.3}", per(*count, packets));
        }
        return Ok(text);
    }
    let _ = writeln!(
        text,
        "{}: {packets} packets, column 1 {:.1}, column 2 {:.1}, repetitions {:.1}",
        case.name,
        per(counts.first(), packets),
        per(counts.second(), packets),
        per(counts.repeated, packets)
    );
    for (title, functions) in [
        ("its own", &counts.own),
        ("called, in column 2", &counts.called),
        ("called, not in column 2", &counts.others),
    ] {
        let _ = writeln!(text, "  {title}:");
        lines(&mut text, functions, packets);
    }
    Ok(text)
}

fn lines(text: &mut String, functions: &BTreeMap<String, u64>, packets: u64) {
    let mut sorted: Vec<_> = functions.iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    for (name, count) in sorted {
        let each = per(*count, packets);
        if *count * 20 >= packets {
            let _ = writeln!(text, "    {each:8.2}  {name}");
        }
    }
}
