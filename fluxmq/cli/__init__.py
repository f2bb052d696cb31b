"""``fluxmqctl``, the operator's command line."""
