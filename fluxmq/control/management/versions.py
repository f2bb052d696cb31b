"""Names and versions that the management interface tells."""

from __future__ import annotations

from typing import Final

import fluxmq

PRODUCT: Final = "FluxMQ"
VERSION: Final = fluxmq.__version__
API_VERSION: Final = "3.13.7"
"""Version of RabbitMQ whose interface this is: its tools choose paths, and shapes of bodies, by it."""
