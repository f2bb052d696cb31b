"""``fluxmqctl``: the command line of an operator."""
