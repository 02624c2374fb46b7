# SPDX-License-Identifier: Apache-2.0
"""A session of the C library, and its memory."""

from __future__ import annotations

import ctypes
from typing import Any

from ._errors import check, error
from ._library import COptions, library


class _Handle:
    """A session of the C library. Arrays in its memory hold it, so the memory outlives them."""

    def __init__(self, options: COptions) -> None:
        self.lib: Any = library()
        self.pointer = ctypes.c_void_p()
        check(self.lib.open(ctypes.byref(self.pointer), ctypes.byref(options)))
        self.low, self.high = 1 << 64, 0  # addresses of arrays in the session's memory
        self.open = True

    def alloc(self, nbytes: int) -> int:
        address = self.lib.alloc(self.pointer, nbytes)
        if not address:
            raise error(self.lib.last_error().contents.code)
        self.low, self.high = min(self.low, address), max(self.high, address + nbytes)
        return int(address)

    def free(self, address: int) -> None:
        self.lib.free(self.pointer, address)

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            self.lib.shutdown(self.pointer)
            self.lib.close(self.pointer)
