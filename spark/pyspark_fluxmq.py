"""What makes ``spark.read.format("fluxmq")`` work without a call: Spark imports modules named ``pyspark_*`` by itself."""
