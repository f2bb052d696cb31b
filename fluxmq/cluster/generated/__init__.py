"""What protoc makes of ``proto/fluxmq/cluster/v1/cluster.proto``; a test compares. Made anew, from the root of the tree, by

::

    python -m grpc_tools.protoc --proto_path=fluxmq/cluster/generated=proto/fluxmq/cluster/v1 \\
        --python_out=. --pyi_out=. fluxmq/cluster/generated/cluster.proto
"""
