# SPDX-License-Identifier: Apache-2.0
"""Tests of libra.torch's embeddings with one worker of libra run --sync --optimizer sgd --learning-rate 1 --dim 2 --workers 1."""

import faulthandler
import os
import sys
import unittest

import torch
from torch.nn import functional

import libra
import libra.torch

faulthandler.dump_traceback_later(300, exit=True)  # a call that waits for ever
session = libra.Session(os.environ["LIBRA_JOB"], parties=1)


def numbers(*shape):
    return torch.randint(0, 9, shape, generator=torch.Generator().manual_seed(len(shape))).float()


class Embeddings(unittest.TestCase):
    def same(self, remote, local, *arguments, **named):
        """A step of SGD changes the server's rows as it changes those of a module of PyTorch's."""
        everything = torch.arange(remote.num_embeddings)
        local.zero_grad()
        local.weight.data.copy_(remote.rows(everything))
        factors = None
        for module in remote, local:
            out = module(*arguments, **named)
            factors = numbers(*out.shape) if factors is None else factors
            (out * factors).sum().backward()
        with torch.no_grad():
            torch.testing.assert_close(remote(*arguments, **named), local(*arguments, **named))
        session.barrier()
        want = local.weight.detach() - local.weight.grad
        torch.testing.assert_close(remote.rows(everything), want, rtol=1e-6, atol=1e-6)
        self.assertGreater(local.weight.grad.abs().sum(), 0)

    def test_embedding(self):
        remote = libra.torch.Embedding(20, session)
        self.same(remote, torch.nn.Embedding(20, 2), torch.tensor([[1, 2, 1], [19, 0, 1]]))
        self.assertEqual((list(remote.parameters()), remote.state_dict(), repr(remote)), ([], {}, "Embedding(20, 2)"))
        self.assertEqual(remote(torch.zeros((0, 3), dtype=torch.int64)).shape, (0, 3, 2))

    def test_bags(self):
        index, offsets = torch.tensor([3, 4, 3, 5, 5, 5]), torch.tensor([0, 2, 5])
        for mode in "sum", "mean", "max":
            remote, local = libra.torch.EmbeddingBag(20, session, mode=mode), torch.nn.EmbeddingBag(20, 2, mode=mode)
            self.same(remote, local, index, offsets)
            self.same(remote, local, index.view(2, 3))
        remote, local = libra.torch.EmbeddingBag(20, session, mode="sum"), torch.nn.EmbeddingBag(20, 2, mode="sum")
        self.same(remote, local, index, offsets, per_sample_weights=numbers(6))

    def test_tables(self):
        """Tables of other keys have other rows."""
        one, other = libra.torch.Embedding(4, session, first_key=100), libra.torch.Embedding(4, session, first_key=104)
        index = torch.arange(4)
        before = other.rows(index)
        one(index).sum().backward()
        session.barrier()
        self.assertTrue(torch.equal(other.rows(index), before))
        self.assertEqual(one.rows(index).tolist(), session.pull([100, 101, 102, 103]).tolist())

    def test_twice(self):
        """A row that a step uses in two places gets the sum of both gradients, in one push."""
        remote = libra.torch.Embedding(20, session)
        before, pushes = remote.rows(torch.tensor([7])), session.statistics().pushes_accepted
        rows = remote(torch.tensor([7, 7]))
        (rows[0] + 2 * rows[1] + functional.relu(rows).sum() * 0).sum().backward()
        session.barrier()
        self.assertEqual(session.statistics().pushes_accepted, pushes + 1)
        torch.testing.assert_close(remote.rows(torch.tensor([7])), before - 3)

    def test_errors(self):
        remote = libra.torch.Embedding(20, session)
        for index, text in (([20], "index 20 to 20 of 20 rows"), ([-1, 3], "index -1 to 3 of 20 rows")):
            with self.assertRaisesRegex(IndexError, text):
                remote(torch.tensor(index))
        for index in [1.5], [True, False]:
            with self.assertRaisesRegex(TypeError, "index has type torch.(float32|bool), integers are wanted"):
                remote(torch.tensor(index))
        with self.assertRaisesRegex(ValueError, "at least one is wanted"):
            libra.torch.Embedding(0, session)
        for first in -1, 2**64 - 1:
            with self.assertRaisesRegex(ValueError, f"2 rows from key {first} on: .*keys are 0 to"):
                libra.torch.Embedding(2, session, first_key=first)
        with self.assertRaisesRegex(ValueError, "mode is 'least'"):
            libra.torch.EmbeddingBag(2, session, mode="least")
        (remote(torch.tensor([5])) * float("nan")).sum().backward()
        with self.assertRaises(libra.NotFinite) as failed:
            session.flush()
        self.assertEqual(failed.exception.key, 5)


if __name__ == "__main__":
    with session:
        unittest.main(argv=sys.argv[:1], verbosity=0)
