# SPDX-License-Identifier: Apache-2.0
"""Trains DeepLight (Deng et al., 2021) on libFM files: which app does a user take, in which situation?

That is a field-weighted factorisation machine beside a deep network (DeepFwFM), whose smallest weights are set to zero
while it trains, so that predictions need fewer. Each row has as many features, one of each field.

Run it as the ranks of libra run or torchrun, or alone. Rank 0 prints the area under the ROC curve of the test file, the
shares of zeros in embeddings, network and weights of pairs of fields, a hash of all weights, which are the same on all
ranks, the median time of a step, and what its host sends in one.
"""
import argparse

import torch
import torch.distributed as dist
from files import libfm
from frappe import auc
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import BatchSampler, DistributedSampler
from training import agree, number, options, report, start, trainings, turns


class DeepFwFM(torch.nn.Module):
    def __init__(self, features, fields, factors, hidden):
        super().__init__()
        self.rows = torch.nn.Embedding(features, 1 + factors, sparse=True)  # weight and factors
        self.left, self.right = torch.triu_indices(fields, fields, 1)  # pairs of fields
        self.pairs = torch.nn.Linear(len(self.left), 1)  # how much each counts
        widths, layers = [fields * factors, hidden, hidden, hidden], []
        for i, o in zip(widths, widths[1:]):
            layers += [torch.nn.Linear(i, o), torch.nn.ReLU()]
        self.deep = torch.nn.Sequential(*layers, torch.nn.Linear(hidden, 1))
        torch.nn.init.normal_(self.rows.weight, std=0.01)
        torch.nn.init.ones_(self.pairs.weight)  # a plain factorisation machine

    def forward(self, features):
        rows = self.rows(features)
        weights, factors = rows[:, :, 0], rows[:, :, 1:]
        products = (factors[:, self.left] * factors[:, self.right]).sum(2)
        return weights.sum(1) + (self.pairs(products) + self.deep(factors.flatten(1)))[:, 0]

    def parts(self):
        """What is pruned."""
        deep = [layer.weight for layer in self.deep if isinstance(layer, torch.nn.Linear)]
        return {"embeddings": [self.rows.weight], "deep": deep, "pairs": [self.pairs.weight]}

    @torch.no_grad()
    def prune(self, shares):
        """Sets the smallest of each tensor's weights to zero. They may grow again."""
        for name, share in shares.items():
            for weights in self.parts()[name]:
                smallest = int(share * weights.numel())
                if smallest > 0:
                    weights[weights.abs() <= weights.abs().flatten().kthvalue(smallest).values] = 0

    def zeros(self):
        """The shares that are zero."""
        parts = {name: torch.cat([weights.flatten() for weights in part]) for name, part in self.parts().items()}
        return {f"{name}_zeros": round((weights == 0).float().mean().item(), 3) for name, weights in parts.items()}


def shares_after(steps, given):
    """What to prune after so many steps: nothing at first, then ever more of the shares that are given, as in the paper."""
    grown = 1 - 0.99 ** max(0, steps - given.warm_up)
    return {"embeddings": grown * given.prune_embeddings, "deep": grown * given.prune_deep, "pairs": grown * given.prune_pairs}


def share(text):
    """The type of options that are a share to prune."""
    value = float(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is no share to prune: give a number from 0 on that is below 1")
    return value


def main():
    parser = options(__doc__, epochs=8, batch=1024, rate=0.02)
    parser.add_argument("--data", required=True, help="libFM file to train on")
    parser.add_argument("--test", required=True, help="libFM file to test with")
    parser.add_argument("--rows", type=number, default=10**9, help="rows of each file, at most")
    parser.add_argument("--factors", type=number, default=15, help="of a feature (%(default)s)")
    parser.add_argument("--hidden", type=number, default=64, help="width of each of three hidden layers (%(default)s)")
    parser.add_argument("--prune-embeddings", type=share, default=0.4, help="share of the embeddings' values to prune, 0 to 1 (%(default)s)")
    parser.add_argument("--prune-deep", type=share, default=0.9, help="the same of the deep network's weights (%(default)s)")
    parser.add_argument("--prune-pairs", type=share, default=0.5, help="the same of the weights of pairs of fields (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=100, help="steps before the first pruning (%(default)s)")
    parser.add_argument("--every", type=number, default=10, help="steps from one pruning to the next (%(default)s)")
    given = start(parser)
    features, labels, test, test_labels = agree(lambda: same_fields(libfm(given.data, given.rows, 2), libfm(given.test, given.rows, 2)))
    size = 1 + int(max(features.max(), test.max()))
    trained = trainings(given, lambda: DeepFwFM(size, features.shape[1], given.factors, given.hidden))

    shares = DistributedSampler(labels, seed=given.seed)
    batches = BatchSampler(shares, given.batch // dist.get_world_size(), drop_last=False)
    for epoch in range(given.epochs):
        shares.set_epoch(epoch)
        for training, rows in turns(trained, batches, given.steps):
            with training.step():
                training.optimizer.zero_grad()
                binary_cross_entropy_with_logits(training.parallel(features[rows]), labels[rows]).backward()
                training.optimizer.step()
            if len(training.seconds) % given.every == 0:
                training.model.prune(shares_after(len(training.seconds), given))
    for training in trained:  # weights have grown again since
        training.model.prune(shares_after(len(training.seconds), given))
    report(given, trained, lambda model: {"auc": round(auc(model(test).numpy(), test_labels.numpy()), 4), **model.zeros()})


def same_fields(train, test):
    if train[0].shape[1] != test[0].shape[1]:
        raise ValueError(f"rows of --data have {train[0].shape[1]} features, those of --test {test[0].shape[1]}: give files of the same data set")
    return [*train, *test]


if __name__ == "__main__":
    main()
