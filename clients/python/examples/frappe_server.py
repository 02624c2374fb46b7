# SPDX-License-Identifier: Apache-2.0
"""Trains the factorisation machine of frappe.py with the rows of its features in the parameter server.

Run it as the workers of libra run without --sync: each pulls rows and pushes gradients at its own pace, and the server's
optimiser changes the rows. Rank 0 prints the area under the ROC curve of the test file when all workers are done.
"""
import os
import time

import torch
import torch.distributed as dist
from frappe import auc, batches, load, options, score
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DistributedSampler
from training import leave

import libra
import libra.torch


def main():
    arguments = options(__doc__).parse_args()
    dist.init_process_group("gloo")  # with it, rank 0 learns when all workers are done
    rank = dist.get_rank()
    data, test = load(arguments)
    shares = DistributedSampler(data, seed=1)
    loader = batches(arguments, data, shares)
    with libra.Session(os.environ["LIBRA_JOB"]) as session:
        rows = libra.torch.Embedding(1 + max(int(data.features.max()), int(test.features.max())), session)
        for epoch in range(arguments.epochs):
            begin = time.perf_counter()
            shares.set_epoch(epoch)
            for features, labels in loader:
                binary_cross_entropy_with_logits(score(rows(features)), labels, reduction="sum").backward()
            session.flush()
            if rank == 0:
                print(f"epoch {epoch + 1}: {time.perf_counter() - begin:.2f} s", flush=True)
        dist.barrier()
        if rank == 0:
            with torch.no_grad():
                print(f"AUC {auc(score(rows(test.features)).numpy(), test.labels.numpy()):.4f}")
    leave()


if __name__ == "__main__":
    main()
