"""Settings of the C library's heap, for processes through which many megabytes pass.

By default it gives the end of the heap back to the kernel as soon as some hundred kilobytes are free
there, and gets larger pieces from the kernel one by one. So a buffer that lives for a tick costs as
many page faults as it has pages, which takes longer than filling it.
"""

from __future__ import annotations

import ctypes
from typing import Final

KEPT_BYTES: Final = 16 << 20
"""Free bytes at the end of the heap from which on they are given back."""
LARGE_BYTES: Final = 4 << 20
"""Size of the pieces that are got from the kernel one by one."""
MORE_BYTES: Final = 1 << 20
"""Bytes by which the heap grows at least."""
_PARAMETERS: Final = ((-1, KEPT_BYTES), (-3, LARGE_BYTES), (-2, MORE_BYTES))
"""M_TRIM_THRESHOLD, M_MMAP_THRESHOLD and M_TOP_PAD of mallopt(3)."""


def keep_heap() -> bool:
    """Keep some free memory in this process; return False where the C library cannot."""
    set_parameter = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_parameter is None:
        return False
    return all(set_parameter(parameter, size) == 1 for parameter, size in _PARAMETERS)
