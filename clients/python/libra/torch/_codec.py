# SPDX-License-Identifier: Apache-2.0
"""Dense gradients of a DistributedDataParallel in a shorter form, whatever its backend."""

# No "from __future__ import annotations" here: DistributedDataParallel compares a hook's annotations with its own classes.
import hashlib
import operator
import queue
import threading
import weakref
from datetime import timedelta
from typing import Any, Callable, Dict, List, Optional, Tuple

import numpy as np
import torch
import torch.distributed as dist

from .._library import library
from ._ring import Ring
from ._tensors import finished

_DTYPES = torch.float32, torch.float16, torch.bfloat16, torch.float64


class Codec:
    """How :func:`codec_hook` codes gradients: each value that is sent differs by less than 2**-(bound + scale) from what it is.

    ``bound`` is 1 to 14. ``scale`` is -126 to 126; None fits it to the largest magnitude of each block that is sent, so
    that the error is relative to that. ``feedback`` adds what a rank has cut to its next gradient. It is kept for
    each parameter, and lost with this object: checkpoints and copies do not have it. A Codec with a group cannot be pickled.

    ``group`` is the model's process group, if it is not the default one. An exchange fails if a rank does not
    come within ``timeout``, by default that of PyTorch, half an hour. After an exception of an exchange,
    take a new Codec, and a new DistributedDataParallel.
    """

    def __init__(
        self, bound: int = 10, *, scale: Optional[int] = None, feedback: bool = True, group: Optional[Any] = None, timeout: Optional[timedelta] = None
    ) -> None:
        self.bound = _whole("bound", bound, 1, 14)
        self.scale = None if scale is None else _whole("scale", scale, -126, 126, "None or ")
        if not isinstance(feedback, bool):
            raise ValueError(f"feedback is {feedback!r}: it must be True or False")
        if timeout is not None and not (isinstance(timeout, timedelta) and timeout >= timedelta(milliseconds=1)):
            raise ValueError(f"timeout is {timeout!r}: it must be a datetime.timedelta of a millisecond or more")
        self.feedback, self._group = feedback, group
        self._timeout = timeout if timeout is not None else dist.distributed_c10d.default_pg_timeout
        self._exchanges: Optional[_Exchanges] = None
        self._cut = _Cut()
        library()  # says now if it is missing

    def __copy__(self) -> "Codec":
        """One that codes alike, with exchanges of its own, and nothing that was cut."""
        return Codec(self.bound, scale=self.scale, feedback=self.feedback, group=self._group, timeout=self._timeout)

    def __deepcopy__(self, memo: Dict[int, Any]) -> "Codec":
        return self.__copy__()

    def __reduce__(self) -> Tuple[Any, ...]:
        if self._group is not None:
            raise TypeError("a Codec with a group cannot be pickled: give the one that is unpickled a group of its process")
        return _unpickled, (self.bound, self.scale, self.feedback, self._timeout)

    def __repr__(self) -> str:
        return f"Codec(bound={self.bound}, scale={self.scale}, feedback={self.feedback})"

    @property
    def sent_bytes(self) -> int:
        """Bytes that this rank has sent to the next one."""
        return 0 if self._exchanges is None else self._exchanges.ring.sent

    def _of(self, group: Any) -> "_Exchanges":
        """The exchanges of a group, which the ranks begin together."""
        if self._exchanges is None or self._exchanges.group() is not group:  # the default group may be another one than before
            if self._exchanges is not None:
                self._exchanges.close()
                self._exchanges = None
            self._exchanges = _Exchanges(group, Ring(group, self.bound, self.scale, self._timeout))
            weakref.finalize(self, self._exchanges.close)
        return self._exchanges


def _unpickled(bound: int, scale: Optional[int], feedback: bool, timeout: timedelta) -> Codec:
    return Codec(bound, scale=scale, feedback=feedback, timeout=timeout)


def codec_hook(codec: Codec, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """A hook of DistributedDataParallel that averages gradients in codes of 0, 1, 2 or 4 bytes each.

    ``model.register_comm_hook(Codec(bound=10), codec_hook)``, on all ranks. Needs no agent. Sparse gradients go
    through the group as they are. All ranks get the same bits. Raises on all ranks :class:`Mismatch` (a ValueError) if codecs or models
    differ, TimeoutError if a rank does not come, ConnectionError if one ends, and :class:`libra.Malformed` (a ValueError)
    if what it sends is no codes.
    """
    if not isinstance(codec, Codec):
        raise TypeError(f"the state of codec_hook is {codec!r}: it must be a Codec, as in model.register_comm_hook(Codec(bound=10), codec_hook)")
    group = codec._group if codec._group is not None else dist.group.WORLD
    if group is None:
        raise RuntimeError("the default process group was destroyed before the end of a backward pass: destroy it afterwards")
    tensor = bucket.buffer()
    if tensor.is_sparse:
        work = dist.all_reduce(tensor.div_(group.size()), group=group, async_op=True)
        return work.get_future().then(lambda future: future.value()[0])
    if tensor.dtype not in _DTYPES:
        raise TypeError(f"a gradient is of {tensor.dtype}: codec_hook codes {', '.join(map(str, _DTYPES))}")
    tensor.div_(group.size())
    if group.size() == 1:
        return finished(tensor)
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=[tensor.device] if tensor.is_cuda else None)
    try:
        exchanges = codec._of(group)
    except Exception as e:
        future.set_exception(e)
    else:
        exchanges.begin(future, tensor, bucket.index(), bucket.parameters(), codec._cut if codec.feedback else None)
    try:
        # An exception that is in the future itself comes out of backward as a RuntimeError; one that is raised here, as it is.
        torch.autograd.Variable._execution_engine.queue_callback(future.wait)
    except RuntimeError:  # DistributedDataParallel.join calls hooks outside of a backward pass, and waits itself
        pass
    return future.then(lambda future: future.value())


# The parameters of a bucket, where they are in it, and whether they have a gradient.
_Parts = List[Tuple[torch.Tensor, slice, bool]]


class _Cut:
    """What was cut from the gradients of each parameter. Buckets are rebuilt after the first step, and parameters stay."""

    def __init__(self) -> None:
        self._of: Dict[int, Tuple["weakref.ref[torch.Tensor]", np.ndarray]] = {}

    def add(self, parts: _Parts, values: np.ndarray) -> None:
        """Adds it to the gradients of those parameters that have one."""
        for parameter, part, used in parts:
            if used and self._has(parameter):
                values[part] += self._of[id(parameter)][1]

    def keep(self, parts: _Parts, left: np.ndarray) -> None:
        """Keeps what has been cut, and what was not added."""
        for parameter, part, used in parts:
            key = id(parameter)
            if not used and self._has(parameter):
                left[part] += self._of[key][1]
            self._of[key] = weakref.ref(parameter, lambda _, of=self._of, key=key: of.pop(key, None)), left[part]

    def _has(self, parameter: torch.Tensor) -> bool:
        known = self._of.get(id(parameter))
        return known is not None and known[0]() is parameter and len(known[1]) == parameter.numel()


class _Exchanges:
    """A thread that sums buckets, the first that comes first."""

    def __init__(self, group: Any, ring: Ring) -> None:
        self.group, self.ring = weakref.ref(group), ring
        self._queue: "queue.SimpleQueue[Optional[Tuple[Callable[[], None], Any, torch.Tensor]]]" = queue.SimpleQueue()
        self._failure: Optional[Exception] = None
        self._thread = threading.Thread(target=self._run, name="libra codec", daemon=True)
        self._thread.start()

    def begin(self, future: Any, tensor: torch.Tensor, index: int, parameters: List[torch.Tensor], cut: Optional[_Cut]) -> None:
        """Begins to sum a bucket, which completes the future."""
        host = tensor.to("cpu", torch.float32)  # the bucket itself if it is that
        parts, at = [], 0
        for parameter in parameters:
            # DistributedDataParallel ignores the sum of a parameter that no rank has used: what was cut must not go into it.
            parts.append((parameter, slice(at, at + parameter.numel()), parameter.grad is not None))
            at += parameter.numel()
        layout = hashlib.blake2b(repr([tensor.dtype, *(tuple(p.shape) for p in parameters)]).encode(), digest_size=8).digest()

        def exchange() -> None:
            values = host.numpy()
            left = None if cut is None else np.empty_like(values)
            if cut is not None:
                cut.add(parts, values)
            self.ring.all_reduce(values, left, index, layout)
            if cut is not None and left is not None:
                cut.keep(parts, left)
            if tensor is not host:
                tensor.copy_(host)

        self._queue.put((exchange, future, tensor))

    def _run(self) -> None:
        with np.errstate(all="ignore"):  # gradients may be infinite
            while True:
                job = self._queue.get()
                if job is None:
                    break
                exchange, future, tensor = job
                try:
                    if self._failure is None:
                        exchange()
                except Exception as e:
                    self._failure = self.ring.fail(e)
                if self._failure is None:
                    future.set_result(tensor)
                else:
                    future.set_exception(type(self._failure)(str(self._failure)))
                del job, exchange, future, tensor  # which hold a bucket
        self.ring.close()

    def close(self) -> None:
        """Ends the thread, after what is in the queue. One that waits for another rank is left behind when the process ends."""
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(10)


def _whole(name: str, value: Any, least: int, most: int, other: str = "") -> int:
    try:
        whole = operator.index(value)
    except TypeError:
        whole = least - 1
    if isinstance(value, bool) or not least <= whole <= most:
        raise ValueError(f"{name} is {value!r}: it must be {other}a whole number from {least} to {most}")
    return whole
