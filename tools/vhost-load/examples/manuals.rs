// SPDX-License-Identifier: GPL-2.0

//! Writes the manual pages and the shells' completions of `vhost-load` into a folder, for installing.

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;
use std::path::PathBuf;
use vhost_load::args::Cli;

fn main() -> Result<()> {
    let folder = std::env::args_os()
        .nth(1)
        .context("usage: manuals FOLDER")?;
    let folder = PathBuf::from(folder);
    let pages = folder.join("man1");
    std::fs::create_dir_all(&pages).with_context(|| format!("cannot make {}", pages.display()))?;

    let mut command = Cli::command();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "vhost-load", &folder)?;
    }
    // A page for "help" and one for each of its arguments would say nothing.
    clap_mangen::generate_to(Cli::command().disable_help_subcommand(true), &pages)?;
    Ok(())
}
