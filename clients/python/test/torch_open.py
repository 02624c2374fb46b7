# SPDX-License-Identifier: Apache-2.0
"""Tests of how the backend "libra" begins, on two ranks of a host of libra run --sync. If one of them cannot, both are told why."""

import datetime
import faulthandler
import gc
import hashlib
import json
import os
import signal
import socket
import struct
import sys
import tempfile
import threading
import types
import unittest
import warnings
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from groups import end
from torch.nn.parallel import DistributedDataParallel

import libra.torch

faulthandler.dump_traceback_later(300, exit=True)  # a call that waits for ever
rank = int(os.environ["RANK"])
store, _, _ = next(dist.rendezvous("env://"))
tensor = torch.sparse_coo_tensor([[1]], [[1.0, 2.0]], (8, 2))


class Alone:
    """The only rank of a group, with a session whose steps are given."""

    dim, abandoned = 2, False

    def __init__(self, step):
        self.step = step
        self.rows = libra.torch._rows.Rows(self, {})

    def all_reduce(self, tensor):
        return self.rows.all_reduce(self, 1, tensor)

    def size(self):
        return 1

    def reduce(self, keys, values, timeout, look):
        return self.step(keys, values)

    def abandon(self):
        self.abandoned = True


class Open(unittest.TestCase):
    def begin(self, seconds=60, part="", backend="libra", **environment):
        """Begins with other variables than libra run has set; a failed group leaves words in its part of the store."""
        right = dict(os.environ)
        os.environ.update(environment)
        try:
            dist.init_process_group(backend, store=dist.PrefixStore(self.id() + part, store), rank=rank, world_size=2, timeout=datetime.timedelta(seconds=seconds))
        finally:
            os.environ.update(right)

    def test_no_agent(self):
        if rank == 1:
            with self.assertRaisesRegex(libra.AgentNotFound, "there is no /nowhere: start libra agent"):
                self.begin(LIBRA_AGENT="/nowhere")
        else:
            with self.assertRaisesRegex(ValueError, "rank 1 has no session: .*there is no /nowhere: start libra agent"):
                self.begin()

    def test_agent_of_other_version(self):
        """An agent that speaks another version of the protocol: all ranks are told which of the two to upgrade."""
        want = "speaks versions 2 to 3 of the protocol, this library, .*, version 1: upgrade the library"
        if rank == 1:
            with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
                listener.bind(path := os.path.join(folder, "agent"))
                listener.listen()

                def refuse():
                    client, _ = listener.accept()
                    with client:
                        client.recv(1024)
                        client.send(struct.pack("<IIHHI496s", 0x4152424C, 2, 2, 3, 0, b"too old"))

                agent = threading.Thread(target=refuse)
                agent.start()
                with self.assertRaisesRegex(libra.Error, want):
                    self.begin(LIBRA_AGENT=path)
                agent.join()
        else:
            with self.assertRaisesRegex(ValueError, f"rank 1 has no session: .*{want}"):
                self.begin()

    def test_long_reason(self):
        """A reason that is longer than what ranks report is cut, and still tells all of them whose it is."""
        library = "/nowhere/" + "ä" * 2000
        with mock.patch.dict(os.environ, {"LIBRA_LIBRARY": library}):
            libra._library.library.cache_clear()
            if rank == 1:
                with self.assertRaisesRegex(libra.LibraryNotFound, "cannot be loaded: .*or name the file in LIBRA_LIBRARY"):
                    self.begin()
        libra._library.library.cache_clear()
        if rank == 0:
            with self.assertRaisesRegex(ValueError, "^rank 1 has no session: /nowhere/ä+"):
                self.begin()

    def test_no_job(self):
        with self.assertRaisesRegex(libra.Error, "refuses job nothing") as failed:
            self.begin(LIBRA_JOB="nothing")
        self.assertEqual(failed.exception.name, "NO_JOB")

    def test_other_devices(self):
        """A backend for GPUs is refused on all ranks, with the name of the right one. (torch2.py has what PyTorch 2 accepts.)"""
        names = ("cuda:libra", "cpu:gloo,cuda:libra", "xpu:libra")
        want = 'the backend "libra" is one for the CPU: give "libra", or "cpu:libra,cuda:nccl"'
        if torch.__version__.startswith("1."):
            names = ("cuda:libra", "cpu:libra", "cpu:libra,cuda:nccl")
            want = 'has one backend for all devices: give "libra", or take PyTorch 2.6 or later'
        for name in names:
            with self.assertRaisesRegex(ValueError, want):
                self.begin(part=name, backend=name)
            self.assertFalse(dist.is_initialized())

    def test_no_cuda(self):
        """Where PyTorch has no CUDA, a sparse tensor of a GPU ends in its own error, and the ranks go on."""
        if torch.backends.cuda.is_built():
            self.skipTest("PyTorch was built with CUDA")
        self.begin()
        with self.assertRaisesRegex(AssertionError, "Torch not compiled with CUDA enabled"):
            dist.all_reduce(tensor.cuda())
        mine = tensor.clone()
        dist.all_reduce(mine)
        self.assertEqual(mine.to_dense()[1].tolist(), [2.0, 4.0])
        dist.destroy_process_group()
        gc.collect()  # later tests want sessions of their own

    def test_variables(self):
        with self.assertRaisesRegex(ValueError, "LIBRA_JOB is not set"):
            self.begin(LIBRA_JOB="")

    def test_parties(self):
        with self.assertRaisesRegex(ValueError, "LOCAL_WORLD_SIZE is 'two'"):
            self.begin(LOCAL_WORLD_SIZE="two")

    def test_stopped_agent(self):
        """An agent that does not run is told after the group's time. What is left of its step is in no later one."""
        for attempt in "12345":
            self.begin(part=attempt)
            dist.all_reduce(tensor.clone())
            (rows,) = libra.torch._rows._connected.values()
            names = dist.PrefixStore(attempt, store)
            if rank == 0:
                agent = rows._session.info.agent_pid
                os.kill(agent, signal.SIGSTOP)
                # The ranks then wait for the agent to notice their end. The server misses it after 3 s.
                threading.Timer(2.5, os.kill, (agent, signal.SIGCONT)).start()
                names.set("stopped", "")
            names.wait(["stopped"])
            told = "nothing"
            try:
                rows.all_reduce(dist.group.WORLD, 0.3, tensor.clone())
            except (TimeoutError, libra.PartyGone) as e:
                told = f"{type(e).__name__}: {e}"
            names.set(f"told {rank}", told)
            ranks = [names.get(f"told {r}").decode() for r in range(2)]
            dist.destroy_process_group()
            del rows
            gc.collect()
            if all(told.startswith("TimeoutError") for told in ranks):
                break  # otherwise a rank came when the agent ran again: other programs had the processors
        self.assertRegex(told, "^TimeoutError: .*the agent of this host does not answer")
        self.begin(part="again")
        for _ in range(2):
            mine = tensor.clone()
            dist.all_reduce(mine)
            self.assertEqual(mine.to_dense()[1].tolist(), [2.0, 4.0])
        dist.destroy_process_group()
        gc.collect()  # later tests want sessions of their own

    def test_too_many_parties(self):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", ResourceWarning)
            with self.assertRaisesRegex(ValueError, "rank 0 has LOCAL_WORLD_SIZE 3, but 2 ranks use its agent"):
                self.begin(LOCAL_WORLD_SIZE="3")
            gc.collect()
        self.assertEqual([str(w.message) for w in told if "libra.Session" in str(w.message)], [])  # the session is closed

    def test_units(self):
        """The job has to be able to add the rows that show whether the ranks agree."""

        def check(exponent, ranks):
            member = {"agent": 1, "parties": ranks, "job": 1, "dim": 2, "arithmetic": "exact", "exponent": exponent}
            libra.torch._rows._check([json.dumps(member)] * ranks)

        for exponent, ranks in (-46, 582), (0, 582), (-55, 1), (-54, 2):
            check(exponent, ranks)
        for exponent, ranks, need in (-46, 583, "-45"), (1, 2, "-54"), (-56, 1, "-55"), (-55, 2, "-54"):
            with self.assertRaisesRegex(ValueError, rf"units of 2\^{exponent} .* need units of 2\^{need} to 2\^0 \(job.exponent\)"):
                check(exponent, ranks)

    def test_members(self):
        """Sessions of different jobs, or of one in another arithmetic, do not match."""
        member = {"agent": 1, "parties": 2, "job": 1, "dim": 2, "arithmetic": "exact", "exponent": -46}
        for change, text in (
            ({"job": 7}, "rank 1 is in a job of job 7, rank 0 in one of job 1"),
            ({"dim": 3}, "rank 1 is in a job of dim 3, rank 0 in one of dim 2"),
            ({"arithmetic": "lut"}, "the job adds in arithmetic lut: all-reduces need one in arithmetic exact"),
        ):
            with self.assertRaisesRegex(ValueError, text):
                libra.torch._rows._check([json.dumps(member), json.dumps({**member, **change})])

    def test_kinds(self):
        """Ranks whose kinds differ do not agree, also if the sums of their digits are those of ranks that do."""
        kinds = []
        for digest in b"11111111", b"11121111", b"11131111":
            with mock.patch.object(hashlib, "blake2b", lambda text, digest_size: types.SimpleNamespace(digest=lambda: digest)):
                kinds.append(libra.torch._rows._Kind(torch.Size([8, 2]), 1, torch.float32, "SUM", 1, 3))
        for sums, agreed in (3 * kinds[1].seal, True), (sum(kind.seal for kind in kinds), False):
            keys = np.flatnonzero(sums).astype(np.uint64)
            self.assertEqual(kinds[1].is_agreed(keys, sums[keys.view(np.int64)]), agreed)
        for rows, ours in ((1 << 61) - 1, True), (1 << 61, False):
            self.assertEqual(libra.torch._rows._Kind(torch.Size([rows, 4]), 1, torch.float32, "SUM", 2, 3).ours, ours)

    def test_padding(self):
        """Rows of the job that a row of the tensor does not fill end with zeros."""
        pushed = []

        def reduce(keys, values):
            pushed.append(values)
            return keys, values

        alone, wide = Alone(reduce), torch.sparse_coo_tensor([[1]], [[1.0, 2.0, 3.0]], (8, 3))
        empty = np.empty

        def dirty(*arguments, **named):
            array = empty(*arguments, **named)
            array.fill(7)
            return array

        with mock.patch.object(np, "empty", dirty):
            alone.all_reduce(wide)
        self.assertEqual(pushed[0][-2:].tolist(), [[1, 2], [3, 0]])

    def test_gather(self):
        """A text that is too long is cut, in the middle of a character too."""

        class One:
            def size(self):
                return 1

            def allgather(self, outputs, inputs):
                outputs[0][0].copy_(inputs[0])
                return types.SimpleNamespace(wait=lambda: None)

        self.assertEqual(libra.torch._rows.gather(One(), "x" + "ä" * 600), ["x" + "ä" * 499 + "\ufffd"])

    def test_rows_of_a_stranger(self):
        """A row beyond the tensor is not put into it: PyTorch does not look again."""

        def reduce(keys, values):
            seal = len(keys) - 1  # the tensor has one row
            return np.append(keys, np.uint64(seal + next(rows))), np.append(values, [[1, 1]], 0).astype(np.float32)

        rows = iter([7, 8, 2**63])
        alone = Alone(reduce)
        self.assertEqual(alone.all_reduce(tensor).indices().tolist(), [[1, 7]])
        for _ in range(2):
            with self.assertRaisesRegex(libra.Error, "a step of 8 rows has one beyond them"):
                alone.all_reduce(tensor)

    def test_stranger_in_a_step(self):
        """Sums that another program has pushed to are no all-reduce, also if it pushes what a rank does."""
        with self.assertRaisesRegex(libra.Error, "2 programs took part in a step, and there are 1 ranks"):
            Alone(lambda keys, values: (keys, values * 2)).all_reduce(tensor)

    def test_timeout(self):
        """After a step that was not in time there is no other: the next tensors would be added to those of this one."""

        def reduce(keys, values):
            raise TimeoutError("the reason")

        alone = Alone(reduce)
        with self.assertRaisesRegex(TimeoutError, r"not all ranks came to the all-reduce of a tensor of shape \[8, 2\].*: the reason"):
            alone.all_reduce(tensor)
        self.assertTrue(alone.abandoned)

    def test_ended(self):
        """A step is waited for a while after a rank has ended, whose own sums it may have. Then there is no other."""

        class Watched(Alone):
            looks = 0

            def size(self):
                return 2

            def rank(self):
                return 0

            def send(self, tensors, to, tag):
                raise RuntimeError("gone")

            def reduce(self, keys, values, timeout, look):
                for _ in range(self.looks):
                    look()
                return keys, values * 2

        alone = Watched(None)
        for alone.looks in 1, 10:
            self.assertEqual(alone.all_reduce(tensor).to_dense()[1].tolist(), [2.0, 4.0])
        alone.looks = 11
        with self.assertRaisesRegex(libra.PartyGone, "rank 1 has ended: this step needs all ranks: start all of them anew"):
            alone.all_reduce(tensor)
        self.assertTrue(alone.abandoned)

    def test_interrupt(self):
        """Nor is there one after Ctrl-C in a step, which goes on: a program that caught it would miss the sums that other ranks get."""
        alone = Alone(mock.Mock(side_effect=KeyboardInterrupt))
        with self.assertRaises(KeyboardInterrupt):
            alone.all_reduce(tensor)
        self.assertTrue(alone.abandoned)

    def test_hook(self):
        """The hook opens a session of its own where the backend has none, which ends with the model's group."""
        dist.init_process_group("gloo", store=dist.PrefixStore(self.id(), store), rank=rank, world_size=2)
        model = DistributedDataParallel(torch.nn.Embedding(8, 3, sparse=True))
        model.register_comm_hook(None, libra.torch.sparse_hook)
        for _ in range(2):
            model.zero_grad()
            model(torch.tensor([rank, 5])).sum().backward()
            gradient = model.module.weight.grad.to_dense()
            self.assertEqual(gradient[:, 0].tolist(), [0.5, 0.5, 0, 0, 0, 1, 0, 0])
        alone = dist.new_group([0])
        if rank == 0:
            with self.assertRaisesRegex(ValueError, "the model's group has 1 ranks of 2: sparse_hook needs one of all ranks"):
                libra.torch.sparse_hook(alone, types.SimpleNamespace(buffer=tensor.clone))
        del model, alone
        end()
        gc.collect()
        self.assertEqual(len(libra.torch._rows._connected), 0)

    def test_started_by_program(self):
        """Ranks that the program itself starts, as torch.multiprocessing does, have the WORLD_SIZE of their parent, which means nothing."""
        self.begin(WORLD_SIZE="1")
        self.assertEqual(len(libra.torch._rows._connected), 1)
        dist.all_reduce(mine := tensor.clone())
        self.assertEqual(mine.to_dense()[1].tolist(), [2.0, 4.0])
        dist.destroy_process_group()
        gc.collect()  # later tests want sessions of their own

    def test_right(self):
        """A rank that does not come is missed after the group's time, and then cannot go on either. A new group can."""
        self.begin()
        group = dist.new_group(timeout=datetime.timedelta(seconds=5))
        mine = tensor.clone()
        dist.all_reduce(mine)
        self.assertEqual(mine.to_dense()[1].tolist(), [2.0, 4.0])
        if rank == 0:
            with self.assertRaisesRegex(TimeoutError, r"not all ranks came to the all-reduce of a tensor of shape \[8, 2\].* after 5.0 s: 1 of 2 parties of this host"):
                dist.all_reduce(tensor.clone(), group=group)
            store.set("missed", "")
        else:
            store.wait(["missed"])
            try:
                dist.all_reduce(tensor.clone())
                self.fail("it has not missed rank 0")
            except libra.PartyGone as e:
                self.assertRegex(str(e), "^rank 0 has ended: ")
                kept = e  # and with it what its frames have  # noqa: F841
        dist.destroy_process_group()
        self.begin(part="again")
        dist.all_reduce(mine := tensor.clone())
        self.assertEqual(mine.to_dense()[1].tolist(), [2.0, 4.0])
        dist.destroy_process_group()
        gc.collect()  # later tests want sessions of their own


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=0)
