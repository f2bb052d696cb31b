"""Queues to Parquet: ``spark-submit spark/jobs/export_parquet.py --help``, or the same with
``python``.

The job itself is ``fluxmq_spark.jobs.export_parquet``, so that it is there wherever
``fluxmq-spark`` is installed.
"""

from fluxmq_spark.jobs.export_parquet import main

if __name__ == "__main__":
    raise SystemExit(main())
