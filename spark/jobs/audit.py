"""Check that the messages on disk are the expected ones: ``spark-submit spark/jobs/audit.py
--help``, or the same with ``python``.

The job itself is ``fluxmq_spark.jobs.audit``, so that it is there wherever ``fluxmq-spark`` is
installed.
"""

from fluxmq_spark.jobs.audit import main

if __name__ == "__main__":
    raise SystemExit(main())
