"""Coverage slows millions of small steps fivefold and learns nothing from them that the unit
tests do not teach it; so the searches run without it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def untraced() -> Iterator[None]:
    tracer = sys.gettrace()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(tracer)
