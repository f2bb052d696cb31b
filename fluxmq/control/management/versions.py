"""Names and versions that the management interface tells."""

from __future__ import annotations

from typing import Final

import fluxmq

PRODUCT: Final = "FluxMQ"
VERSION: Final = fluxmq.__version__
