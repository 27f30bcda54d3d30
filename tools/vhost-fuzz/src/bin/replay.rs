// SPDX-License-Identifier: GPL-2.0

//! Runs a target on files, or on those of folders: `vhost-fuzz-replay TARGET PATH...`. `--show` in front prints what
//! each means.

use std::error::Error;
use std::fs;
use std::path::Path;

use vhost_fuzz::{target, Target, TARGETS};

fn replay(target: &Target, path: &Path, show: bool) -> std::io::Result<usize> {
    if path.is_dir() {
        let mut count = 0;
        for entry in fs::read_dir(path)? {
            count += replay(target, &entry?.path(), show)?;
        }
        return Ok(count);
    }
    let bytes = fs::read(path)?;
    if show {
        println!("{}: {}", path.display(), (target.show)(&bytes));
    }
    (target.run)(&bytes);
    Ok(1)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args: Vec<_> = std::env::args().skip(1).collect();
    let show = args.first().is_some_and(|arg| arg == "--show");
    args.drain(..usize::from(show));
    let [name, paths @ ..] = &args[..] else {
        return Err("usage: vhost-fuzz-replay [--show] TARGET PATH...".into());
    };
    let target = target(name).ok_or_else(|| {
        let names = TARGETS.map(|target| target.name);
        format!(
            "there is no target '{name}'; there are: {}",
            names.join(", ")
        )
    })?;
    let mut count = 0;
    for path in paths {
        count +=
            replay(target, Path::new(path), show).map_err(|error| format!("{path}: {error}"))?;
    }
    println!("{name}: {count} files replayed");
    Ok(())
}
