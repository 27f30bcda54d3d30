// SPDX-License-Identifier: GPL-2.0

//! Recorded hosts.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use tempfile::TempDir;
use vhostctl::host::Host;

/// A host with devices of all kinds.
pub(crate) const MIXED: &str = include_str!("mixed.txt");

/// Lays a recorded host out in a folder.
///
/// A line `== PATH` begins a file, `-> PATH TARGET` is a link, `#` a comment before the first; `@` is a zero byte.
pub(crate) fn lay_out(recording: &str) -> (TempDir, Host) {
    let folder = tempfile::tempdir().unwrap();
    let parent = |path: &Path| fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut file = None;
    for line in recording.lines().filter(|line| !line.starts_with('#')) {
        if let Some(path) = line.strip_prefix("== ") {
            let path = folder.path().join(path);
            parent(&path);
            fs::write(&path, "").unwrap();
            file = Some(path);
        } else if let Some((path, target)) =
            line.strip_prefix("-> ").and_then(|l| l.split_once(' '))
        {
            let path = folder.path().join(path);
            parent(&path);
            symlink(target, path).unwrap();
        } else {
            let path = file.as_ref().expect("a line before the first file");
            let mut text = fs::read(path).unwrap();
            text.extend(line.replace('@', "\0").into_bytes());
            text.push(b'\n');
            fs::write(path, text).unwrap();
        }
    }
    let host = Host::recorded(folder.path());
    (folder, host)
}
