// SPDX-License-Identifier: GPL-2.0

//! `vhost-engine-bench STEP ROUNDS`: does a step so often, for a program that counts its instructions. Without arguments:
//! prints the steps.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use vhost_engine_bench::{Steps, STEPS};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let wanted = match &arguments[..] {
        [] => {
            for (name, _) in STEPS {
                println!("{name}");
            }
            return ExitCode::SUCCESS;
        }
        [name, rounds] => STEPS
            .into_iter()
            .find(|(known, _)| known == name)
            .zip(rounds.parse::<u32>().ok()),
        _ => None,
    };
    let Some(((name, step), rounds)) = wanted else {
        eprintln!("usage: vhost-engine-bench [STEP ROUNDS]; without arguments it prints the steps");
        return ExitCode::from(2);
    };
    let done = Steps::new().and_then(|mut steps| (0..rounds).try_for_each(|_| step(&mut steps)));
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(err) => {
            eprintln!("vhost-engine-bench: {name}: {err:?}");
            ExitCode::FAILURE
        }
    }
}
