"""Output of protoc for ``proto/fluxmq/cluster/v1/cluster.proto``; a test compares it.

Regenerate it, from the root of the tree, with

::

    python -m grpc_tools.protoc --proto_path=fluxmq/cluster/generated=proto/fluxmq/cluster/v1 \\
        --python_out=. --pyi_out=. fluxmq/cluster/generated/cluster.proto
"""
