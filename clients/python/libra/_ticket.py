# SPDX-License-Identifier: Apache-2.0
"""Tickets and prepared batches."""

from __future__ import annotations

import ctypes
import time
from typing import TYPE_CHECKING, Any, Callable, Optional, Tuple

from ._errors import Error, SessionClosed, error
from ._library import TIMEOUT, CBatch

if TYPE_CHECKING:  # _session imports this module
    from ._session import Session

# How long one call into C waits, in milliseconds. Between two of them Python handles signals, so that
# Ctrl-C interrupts.
_SLICE = 100


class Ticket:
    """A request in flight. :meth:`wait` returns its result. To be used by one thread at a time."""

    def __init__(self, session: Session, number: int, kept: Tuple[Any, ...], result: Callable[[], Any]) -> None:
        self._session: Optional[Session] = session
        self._number = number
        self._kept = kept  # arrays that the agent may use
        self._result = result
        self._outcome: Tuple[Any, Optional[Error]] = (None, None)

    def wait(self, timeout: Optional[float] = None) -> Any:
        """Returns the result: the rows of a pull, the sums of a push with sums, else None.

        Raises the failure of the request, or TimeoutError after ``timeout`` seconds, after which it can be
        called again. The result can be asked for more than once.
        """
        return self._wait(timeout, None)

    def _wait(self, timeout: Optional[float], look: Optional[Callable[[], None]]) -> Any:
        """Waits, and calls ``look`` each second, whose exception ends that."""
        begun = time.monotonic()
        end = None if timeout is None else begun + timeout
        while self._session is not None:
            if look is not None and time.monotonic() >= begun + 1:
                begun = time.monotonic()
                look()
            left = _SLICE if end is None else min(_SLICE, max(0, int((end - time.monotonic()) * 1000)))
            if not self._look(left) and end is not None and time.monotonic() >= end:
                raise TimeoutError(f"the request is not complete after {timeout} s")
        result, failure = self._outcome
        if failure is not None:
            raise failure
        return result

    def done(self) -> bool:
        """True if the request is complete. Does not wait."""
        return self._session is None or self._look(0)

    def accepted(self) -> bool:
        """True if the agent has read keys and gradients, so that arrays of :meth:`Session.empty` may change."""
        return self._session is None or bool(self._session._c("accepted", self._number))

    def _look(self, timeout_ms: int) -> bool:
        session = self._session
        assert session is not None
        try:
            code = session._c("wait", self._number, timeout_ms)
        except SessionClosed as e:
            self._finish(None, e)
            return True
        if code == TIMEOUT:
            return False
        if code:
            self._finish(None, error(code))
        else:
            self._finish(self._result(), None)
        return True

    def _finish(self, result: Any, failure: Optional[Error]) -> None:
        self._outcome = (result, failure)
        self._session, self._kept, self._result = None, (), lambda: None

    def __del__(self) -> None:
        # The agent may still use its arrays: the session waits for it in place of the program.
        session = getattr(self, "_session", None)
        if session is not None and session._handle is not None:
            session._abandoned.append((self._number, self._kept))


class Batch:
    """Keys that the agent has looked up and kept. Use it in place of keys; leaving its ``with`` block releases it."""

    def __init__(self, session: Session, c: CBatch) -> None:
        self._session: Optional[Session] = session
        self._c = c

    def __len__(self) -> int:
        return int(self._c.n)

    def release(self) -> None:
        """Releases the keys at the agent. Requests in flight are not affected."""
        session, self._session = self._session, None
        if session is not None and session._handle is not None:
            session._submit("release", ctypes.byref(self._c), None)

    def __enter__(self) -> Batch:
        return self

    def __exit__(self, kind: Any, failure: Any, trace: Any) -> None:
        try:
            self.release()
        except Error:
            if failure is None:
                raise
