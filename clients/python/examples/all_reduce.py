# SPDX-License-Identifier: Apache-2.0
"""Times all-reduces of sparse rows through Libra and through gloo, step by step in turns.

Run it as the workers of libra run --sync --optimizer none. Each rank adds --rows random rows of --of, with fresh keys
in each step. All ranks must get the same bits. Rank 0 prints the medians.
"""
import argparse
import hashlib
import statistics
import time

import numpy as np
import torch
import torch.distributed as dist
from training import leave

import libra.torch

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--rows", type=int, default=4096, help="rows of a rank (%(default)s)")
arguments.add_argument("--of", type=int, default=1 << 20, help="rows of the tensor (%(default)s)")
arguments.add_argument("--dim", type=int, default=1, help="floats of a row (%(default)s)")
arguments.add_argument("--steps", type=int, default=40, help="steps to time (%(default)s)")
arguments.add_argument("--warm-up", type=int, default=10, help="steps before them (%(default)s)")
options = arguments.parse_args()

dist.init_process_group("libra")
gloo = dist.new_group(backend="gloo")
rank, ranks = dist.get_rank(), dist.get_world_size()
times = {"libra": [], "gloo": []}
for step in range(options.warm_up + options.steps):
    random = np.random.default_rng((rank, step))
    keys = torch.from_numpy(np.sort(random.choice(options.of, options.rows, replace=False)))
    values = torch.from_numpy(random.integers(-1000, 1000, (options.rows, options.dim)).astype(np.float32) / 256)
    order = ["libra", "gloo"] if step % 2 == 0 else ["gloo", "libra"]
    bits = {}
    for name in order:
        tensor = torch.sparse_coo_tensor(keys[None], values, (options.of, options.dim), dtype=torch.float32)
        dist.barrier(gloo)
        begin = time.perf_counter()
        dist.all_reduce(tensor, group=gloo if name == "gloo" else None)
        slowest = torch.tensor(time.perf_counter() - begin)
        dist.all_reduce(slowest, dist.ReduceOp.MAX, gloo)  # also keeps those who are done from taking the processors for what follows
        if step >= options.warm_up:
            times[name].append(slowest.item())
        tensor = tensor.coalesce()
        kept = tensor.values().ne(0).any(1)  # gloo keeps rows whose sums are zero
        bits[name] = hashlib.sha256(tensor.indices()[:, kept].numpy().tobytes() + tensor.values()[kept].numpy().tobytes()).digest()
    everywhere = [None] * ranks
    dist.all_gather_object(everywhere, bits, gloo)
    if any(other != bits for other in everywhere) or bits["libra"] != bits["gloo"]:
        raise SystemExit(f"step {step}: the ranks' sums differ, or those of libra and gloo")
if rank == 0:
    p50 = {name: statistics.median(seconds) * 1e3 for name, seconds in times.items()}
    print(f"{ranks} ranks, {options.rows} rows of {options.of}, {options.dim} floats each: p50 libra {p50['libra']:.2f} ms, gloo {p50['gloo']:.2f} ms: {p50['libra'] / p50['gloo']:.3f} of gloo's")
del gloo
leave()
