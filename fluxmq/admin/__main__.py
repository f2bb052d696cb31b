"""``python -m fluxmq.admin``: the control process, started by the supervisor."""

from fluxmq.admin.process import main

main()
