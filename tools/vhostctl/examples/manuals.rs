// SPDX-License-Identifier: GPL-2.0

//! Writes the manual pages and the shells' completions of `vhostctl` into a folder, for installing.

use clap::CommandFactory;

fn main() -> anyhow::Result<()> {
    vhost_manuals::write(vhostctl::args::Cli::command())
}
