# SPDX-License-Identifier: Apache-2.0
"""Tests beside an agent in a process of its own, which is stopped. The job is that of real.py."""

import faulthandler
import os
import pathlib
import signal
import sys
import threading
import unittest

import libra

signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in a shell's background begin with SIGINT ignored
faulthandler.dump_traceback_later(100, exit=True)  # a call that waits for ever


class Stopped(unittest.TestCase):
    def setUp(self):
        self.session = libra.Session("clicks", parties=1, entries=8)
        self.kept = self.session.empty(1)  # holds the memory, whose end would wait for the agent
        agent = self.session.info.agent_pid
        os.kill(agent, signal.SIGSTOP)
        while not all(stat.read_text().rpartition(") ")[2].startswith("T") for stat in pathlib.Path(f"/proc/{agent}/task").glob("*/stat")):
            pass  # its threads stop one after the other
        self.addCleanup(os.kill, agent, signal.SIGCONT)

    def interrupt(self):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()

    def test_leave(self):
        """Ctrl-C waits for no push."""
        with self.assertRaises(KeyboardInterrupt):
            with self.session as session:
                session.push([1], [[0, 0]])
                self.interrupt()
                session.flush()
        self.assertIn("closed", repr(self.session))

    def test_room(self):
        """Nor does a call that waits for room; and what has a time has that to wait for room, too."""
        self.interrupt()
        with self.assertRaises(KeyboardInterrupt):
            while True:  # where /proc is not mounted, the agent may take some before it stops
                self.session.push([1], [[0, 0]])
        with self.assertRaisesRegex(TimeoutError, "the step has not ended after 0.2 s: the agent of this host does not answer"):
            self.session.reduce([1], [[0, 0]], timeout=0.2)
        self.session.abandon()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=0)
