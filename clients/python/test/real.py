# SPDX-License-Identifier: Apache-2.0
"""Tests with the real agent, at LIBRA_AGENT. The job is "clicks", with rows of two floats, of which 0 to 49 are hot, SGD of rate 1."""

import gc
import os
import select
import signal
import sys
import threading
import unittest
import warnings
import weakref

import numpy as np

import libra


def dial(**options):
    return libra.Session("clicks", client="python", dim=2, **options)


class Requests(unittest.TestCase):
    def setUp(self):
        self.session = dial(parties=1)
        self.addCleanup(self.session.close)

    def weights(self, keys):
        """After a step, of which the gradients are those of before."""
        self.session.barrier()
        return self.session.pull(keys)

    def test_push_and_pull(self):
        keys = np.array([3, 70, 2**63], np.uint64)
        gradients = np.array([[1, 2], [3, 4], [5, 6]], np.float32)
        before = self.weights(keys)
        self.assertEqual((before.shape, before.dtype), ((3, 2), np.float32))
        self.session.push(keys, gradients)
        self.session.push([3, 70], [[1, 1], [1, 1]])  # lists, and other types
        self.session.push(np.zeros(0, np.int64), np.zeros((0, 2)))
        gradients[:] = np.nan  # free again
        np.testing.assert_array_equal(self.weights(keys), before - np.array([[2, 3], [4, 5], [5, 6]], np.float32))
        out = np.empty((3, 2), np.float32)
        self.assertIs(self.session.pull(keys, out), out)
        np.testing.assert_array_equal(out, self.session.pull(keys))

    def test_tickets(self):
        tickets = [self.session.push_later([k], [[k, k]]) for k in range(20)]
        pulls = [self.session.pull_later([k]) for k in range(20)]
        for ticket in tickets:
            self.assertIsNone(ticket.wait(600))
            self.assertTrue(ticket.done() and ticket.accepted())
            self.assertIsNone(ticket.wait())
        rows = np.concatenate([ticket.wait() for ticket in pulls])
        np.testing.assert_array_equal(rows, self.session.pull(np.arange(20)))

    def test_ticket_keeps_arrays(self):
        """The agent may still read or write them, though the program has dropped them."""
        keys, gradients = np.array([1, 70], np.uint64), np.zeros((2, 2), np.float32)
        of = [weakref.ref(keys), weakref.ref(gradients)]
        ticket = self.session.push_later(keys, gradients)
        del keys, gradients
        self.assertTrue(all(array() is not None for array in of))
        ticket.wait()
        self.assertTrue(all(array() is None for array in of))

    def test_reduce(self):
        before = self.weights([7, 1000])
        self.session.push([1000, 7], [[1, 0], [0.5, 2]])
        keys, sums = self.session.reduce(np.array([7, 2**64 - 1], np.uint64), [[0.25, -2], [3, 4]])
        np.testing.assert_array_equal(keys, np.array([7, 1000, 2**64 - 1], np.uint64))
        np.testing.assert_array_equal(sums, np.array([[0.75, 0], [1, 0], [3, 4]], np.float32))
        np.testing.assert_array_equal(self.session.pull([7, 1000]), before - sums[:2])
        many = np.arange(10**6, dtype=np.uint64)  # more than the buffers hold
        keys, sums = self.session.reduce(many, np.ones((len(many), 2)))
        np.testing.assert_array_equal(keys, many)
        self.assertTrue((sums == 1).all() and sums.shape == (10**6, 2))
        with self.assertRaises(libra.NotFinite) as failed:
            self.session.reduce([4, 90], [[1, 2], [np.nan, 3]])
        self.assertEqual((failed.exception.index, failed.exception.key), (2, 90))
        bad = np.ones((len(many), 2))
        bad[900_000, 1] = np.inf
        with self.assertRaises(libra.NotFinite) as failed:
            self.session.reduce(many, bad)
        self.assertEqual((failed.exception.index, failed.exception.key), (1_800_001, 900_000))
        with self.session.prepare([3, 4]) as batch:
            np.testing.assert_array_equal(self.session.reduce(batch, np.ones((2, 2)))[0], [3, 4])
        self.session.push([4], [[1e9, 0]])
        with self.assertRaises(libra.StepDropped) as failed:  # for what was refused before
            self.session.reduce([3], [[1, 2]])
        self.assertEqual((failed.exception.key, failed.exception.name), (4, "DROPPED"))
        keys, sums = self.session.reduce([3], [[5, 6]])  # and the next step goes on
        np.testing.assert_array_equal((keys[0], *sums[0]), (3, 5, 6))
        self.session.flush()

    def test_prepared(self):
        before = self.weights([1, 60])
        with self.session.prepare([1, 60]) as batch:
            self.assertEqual(len(batch), 2)
            for _ in range(10):
                self.session.push(batch, np.ones((2, 2)))
            np.testing.assert_array_equal(self.weights(batch), before - 10)
        with self.assertRaisesRegex(ValueError, "was released"):
            self.session.push(batch, np.ones((2, 2)))
        self.assertEqual(self.session.statistics().prepared_bytes, 0)

    def test_shared_arrays(self):
        before = self.weights([5, 80])
        keys, gradients, rows = self.session.empty(2, np.uint64), self.session.empty((2, 2)), self.session.empty((2, 2))
        keys[:], gradients[:] = [5, 80], 1
        for _ in range(300):  # more than the ring has
            self.session.push(keys, gradients)
        self.session.pull(keys, rows)
        np.testing.assert_array_equal(self.weights([5, 80]), before - 300)
        for _ in range(10):
            self.session.empty((1 << 20, 1))[:] = 1  # 4 of 8 MiB, given back each time
        with self.assertRaisesRegex(libra.TooLarge, "ask for more buffer_bytes"):
            self.session.empty(1 << 30)
        # Arrays without a reference stay until the agent has read them.
        before = self.weights([5])
        for i in range(120):  # 9.6 MB in 8 MiB
            big = self.session.empty((10000, 2))
            big[:] = i % 4 / 64
            self.session.push(np.full(10000, 5), big)
            del big
        np.testing.assert_array_equal(self.weights([5]), before - 10000 * 180 / 64)

    def test_failures(self):
        with self.assertRaises(libra.NotFinite) as failed:
            self.session.push_later([4, 90], [[1, 2], [np.inf, 3]]).wait()
        e = failed.exception
        self.assertEqual((e.index, e.key, e.name, e.code), (2, 90, "NOT_FINITE", 32))
        self.assertIn("push of 2 keys, job clicks: a gradient is NaN or infinite: number 2, key 90", str(e))
        with self.assertRaises(libra.NotFinite) as failed:  # by the flush, too
            self.session.flush()
        self.assertEqual((failed.exception.index, failed.exception.key), (2, 90))
        self.session.push([4], [[1e9, 0]])
        with self.assertRaises(ValueError) as failed:
            self.session.flush()
        self.assertIsInstance(failed.exception, libra.OutOfRange)
        with self.assertRaisesRegex(libra.Error, "mode has no such request"):
            self.session.push_sums([1], [[1, 1]])
        with self.assertRaises(libra.Error):
            self.session.flush()
        with self.assertRaises(libra.TooLarge):
            self.session.push(np.zeros(1 << 20, np.uint64), np.zeros((1 << 20, 2)))
        for keys, gradients, text in (
            ([-1], [[1, 1]], "keys has -1"),
            ([1.5], [[1, 1]], "keys has type float64"),
            ([[1]], [[1, 1]], r"keys has shape \(1, 1\)"),
            ([1], [[1, 1, 1]], r"gradients has shape \(1, 3\), \(1, 2\) is wanted"),
            ([1], [["a", "b"]], "gradients has type"),
        ):
            with self.assertRaisesRegex((ValueError, TypeError), text):
                self.session.push(keys, gradients)
        with self.assertRaisesRegex(ValueError, "out is not a contiguous"):
            self.session.pull([1], np.empty((1, 2)))

    def test_descriptor(self):
        ticket = self.session.pull_later([1])
        while not ticket.done():
            select.select([self.session], [], [])
            self.session.process()
        self.assertEqual(ticket.wait().shape, (1, 2))

    def test_info(self):
        info = self.session.info
        self.assertEqual((info.dim, info.mode, info.arithmetic, info.exponent, info.hot_rows), (2, "combine", "exact", -46, 50))
        self.assertEqual((len(info.hot_set), self.session.dim), (32, 2))
        self.assertIn("dim 2", repr(self.session))
        dial(hot_set=info.hot_set).close()


class Life(unittest.TestCase):
    def test_threads(self):
        session = dial(parties=1)
        session.barrier()
        before = session.pull(np.arange(8))

        def push(key):
            for _ in range(200):
                session.push([key, (key + 1) % 8], np.ones((2, 2)))
                session.pull([key])

        threads = [threading.Thread(target=push, args=(key,)) for key in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        session.barrier()
        np.testing.assert_array_equal(session.pull(np.arange(8)), before - 400)
        session.close()

    def test_refusals(self):
        for options, text in (
            ({"job": "nothing"}, "NO_JOB"),
            ({"job": "clicks", "dim": 3}, "DIMENSION"),
            ({"job": "clicks", "hot_set": bytes(31) + b"x"}, "HOT_SET"),
        ):
            with self.assertRaises(libra.Error) as failed:
                libra.Session(**options)
            self.assertEqual(failed.exception.name, text)
        with self.assertRaisesRegex(ConnectionError, "there is no /nowhere: start libra agent"):
            libra.Session("clicks", socket="/nowhere")
        with self.assertRaisesRegex(ValueError, "hot_set has 3 bytes"):
            libra.Session("clicks", hot_set=b"abc")

    def test_end(self):
        with dial() as session:
            array = session.empty(4)
            session.push([1], [[0, 0]])
            ticket = session.pull_later([1])
        array[:] = 1  # outlives the session
        self.assertEqual(array.sum(), 4)
        with self.assertRaises(libra.SessionClosed):
            session.push([1], [[1, 1]])
        with self.assertRaises(libra.SessionClosed):
            ticket.wait()
        session.close()
        with self.assertRaisesRegex(KeyError, "mine"):
            with dial() as session:
                session.push([1], [[0, 0]])
                raise KeyError("mine")
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            dial()
            gc.collect()
        self.assertEqual([w.category for w in told], [ResourceWarning])

    def test_missing_party(self):
        session = dial(parties=2)  # alone
        with self.assertRaisesRegex(TimeoutError, r"not ended after 0.2 s: 1 of 2 parties of this host have come"):
            session.reduce([3], [[1, 2]], timeout=0.2)
        session.abandon()

    def test_fork(self):
        with dial() as session:
            child = os.fork()
            if child == 0:
                try:
                    session.push([1], [[1, 1]])
                except libra.Forked:
                    with dial() as own:
                        own.push([1], [[0, 0]])
                    os._exit(0)
                os._exit(1)
            self.assertEqual(os.waitpid(child, 0)[1], 0)
            session.push([1], [[0, 0]])

    def test_interrupt(self):
        """Ctrl-C ends a wait for a party that does not come."""
        with self.assertRaises(KeyboardInterrupt):
            with dial(parties=2) as session:
                threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT)).start()
                session.barrier()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=0)
