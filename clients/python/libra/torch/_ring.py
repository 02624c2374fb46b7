# SPDX-License-Identifier: Apache-2.0
"""Sums of all ranks around a ring, in codes of the C library, over a gloo group."""

from __future__ import annotations

import ctypes
import json
import math
import struct
import time
import weakref
from collections import deque
from datetime import timedelta
from typing import Any, Deque, Dict, List, Optional, Tuple

import numpy as np
import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, distributed_c10d

from .._errors import Malformed, check
from .._library import library
from ._rows import Mismatch

# What precedes each block: kind, scale, step, exchange; number, values and layout of the bucket; bytes of the block's codes.
_HEADER = struct.Struct("<BbxxIQQQ8sQ")
_CODES = 255  # a kind; the others are the number of an error that has ended the exchange, and have its text in place of codes
_ERRORS = (RuntimeError, Mismatch, Malformed, ConnectionError, TimeoutError)

_ROOM = bytes(_HEADER.size)
_TEXT = 4096  # bytes of an error's text at most
_GO = "go"

# How many rings each group has had. All ranks count alike, so that the number tells rings apart.
_opened: "weakref.WeakKeyDictionary[Any, int]" = weakref.WeakKeyDictionary()


def coded_max(n: int) -> int:
    """LIBRA_CODED_MAX of libra.h."""
    return (n + 63) // 64 + (n + 7) // 8 * 2 + 4 * n


def encode(bound: int, scale: Optional[int], values: np.ndarray) -> Tuple[torch.Tensor, int]:
    """Room for a header and the codes of float32[n], uint8[], and their scale: the given one, or that which fits the values."""
    c, at, written = library(), values.ctypes.data, ctypes.c_size_t()
    if scale is None:
        scale = c.fit(at, len(values))  # type: ignore[attr-defined]
    message = torch.empty(len(_ROOM) + max(1, coded_max(len(values))), dtype=torch.uint8, device="cpu")
    coded = message[len(_ROOM) :]
    check(c.encode(bound, scale, at, len(values), coded.data_ptr(), len(coded), ctypes.byref(written)))  # type: ignore[attr-defined]
    return message[: len(_ROOM) + written.value], scale


def decode(bound: int, scale: int, message: torch.Tensor, into: np.ndarray) -> np.ndarray:
    """Decodes what follows the header into float32[n], which it returns. The codes may come from anywhere."""
    coded = message[len(_ROOM) :]
    check(library().decode(bound, scale, coded.data_ptr(), len(coded), into.ctypes.data, len(into)))  # type: ignore[attr-defined]
    return into


class Ring:
    """A ring of the ranks of a group. They make it together, and use it in one thread each. After an error it is of no use."""

    def __init__(self, group: Any, bound: int, scale: Optional[int], timeout: timedelta) -> None:
        self.rank, self.ranks = group.rank(), group.size()
        self.sent = 0  # bytes
        self._before, self._after = (self.rank - 1) % self.ranks, (self.rank + 1) % self.ranks
        self._bound, self._scale, self._timeout = bound, scale, timeout.total_seconds()
        self._exchange, self._next = 0, 1  # the current one, and the step in which the next message is sent
        self._sending: Deque[List[Any]] = deque()  # what each of the last steps sends
        self._scratch = np.empty(0, np.float32)
        _opened[group] = number = _opened.get(group, 0) + 1
        name = group.group_name if hasattr(group, "group_name") else distributed_c10d._pg_names[group]  # PyTorch 1.13
        self._store = PrefixStore(f"libra codec {name} {number}", distributed_c10d._get_default_store())
        try:
            self._store.set(f"rank {self.rank}", json.dumps({"bound": bound, "scale": "by fit" if scale is None else scale}))
            state = self._store.compare_set("state", "", self._meet()).decode()  # what the first has found holds for all
        except RuntimeError as e:
            raise ConnectionError(f"the store of the ranks' group does not answer; has the rank that keeps it ended? {e}") from None
        if state != _GO:
            raise _error(state)
        try:
            self._gloo: Any = ProcessGroupGloo(PrefixStore("gloo", self._store), self.rank, self.ranks, timeout=timeout)
        except RuntimeError as e:
            raise ConnectionError(f"gloo does not connect rank {self.rank} with the other ranks of the codec: {e}") from None

    def _meet(self) -> str:
        """Waits until all ranks are there. Returns _GO if they code alike, else the error."""
        begun = time.monotonic()
        first: Dict[str, Any] = {}
        for rank in range(self.ranks):
            while True:
                state, member = (_look(self._store, key) for key in ("state", f"rank {rank}"))
                if state or member:
                    break
                if time.monotonic() - begun >= self._timeout:
                    return f"{_ERRORS.index(TimeoutError)} rank {rank} has not come to the codec's first exchange within {self._timeout:g} s: {_REMEDY}"
                time.sleep(0.01)
            if state:
                return state
            codec = json.loads(member)
            first = first or codec
            for what in first:
                if codec[what] != first[what]:
                    return (
                        f"{_ERRORS.index(Mismatch)} rank {rank} has a Codec of {what} {codec[what]}, rank 0 one of {what} {first[what]}: give all ranks the same"
                    )
        return _GO

    def all_reduce(self, values: np.ndarray, left: Optional[np.ndarray], bucket: int, layout: bytes) -> None:
        """Replaces float32[n] with the sums of all ranks: the same bits everywhere, and less than the bound from what each rank has coded.

        ``left``, float32[n], gets what this rank has cut: sums and what all ranks have cut add up to what they gave. Each
        rank has one of as many blocks at a time, sends it on, and adds the next one that it gets to its own. Then it
        has the sum of a block, which it codes and decodes, and whose codes all others pass on as they came.
        """
        self._exchange += 1
        n, size = len(values), 64 * math.ceil(len(values) / (64 * self.ranks))
        parts = [slice(min(n, i * size), min(n, (i + 1) * size)) for i in range(self.ranks)]
        if len(self._scratch) < size:
            self._scratch = np.empty(size, np.float32)
        ours = bucket, n, layout
        for step in range(1, 2 * self.ranks - 1):
            out, into = (parts[(self.rank - step + i) % self.ranks] for i in (1, 0))
            if step <= self.ranks:
                message, scale = encode(self._bound, self._scale, values[out])
                if left is not None or step == self.ranks:
                    decoded = decode(self._bound, scale, message, self._scratch[: out.stop - out.start])
                    if left is not None:
                        _cut(values[out], decoded, left[out])
                    if step == self.ranks:
                        values[out] = decoded
            self._send(message, _CODES, scale, step, *ours)
            message, scale = self._receive(step, ours, into.stop - into.start)
            try:
                decoded = decode(self._bound, scale, message, self._scratch[: into.stop - into.start])
            except Malformed as e:
                raise Malformed(f"rank {self.rank} got codes from rank {self._before} that are none: {e}") from None
            if step < self.ranks:
                values[into] += decoded
            else:
                values[into] = decoded
            # A block of this step shows that the rank before has got that of the last step, the one before it that of the step before, and so on:
            # the rank after this one has got what was sent ranks - 1 steps ago. So this does not wait for one that has failed.
            while len(self._sending) >= self.ranks:
                _finish(self._sending.popleft())

    def _send(self, message: torch.Tensor, kind: int, scale: int, step: int, bucket: int, values: int, layout: bytes) -> None:
        """Begins to send. If the rank after this one has failed, that is no error here: the rank before will say the reason, as to all."""
        header = _HEADER.pack(kind, scale, step, self._exchange, bucket, values, layout, len(message) - len(_ROOM))
        message[: len(_ROOM)] = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        self._next = step % (2 * self.ranks - 2) + 1
        works: List[Any] = []
        self._sending.append(works)
        try:
            for tensor in message.split([len(_ROOM), len(message) - len(_ROOM)]) if step == 1 else [message]:
                if len(tensor):
                    works.append(self._gloo.send([tensor], self._after, 0))
                    self.sent += len(tensor)
        except RuntimeError:
            pass

    def _receive(self, step: int, ours: Tuple[int, int, bytes], n: int) -> Tuple[torch.Tensor, int]:
        """The message with a block of n values from the rank before, and their scale.

        In the first step the header comes alone: gloo ends a process that gets more than it has room for, as from a rank with another bucket.
        """
        room = torch.empty(len(_ROOM) + max(coded_max(n), _TEXT), dtype=torch.uint8, device="cpu")
        self._fill(room[: len(_ROOM)] if step == 1 else room, step)
        kind, scale, at, exchange, *theirs, length = _HEADER.unpack(room[: len(_ROOM)].numpy().tobytes())
        if kind != _CODES and (kind >= len(_ERRORS) or length > _TEXT):
            raise Malformed(f"rank {self.rank} got a header from rank {self._before} that is none, of kind {kind}")
        if kind == _CODES:
            if (at, exchange, theirs) != (step, self._exchange, list(ours)):
                here, there = (f"bucket {bucket} of {values} values" for bucket, values, _ in (ours, theirs))
                raise Mismatch(
                    f"rank {self._before} has {there} in step {at} of exchange {exchange}, rank {self.rank} {here} in step {step} of {self._exchange}"
                    f"{', and their parameters have other shapes' if theirs[2] != ours[2] else ''}: all ranks must train the same models, in the same order"
                )
            if length > coded_max(n) or abs(scale) > 126:
                raise Malformed(f"rank {self.rank} got {length} bytes of codes of scale {scale} for {n} values from rank {self._before}")
        message = room[: len(_ROOM) + length]
        if step == 1 and length:
            self._fill(message[len(_ROOM) :], step)
        if kind != _CODES:
            raise _error(f"{kind} {message[len(_ROOM) :].numpy().tobytes().decode('utf-8', 'replace')}")
        return message, scale

    def _fill(self, tensor: torch.Tensor, step: int) -> None:
        """Receives from the rank before."""
        begun = time.monotonic()
        try:
            self._gloo.recv([tensor], self._before, 0).wait()
            return
        except RuntimeError as e:
            late, reason = time.monotonic() - begun >= self._timeout, str(e)
        # Who misses a rank closes its connections, at which those behind it notice, in later steps. It is the first to say what it misses.
        # By time, all notice at about the same moment: those in later steps leave it to the one in the first.
        pause = 0.2 * min(step - 1, 25)
        until = time.monotonic() + pause + (min(self._timeout, 5.0) if late and step > 1 else 0.0)
        time.sleep(pause)
        while time.monotonic() < until and self._is_going():
            time.sleep(0.05)
        if late:
            raise TimeoutError(f"rank {self._before} has not come to exchange {self._exchange} within {self._timeout:g} s: {_REMEDY}")
        raise ConnectionError(f"rank {self._before} has ended, or closed its connections, in exchange {self._exchange}: start all ranks again ({reason})")

    def _is_going(self) -> bool:
        """Whether no rank has reported an error."""
        try:
            return _look(self._store, "state") == _GO
        except RuntimeError:  # the store has ended with its rank
            return False

    def fail(self, e: Exception) -> Exception:
        """Ends the ring after an error of :meth:`all_reduce`, here and on all ranks, and returns the error that was the first."""
        kind = next((i for i in range(1, len(_ERRORS)) if isinstance(e, _ERRORS[i])), 0)
        text = f"{kind} {e}" if kind or type(e) is RuntimeError else f"0 rank {self.rank}: {type(e).__name__}: {e}"
        try:
            text = self._store.compare_set("state", _GO, text).decode()
        except RuntimeError:  # the store has ended with its rank: then the ranks after that one learn of it one after the other
            pass
        error = _error(text)
        message = torch.frombuffer(bytearray(_ROOM + str(error).encode()[:_TEXT]), dtype=torch.uint8)
        self._send(message, _ERRORS.index(type(error)), 0, self._next, 0, 0, bytes(8))
        _finish(self._sending.pop(), timedelta(seconds=min(5.0, self._timeout)))
        self._sending.clear()
        self._gloo = None
        return error

    def close(self) -> None:
        """Closes the connections, when the rank after this one has what it needs to end the last exchange."""
        while self._sending:
            _finish(self._sending.popleft())
        self._gloo = None


_REMEDY = (
    "let all ranks take the same number of steps, for which DistributedDataParallel has join, or give Codec a longer timeout; "
    "then start all ranks again"
)


def _look(store: Any, key: str) -> str:
    """The value of a key, or nothing. In PyTorch 1.13 get and wait alone would wait for one, and a wait that ends by time leaves the store unusable."""
    value = store.compare_set(key, "?", "?").decode()
    return "" if value == "?" else value


def _finish(works: List[Any], *timeout: timedelta) -> None:
    """Waits for what is being sent."""
    try:
        for work in works:
            work.wait(*timeout)
    except RuntimeError:  # the rank after this one has failed
        pass


def _cut(values: np.ndarray, decoded: np.ndarray, left: np.ndarray) -> None:
    """What decoded values lack, which float32 has exactly. Values that are not finite lack nothing."""
    np.subtract(values, decoded, out=left)
    if not np.isfinite(left).all():
        left[~np.isfinite(left)] = 0


def _error(text: str) -> Exception:
    """The error that :meth:`Ring.fail` has written."""
    kind, text = text.split(" ", 1)
    return _ERRORS[int(kind)](text)
