"""A report on dead letters: ``spark-submit spark/jobs/dead_letters.py --help``, or the same with
``python``.

The job itself is ``fluxmq_spark.jobs.dead_letters``, so that it is there wherever ``fluxmq-spark``
is installed.
"""

from fluxmq_spark.jobs.dead_letters import main

if __name__ == "__main__":
    raise SystemExit(main())
