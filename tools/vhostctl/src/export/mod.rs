// SPDX-License-Identifier: GPL-2.0

//! `vhostctl export`: all numbers, for Prometheus.

mod families;
mod text;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::app::App;
use crate::args::{ExportOptions, Format};
use crate::device::Snapshot;
use crate::failure::{Failure, Result};

/// Runs the command, and returns what it saw last.
///
/// # Errors
///
/// If the file cannot be written.
pub fn run(app: &App, options: &ExportOptions, out: &mut dyn Write) -> Result<Snapshot> {
    let mut seen = app.selected(&options.selection.targets)?;
    loop {
        write(&seen, options, out)?;
        let Some(seconds) = options.interval else {
            break;
        };
        if !app.signals.wait(Duration::from_secs(seconds))? {
            break;
        }
        seen = app.still(&options.selection.targets);
    }
    Ok(seen)
}

fn write(seen: &Snapshot, options: &ExportOptions, out: &mut dyn Write) -> Result {
    match &options.textfile {
        Some(path) => replace(
            path,
            &render(seen, options.format.unwrap_or(Format::Prometheus)),
        ),
        None => {
            let text = render(seen, options.format.unwrap_or(Format::Openmetrics));
            Ok(write!(out, "{text}")?)
        }
    }
}

/// All numbers of a snapshot.
pub fn render(seen: &Snapshot, format: Format) -> String {
    text::render(&families::families(seen), format)
}

/// Puts a file in the place of another at once: who reads it sees the old or the new.
fn replace(path: &Path, text: &str) -> Result {
    let mut name = path.as_os_str().to_owned();
    // Not ".prom": the collector must not read it.
    name.push(format!(".{}.new", std::process::id()));
    let new = PathBuf::from(name);
    let written = fs::write(&new, text).and_then(|()| fs::rename(&new, path));
    written.map_err(|err| {
        // It may not be there.
        let _removed = fs::remove_file(&new);
        Failure::file(path, &err)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_replaced_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vhost.prom");
        replace(&path, "old\n").unwrap();
        replace(&path, "new\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "new\n");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn folder_that_is_not_there_is_named() {
        let failure = replace(Path::new("/nonexistent/vhost.prom"), "").unwrap_err();
        assert!(
            failure.to_string().starts_with("/nonexistent/vhost.prom: "),
            "{failure}"
        );
        assert_eq!(failure.status(), 1);
    }
}
