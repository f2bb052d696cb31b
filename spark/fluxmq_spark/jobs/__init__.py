"""Programs that look at queues with Spark: each is a module with a ``main``, run by a script of ``spark/jobs``.

What they share: how arguments are written (``arguments``), what a person sees (``console``, ``plots``) and the session
(``session``). What they compute is in functions of Arrow tables and plain values, which need no session.
"""
