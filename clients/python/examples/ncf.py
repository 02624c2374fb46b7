# SPDX-License-Identifier: Apache-2.0
"""Trains NCF (He et al., 2017) on libFM files: does a user take an item?

The first feature of a row is its user, the second its item; others are left out. In frappe the items are apps. A row with
label 1 was recorded: the user had the app open. Rows with label -1 are the negative samples that come with the file, two
for each that was recorded, of the same user in the same situation, and apps drawn from those not open in it.

Run it as the ranks of libra run or torchrun, or alone. Rank 0 prints the area under the ROC curve of the test file, a hash
of the weights, which are the same on all ranks, the median time of a step, and what its host sends in one.
"""
import torch
import torch.distributed as dist
from files import libfm
from frappe import auc
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import BatchSampler, DistributedSampler
from training import agree, number, options, report, start, trainings, turns


class NCF(torch.nn.Module):
    """NeuMF: the product of a user's and an item's factors (GMF), and a network that gets rows of other tables (MLP)."""

    def __init__(self, users, items, factors):
        super().__init__()
        self.gmf_users = torch.nn.Embedding(users, factors, sparse=True)
        self.gmf_items = torch.nn.Embedding(items, factors, sparse=True)
        self.mlp_users = torch.nn.Embedding(users, 2 * factors, sparse=True)
        self.mlp_items = torch.nn.Embedding(items, 2 * factors, sparse=True)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(4 * factors, 2 * factors), torch.nn.ReLU(), torch.nn.Linear(2 * factors, factors), torch.nn.ReLU()
        )
        self.out = torch.nn.Linear(2 * factors, 1)
        for table in (self.gmf_users, self.gmf_items, self.mlp_users, self.mlp_items):
            torch.nn.init.normal_(table.weight, std=0.05)

    def forward(self, users, items):
        gmf = self.gmf_users(users) * self.gmf_items(items)
        mlp = self.mlp(torch.cat([self.mlp_users(users), self.mlp_items(items)], 1))
        return self.out(torch.cat([gmf, mlp], 1))[:, 0]


def main():
    parser = options(__doc__, epochs=10, batch=1024, rate=0.02)
    parser.add_argument("--data", required=True, help="libFM file to train on")
    parser.add_argument("--test", required=True, help="libFM file to test with")
    parser.add_argument("--rows", type=number, default=10**9, help="rows of each file, at most")
    parser.add_argument("--factors", type=number, default=16, help="of GMF; a row of MLP has twice as many (%(default)s)")
    given = start(parser)
    features, labels, test, test_labels = agree(lambda: [*libfm(given.data, given.rows, 2), *libfm(given.test, given.rows, 2)])
    first = min(features[:, 1].min(), test[:, 1].min())  # item
    users, items = (1 + int(max(features[:, i].max(), test[:, i].max())) for i in (0, 1))
    trained = trainings(given, lambda: NCF(users, items - int(first), given.factors))

    shares = DistributedSampler(labels, seed=given.seed)
    batches = BatchSampler(shares, given.batch // dist.get_world_size(), drop_last=False)
    for epoch in range(given.epochs):
        shares.set_epoch(epoch)
        for training, rows in turns(trained, batches, given.steps):
            with training.step():
                training.optimizer.zero_grad()
                scores = training.parallel(features[rows, 0], features[rows, 1] - first)
                binary_cross_entropy_with_logits(scores, labels[rows]).backward()
                training.optimizer.step()
    report(given, trained, lambda model: {"auc": round(auc(model(test[:, 0], test[:, 1] - first).numpy(), test_labels.numpy()), 4)})


if __name__ == "__main__":
    main()
