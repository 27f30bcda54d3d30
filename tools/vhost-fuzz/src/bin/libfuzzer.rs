// SPDX-License-Identifier: GPL-2.0

//! A target under libFuzzer; `VHOST_FUZZ_TARGET` names it. `scripts/fuzz` runs this.

#![no_main]

use std::sync::OnceLock;

use vhost_fuzz::{target, Target};

static TARGET: OnceLock<&Target> = OnceLock::new();

fn chosen() -> &'static Target {
    let name = std::env::var("VHOST_FUZZ_TARGET").unwrap_or_default();
    target(&name).expect("VHOST_FUZZ_TARGET names no target")
}

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| (TARGET.get_or_init(chosen).run)(bytes));
