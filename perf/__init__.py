"""Load generators, comparisons with other brokers and micro-benchmarks.

What is measured here is written down in ``perf/README.md``; nothing in ``fluxmq`` imports this package.
"""
