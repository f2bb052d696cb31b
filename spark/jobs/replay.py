"""Messages of the past into a queue: ``spark-submit spark/jobs/replay.py --help``, or the same with
``python``.

The job itself is ``fluxmq_spark.jobs.replay``, so that it is there wherever ``fluxmq-spark`` is
installed.
"""

from fluxmq_spark.jobs.replay import main

if __name__ == "__main__":
    raise SystemExit(main())
