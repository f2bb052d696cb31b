"""A report on queues: ``spark-submit spark/jobs/queue_report.py --help``, or the same with
``python``.

The job itself is ``fluxmq_spark.jobs.queue_report``, so that it is there wherever ``fluxmq-spark``
is installed.
"""

from fluxmq_spark.jobs.queue_report import main

if __name__ == "__main__":
    raise SystemExit(main())
