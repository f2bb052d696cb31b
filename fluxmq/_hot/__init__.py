"""The compiled core: the code that runs once per packet, run or tick.

Every module here is Cython in pure-Python mode: the same ``.py`` file is compiled (with types from
the ``.pxd`` beside it) or run as it is, and must give the same bytes either way. Callers do not
know which they got. ``FLUXMQ_PURE=1`` selects the ``.py`` files even where compiled ones lie beside
them (see ``fluxmq.source_only``).

``_native`` and ``_direct`` are the exceptions: small extensions without an uncompiled twin. Without
the first (shared-memory ring with atomics) users fall back to sockets, without the second (direct
I/O) to a thread that syncs.
"""

from __future__ import annotations

import os

from fluxmq._hot import scan as _scan

PURE: bool = os.environ.get("FLUXMQ_PURE", "") == "1"
"""True when the environment requests the uncompiled modules."""

COMPILED: bool = not str(_scan.__file__).endswith(".py")
"""True when the modules of this package run compiled."""
