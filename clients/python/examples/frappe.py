# SPDX-License-Identifier: Apache-2.0
"""Trains a factorisation machine on libFM files: which app does a user take, in which situation?

Run it as the workers of libra run or torchrun, or alone. Rank 0 prints the area under the ROC curve of the
test file, the time of an epoch, and a hash of the weights, which are the same on all ranks.
"""
import argparse
import hashlib
import time

import numpy as np
import torch
import torch.distributed as dist
from files import libfm
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler
from training import agree, leave, number

import libra.torch


class Rows(Dataset):
    """Rows with the same number of features each. An item is a whole batch of them."""

    def __init__(self, features, labels):
        self.features, self.labels = features, labels

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, rows):
        return self.features[rows], self.labels[rows]


def load(arguments):
    """The rows to train on, and those to test with."""
    rows = agree(lambda: [*libfm(arguments.data, arguments.rows), *libfm(arguments.test, arguments.rows)])
    return Rows(*rows[:2]), Rows(*rows[2:])


def score(rows):
    """The scores of a factorisation machine, float32[n], of the rows of their features, float32[n, features, 1 + factors]: weight and factors."""
    weights, factors = rows.split([1, rows.shape[2] - 1], dim=2)
    return weights.sum((1, 2)) + (factors.sum(1) ** 2 - (factors**2).sum(1)).sum(1) / 2


class Machine(torch.nn.Module):
    """A factorisation machine with all of its rows in the process."""

    def __init__(self, features, factors):
        super().__init__()
        self.rows = torch.nn.Embedding(features, 1 + factors, sparse=True)
        self.bias = torch.nn.Parameter(torch.zeros(()))
        torch.nn.init.normal_(self.rows.weight, std=0.01)

    def forward(self, features):
        return self.bias + score(self.rows(features))


def auc(scores, labels):
    """The area under the ROC curve: the share of pairs of a positive and a negative row whose scores are in that order."""
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[place]
    positive = labels > 0
    n = positive.sum()
    return (rank[positive].sum() - n * (n + 1) / 2) / (n * (len(labels) - n))


def options(description):
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", required=True, help="libFM file to train on")
    parser.add_argument("--test", required=True, help="libFM file to test with")
    parser.add_argument("--rows", type=number, default=10**9, help="rows of the files at most")
    parser.add_argument("--epochs", type=number, default=2)
    parser.add_argument("--batch", type=number, default=1024, help="rows of a step, of all ranks together")
    parser.add_argument("--loaders", choices=("fork", "spawn", "forkserver"), help="how processes that load data are started (Python's default)")
    return parser


def batches(arguments, data, shares):
    """Loads a rank's share of each batch, in two processes."""
    sampler = BatchSampler(shares, max(1, arguments.batch // dist.get_world_size()), drop_last=False)
    return DataLoader(data, sampler=sampler, batch_size=None, num_workers=2, multiprocessing_context=arguments.loaders)


def train(arguments):
    rank, ranks = dist.get_rank(), dist.get_world_size()
    data, test = load(arguments)
    torch.manual_seed(1)
    model = Machine(1 + max(int(data.features.max()), int(test.features.max())), factors=15)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    shares = DistributedSampler(data, seed=1)
    loader = batches(arguments, data, shares)
    for epoch in range(arguments.epochs):
        begin = time.perf_counter()
        shares.set_epoch(epoch)
        for features, labels in loader:
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(parallel(features), labels).backward()
            optimizer.step()
        if rank == 0:
            print(f"epoch {epoch + 1}: {time.perf_counter() - begin:.2f} s", flush=True)

    weights = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
    hashes = [""] * ranks
    dist.all_gather_object(hashes, weights)
    if any(h != weights for h in hashes):
        raise SystemExit(f"the ranks' weights differ: {hashes}")
    if rank == 0:
        with torch.no_grad():
            print(f"AUC {auc(model(test.features).numpy(), test.labels.numpy()):.4f}, weights {weights[:16]}")


def main():
    parser = options(__doc__)
    parser.add_argument("backend", help="gloo or libra")
    arguments = parser.parse_args()
    dist.init_process_group(arguments.backend)
    train(arguments)
    leave()


if __name__ == "__main__":
    main()
