// SPDX-License-Identifier: GPL-2.0

//! Times of the engine's steps: `cargo bench -p vhost-engine-bench --features criterion`.

#![expect(missing_docs, reason = "criterion's macro makes a public function")]

use criterion::{criterion_group, criterion_main, Criterion, Throughput};
use vhost_engine::engine::scratch::BATCH;
use vhost_engine_bench::{Steps, STEPS};

fn steps(criterion: &mut Criterion) {
    let mut steps = Steps::new().expect("memory that never fails");
    let mut group = criterion.benchmark_group("engine");
    group.throughput(Throughput::Elements(BATCH as u64)); // CAST: Widens.
    for (name, step) in STEPS {
        group.bench_function(name, |bencher| bencher.iter(|| step(&mut steps)));
    }
    group.finish();
}

criterion_group!(benches, steps);
criterion_main!(benches);
