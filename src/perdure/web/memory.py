"""How much freed memory a server process keeps.

The allocator of glibc keeps large freed blocks for later, in an arena for each thread, and the more
of them the larger the blocks were. A server that has had some bodies and answers of megabytes would
keep twice the memory that it needs.
"""

from __future__ import annotations

import ctypes
import os
import sys

MIN_MAPPED_BYTES = 256 * 1024
"""Blocks of this size and more are mapped on their own, and returned as soon as they are freed."""
MAX_FREE_BYTES = 1024 * 1024
"""Freed memory that stays at the end of the heap."""
MAX_ARENAS = 2

_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_M_ARENA_MAX = -8
_ENVIRONMENT = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")


def return_freed_memory() -> bool:
    """Let this process return large freed blocks to the system. Return whether it does.

    Without glibc, or if the environment configures the allocator, nothing is changed.
    """
    if sys.platform != "linux" or any(name.startswith(_ENVIRONMENT) for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    options = {
        _M_MMAP_THRESHOLD: MIN_MAPPED_BYTES,
        _M_TRIM_THRESHOLD: MAX_FREE_BYTES,
        _M_ARENA_MAX: MAX_ARENAS,
    }
    answers = [mallopt(option, value) for option, value in options.items()]
    return answers == [1] * len(options)
