"""A server returns the memory of large requests to the system."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import loop_cpu

BLOCKS = 200
BLOCK_BYTES = 500_000
MAX_KEPT_BYTES = 20_000_000

SCRIPT = f"""
import os, sys
from loop_cpu import resident_bytes
from perdure.web.memory import return_freed_memory
returns = return_freed_memory()
bytearray(30_000_000)  # glibc keeps blocks up to the size of the largest one that was freed
before = resident_bytes(os.getpid())
large, small = [], []
for _ in range({BLOCKS}):
    large.append(bytes({BLOCK_BYTES}).replace(b"\\0", b"x"))
    small.append(bytes(1000))
del large
print(returns, resident_bytes(os.getpid()) - before)
"""


def run(**environment: str) -> tuple[bool, int]:
    """Whether memory is returned, and how much is kept of what was freed."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")} | environment
    environ["PYTHONPATH"] = str(Path(loop_cpu.__file__).parent)
    answer = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environ, capture_output=True, text=True, check=True
    )
    returns, kept = answer.stdout.split()
    return returns == "True", int(kept)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators")
def test_large_blocks_are_returned_although_small_ones_between_them_stay() -> None:
    returns, kept = run()

    assert returns
    assert kept < MAX_KEPT_BYTES


def test_an_environment_that_configures_the_allocator_is_left_alone() -> None:
    returns, _ = run(MALLOC_ARENA_MAX="4")

    assert not returns
