"""The compiled core: what runs once per packet, run or tick.

Every module here is Cython in pure-Python mode: the same ``.py`` file is compiled (types come from the
``.pxd`` beside it) or run as it is, and must give the same bytes either way. Nothing outside knows which
it got. ``FLUXMQ_PURE=1`` has the ``.py`` files taken even where compiled ones lie beside them (see
``fluxmq.source_only``).

``_native`` and ``_direct`` are the exceptions: small extensions that have no uncompiled twin. Users of the first
(shared-memory ring with atomics) fall back to sockets, of the second (writes past the page cache) to a thread that syncs.
"""

from __future__ import annotations

import os

from fluxmq._hot import scan as _scan

PURE: bool = os.environ.get("FLUXMQ_PURE", "") == "1"
"""True when the environment asks for the uncompiled modules."""

COMPILED: bool = not str(_scan.__file__).endswith(".py")
"""True when the modules of this package run compiled."""
