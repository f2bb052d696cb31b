"""``python -m fluxmq.control``: the control process, started by the supervisor."""

from fluxmq.control.process import main

main()
