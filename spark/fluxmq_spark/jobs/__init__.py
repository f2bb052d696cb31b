"""Programs that examine queues with Spark: each is a module with a ``main``, run by a script of
``spark/jobs``.

They share the syntax of arguments (``arguments``), output for people (``console``, ``plots``) and
the session (``session``). Computations are functions of Arrow tables and plain values, which need
no session.
"""
