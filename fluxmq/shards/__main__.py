"""``python -m fluxmq.shards``: one shard, started by the supervisor."""

from fluxmq.shards.worker import main

if __name__ == "__main__":
    main()
