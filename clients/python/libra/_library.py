# SPDX-License-Identifier: Apache-2.0
"""libra.so.1 through ctypes: its structures and functions, as in libra.h."""

from __future__ import annotations

import ctypes
import functools
import os
from ctypes import POINTER, c_char, c_char_p, c_int, c_int32, c_size_t, c_uint8, c_uint32, c_uint64, c_void_p

from ._version import VERSION

NAME = "libra.so.1"
TIMEOUT = 259


class LibraryNotFound(OSError):
    """libra.so.1 was not found, or is of a different version."""


class CError(ctypes.Structure):
    _fields_ = [
        ("code", c_int),
        ("peer", c_int),
        ("refusal", c_int),
        ("key_known", c_int),
        ("key", c_uint64),
        ("index", c_uint64),
        ("acknowledged", c_uint32),
        ("refused", c_uint32),
        ("unknown", c_uint32),
        ("text", c_char * 640),
    ]


class COptions(ctypes.Structure):
    _fields_ = [
        ("size", c_size_t),
        ("socket", c_char_p),
        ("job", c_char_p),
        ("client", c_char_p),
        ("hot_set", c_char_p),
        ("buffer_bytes", c_uint64),
        ("entries", c_uint32),
        ("dim", c_uint32),
        ("parties", c_uint32),
        ("spin_us", c_uint32),
        ("open_ms", c_int32),
        ("room_ms", c_int32),
        ("owner", c_int32),
        ("zero", c_int32),
    ]


class CInfo(ctypes.Structure):
    _fields_ = [
        ("dim", c_uint32),
        ("mode", c_int),
        ("arithmetic", c_int),
        ("exponent", c_int),
        ("hot_rows", c_uint32),
        ("hot_set", c_uint8 * 32),
        ("job", c_uint32),
        ("client", c_uint32),
        ("agent_pid", c_uint32),
        ("entries", c_uint32),
        ("buffer_bytes", c_uint64),
        ("prepared_bytes", c_uint64),
        ("instance", c_uint64),
    ]


class CBatch(ctypes.Structure):
    _fields_ = [("handle", c_uint64), ("n", c_uint64)]


STATISTICS = [
    "pushes_accepted",
    "pushes_acknowledged",
    "pushes_failed",
    "keys_pushed",
    "pulls",
    "keys_pulled",
    "bytes_read",
    "prepared_bytes",
    "wakes_of_agent",
    "wakes_of_client",
    "job_frames_sent",
    "job_frames_repeated",
    "job_aggregator_rtt_ns",
    "job_server_rtt_ns",
    "step_arrived",
    "step_parties",
]


class CStatistics(ctypes.Structure):
    _fields_ = [(name, c_uint64) for name in STATISTICS]


_session, _ticket, _array = c_void_p, POINTER(c_uint64), c_void_p
_functions = {
    "version": (c_char_p, []),
    "code_name": (c_char_p, [c_int]),
    "last_error": (POINTER(CError), []),
    "open": (c_int, [POINTER(c_void_p), POINTER(COptions)]),
    "info": (POINTER(CInfo), [_session]),
    "close": (c_int, [_session]),
    "shutdown": (c_int, [_session]),
    "alloc": (c_void_p, [_session, c_size_t]),
    "free": (None, [_session, c_void_p]),
    "push": (c_int, [_session, _array, _array, c_size_t, _ticket]),
    "push_sums": (c_int, [_session, _array, _array, _array, c_size_t, _ticket]),
    "pull": (c_int, [_session, _array, _array, c_size_t, _ticket]),
    "prepare": (c_int, [_session, _array, c_size_t, POINTER(CBatch), _ticket]),
    "release": (c_int, [_session, POINTER(CBatch), _ticket]),
    "push_batch": (c_int, [_session, POINTER(CBatch), _array, _ticket]),
    "push_sums_batch": (c_int, [_session, POINTER(CBatch), _array, _array, _ticket]),
    "pull_batch": (c_int, [_session, POINTER(CBatch), _array, _ticket]),
    "flush": (c_int, [_session, _ticket]),
    "barrier": (c_int, [_session, _ticket]),
    "reduce": (c_int, [_session, _array, _array, c_size_t, POINTER(c_uint64), _ticket]),
    "sums": (c_int, [_session, c_uint64, _array, _array, c_size_t, _ticket]),
    "harvest": (c_int, [_session, c_int, _array, _array, c_size_t, POINTER(c_uint64), _ticket]),
    "statistics": (c_int, [_session, POINTER(CStatistics), _ticket]),
    "wait": (c_int, [_session, c_uint64, c_int]),
    "accepted": (c_int, [_session, c_uint64]),
    "fd": (c_int, [_session]),
    "process": (c_int, [_session]),
    "encode": (c_int, [c_int, c_int, _array, c_size_t, _array, c_size_t, POINTER(c_size_t)]),
    "decode": (c_int, [c_int, c_int, _array, c_size_t, _array, c_size_t]),
    "fit": (c_int, [_array, c_size_t]),
}


class Library:
    """The functions of libra.h without their prefix."""

    def __init__(self, path: str) -> None:
        try:
            so = ctypes.CDLL(path)
        except OSError as e:
            raise LibraryNotFound(
                f"{path} cannot be loaded: {e}. Install Libra's wheel, which has it (make wheel, then pip install), "
                "or name the file in LIBRA_LIBRARY (make clients builds it)"
            ) from None
        for name, (result, arguments) in _functions.items():
            try:
                function = getattr(so, "libra_" + name)
            except AttributeError:
                raise LibraryNotFound(f"{path} has no function libra_{name}: it is no {NAME} of Libra {VERSION}") from None
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        found = self.version().decode()  # type: ignore[attr-defined]
        if found.split(".")[:2] != VERSION.split(".")[:2]:
            raise LibraryNotFound(
                f"{path} is of Libra {found}, this package of {VERSION}: take both from one release, or unset LIBRA_LIBRARY "
                "if the package is installed from a wheel, which has its own"
            )


@functools.lru_cache(maxsize=None)
def library() -> Library:
    """The library, loaded when it is first needed: the one that is named, that of the wheel, or that of the system."""
    ours = os.path.join(os.path.dirname(os.path.abspath(__file__)), NAME)
    return Library(os.environ.get("LIBRA_LIBRARY") or (ours if os.path.exists(ours) else NAME))


def version() -> str:
    """The version of the C library."""
    return library().version().decode()  # type: ignore[attr-defined]
