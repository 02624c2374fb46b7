# SPDX-License-Identifier: Apache-2.0
import os

import numpy as np
import libra

# A thousand clicks, each with four of a hundred features, of which some make a click more likely.
random = np.random.default_rng(1)
features = random.integers(0, 100, (1000, 4)).astype(np.uint64)
taste = random.normal(0, 2, 100)
clicks = random.random(1000) < 1 / (1 + np.exp(-taste[features].sum(axis=1)))

rank, workers, here = (int(os.environ.get(name, default)) for name, default in (("RANK", 0), ("WORLD_SIZE", 1), ("LOCAL_WORLD_SIZE", 1)))
with libra.Session(os.environ.get("LIBRA_JOB", "clicks"), dim=1, parties=here) as session:
    for epoch in range(20):
        for batch in np.array_split(np.arange(1000), 10):
            rows = batch[rank::workers]  # each worker takes its share
            keys, places = np.unique(features[rows], return_inverse=True)
            places = places.reshape(-1, 4)
            weights = session.pull(keys)[:, 0]
            errors = 1 / (1 + np.exp(-weights[places].sum(axis=1))) - clicks[rows]
            gradients = np.zeros(len(keys))
            np.add.at(gradients, places, errors[:, None])
            session.push(keys, gradients)
            session.barrier()  # ends a step: the server changes the weights by the sums

    weights = session.pull(np.arange(100))[:, 0]
    if rank == 0:
        print(f"accuracy {np.mean((weights[features].sum(axis=1) > 0) == clicks):.2f}")
