// SPDX-License-Identifier: GPL-2.0

//! Manual pages and the shells' completions of a tool, made of its command line.

#![forbid(unsafe_code)]

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;
use std::path::PathBuf;

/// Writes them into the folder that is this program's argument, for installing.
///
/// # Errors
///
/// If there is no argument, or the folder cannot be written.
pub fn write(mut command: Command) -> Result<()> {
    let folder = std::env::args_os()
        .nth(1)
        .context("usage: manuals FOLDER")?;
    let folder = PathBuf::from(folder);
    let pages = folder.join("man1");
    std::fs::create_dir_all(&pages).with_context(|| format!("cannot make {}", pages.display()))?;

    let name = command.get_name().to_owned();
    // A page for "help" and one for each of its arguments would say nothing.
    clap_mangen::generate_to(command.clone().disable_help_subcommand(true), &pages)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, &name, &folder)?;
    }
    Ok(())
}
