# SPDX-License-Identifier: Apache-2.0
"""The end of gloo's backends, whose threads need the interpreter's lock to free tensors to which they hold the last references.

PyTorch 2.6 keeps that lock while it destroys a backend and waits for its threads: for ever if one of them needs it (fixed by its pull
request 154976). In all versions, a thread that needs the lock after the interpreter has ended aborts the process (pull request 179291).
"""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from typing import Any, List, Set

import torch
from torch.distributed import ProcessGroupGloo, distributed_c10d
from torch.utils._mode_utils import no_dispatch

# How many all-reduces settle makes with a backend, unless it waits for more than 40 seconds or is interrupted. Gloo numbers collectives,
# and ranks must agree on the numbers: a model may use the backend after its group is destroyed.
_ALL_REDUCES = 1024

# A tensor that stays, so that threads need no lock to let go of it.
_empty = torch.empty(0, device="cpu")

# Backends that a parent had when it forked this process: their threads are the parent's.
_inherited: Set[int] = set()


def _keep(thing: Any) -> None:
    """Takes a reference. As long as nothing gives it back, the thing is not destroyed, not even when the interpreter ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def settle(backends: List[ProcessGroupGloo]) -> None:
    """Waits until the threads of these backends have freed all that they sent. A collective in progress ends, at the latest, when the
    backend's timeout has passed. After an exception, such as that of Ctrl-C, the backends are never destroyed, so that nothing waits for
    their threads any more.
    """
    backends = [backend for backend in backends if id(backend) not in _inherited]
    for backend in backends:
        _keep(backend)
    for backend in backends:
        _settle(backend)
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(backend))


def _settle(backend: ProcessGroupGloo) -> None:
    """Makes all-reduces of empty tensors, which do not wait for other ranks, until each thread has freed one of the tensors: threads take
    work from one queue, and free what they have before they take more. They free it with the queue's lock, for which the last all-reduces
    wait, too.
    """
    freed: List[int] = []  # the thread that freed each empty tensor
    watched: List[Any] = []  # a weak reference to each
    begun = time.monotonic()
    while len(set(freed) - {threading.get_ident()}) < backend.options._threads:
        if len(freed) == len(watched):
            with no_dispatch():
                empty = torch.empty(0, device="cpu")
            watched.append(weakref.ref(empty, lambda _: freed.append(threading.get_ident())))
            backend.allreduce([empty])
            del empty
        time.sleep(min(0.05, 0.0002 + (time.monotonic() - begun) / 16))
    for _ in range(max(1, _ALL_REDUCES - len(watched))):
        backend.allreduce([_empty])


def all_backends() -> List[ProcessGroupGloo]:
    """Gloo's backends of all groups of this process, those of groups that are not Libra's included."""
    found = []
    for group in distributed_c10d._world.pg_map:
        for device in group._device_types:
            backend = group._get_backend(device)
            backend = getattr(backend, "wrapped_pg", backend)  # PyTorch's debugging wraps it
            if isinstance(backend, ProcessGroupGloo) and backend not in found:  # one may serve several devices
                found.append(backend)
    return found


def inherit(backends: List[ProcessGroupGloo]) -> None:
    """Keeps in a forked process the backends of its parent: whoever destroyed one would wait for threads that are not there."""
    for backend in backends:
        if id(backend) not in _inherited:
            _keep(backend)
            _inherited.add(id(backend))
