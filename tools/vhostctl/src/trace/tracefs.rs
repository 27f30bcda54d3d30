// SPDX-License-Identifier: GPL-2.0

//! A trace buffer of our own in tracefs: other users of tracing are not disturbed.

use std::fs;
use std::io;
use std::path::PathBuf;

use crate::failure::{Failure, Result};
use crate::host::Host;

/// The group of the module's events.
const GROUP: &str = "events/vhost_net_rs";

/// A folder in `instances`. It is taken away with its buffer when this is dropped.
#[derive(Debug)]
pub(super) struct Instance(PathBuf);

/// An event of the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TraceEvent {
    name: String,
    pub(super) fields: Vec<String>,
}

impl Instance {
    /// Makes one.
    ///
    /// # Errors
    ///
    /// [`Failure::Right`] without the right to tracefs, [`Failure::Refused`] if the module has no events.
    pub(super) fn new(host: &Host) -> Result<Self> {
        let root = host.path("sys/kernel/tracing");
        match fs::metadata(root.join(GROUP)) {
            Ok(_) => {}
            Err(err) if err.kind() == io::ErrorKind::PermissionDenied => {
                return Err(Failure::Right(format!(
                    "{}: {err}: run as root",
                    root.display()
                )));
            }
            Err(_) if !root.join("trace").exists() => {
                return Err(Failure::Other(format!("{}: tracefs is not mounted there, or may not be seen: mount -t tracefs tracefs {0}", root.display())));
            }
            Err(_) => return Err(Failure::Refused(
                "there are no vhost_net_rs:* events: the module is not loaded, or an older version"
                    .into(),
            )),
        }
        let path = root.join(format!("instances/vhostctl-{}", std::process::id()));
        fs::create_dir(&path).map_err(|err| Failure::file(&path, &err))?;
        Ok(Self(path))
    }

    /// A file of it.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The module's events, or those that are named.
    ///
    /// # Errors
    ///
    /// If one that is named does not exist.
    pub(super) fn events(&self, named: &[String]) -> Result<Vec<TraceEvent>> {
        let group = self.path(GROUP);
        let failed = |err| Failure::file(&group, &err);
        let entries = fs::read_dir(&group).map_err(failed)?;
        let folders = entries.filter_map(|entry| entry.ok().filter(|entry| entry.path().is_dir()));
        let mut all: Vec<String> = folders
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        all.sort_unstable();
        if let Some(unknown) = named.iter().find(|name| !all.contains(name)) {
            return Err(Failure::Refused(format!(
                "there is no event {unknown}; there are {}",
                all.join(", ")
            )));
        }
        if !named.is_empty() {
            all.retain(|name| named.contains(name));
        }
        let event = |name: String| {
            let format = fs::read_to_string(group.join(&name).join("format")).map_err(failed)?;
            Ok(TraceEvent {
                name,
                fields: fields(&format),
            })
        };
        all.into_iter().map(event).collect()
    }

    /// Switches an event on: all of it, or under a condition. An event of which only some are wanted, and which says nothing
    /// of its device (`Some(None)`), stays off.
    ///
    /// # Errors
    ///
    /// Those of writing to tracefs.
    pub(super) fn enable(&self, event: &TraceEvent, filter: Option<Option<String>>) -> Result {
        let folder = self.path(GROUP).join(&event.name);
        let write = |file: &str, text: &str| {
            let path = folder.join(file);
            fs::write(&path, text).map_err(|err| Failure::file(&path, &err))
        };
        match filter {
            Some(None) => return Ok(()),
            Some(Some(condition)) => write("filter", &condition)?,
            None => {}
        }
        write("enable", "1")
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Its files are the kernel's; the folder goes with them.
        if let Err(err) = fs::remove_dir(&self.0) {
            eprintln!(
                "vhostctl: {}: {err}: remove it with rmdir",
                self.0.display()
            );
        }
    }
}

/// The names of an event's own fields.
fn fields(format: &str) -> Vec<String> {
    let declared = format
        .lines()
        .filter_map(|line| line.trim().strip_prefix("field:"));
    let names = declared.filter_map(|line| {
        let declaration = line.split(';').next()?;
        let name = declaration.rsplit([' ', '*']).next()?;
        Some(name.split('[').next()?.to_owned())
    });
    names.filter(|name| !name.starts_with("common_")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_the_events_own() {
        let format = "name: run_end\nID: 900\nformat:\n\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\n\
            \tfield:int worker;\toffset:8;\tsize:4;\tsigned:1;\n\tfield:char name[16];\toffset:12;\tsize:16;\tsigned:0;\n";
        assert_eq!(fields(format), ["worker", "name"]);
    }
}
