"""Output of protoc for ``proto/fluxmq/cluster/v1/cluster.proto``; a test compares it.

The broker encodes these messages itself (`fluxmq.cluster.protobuf`); the tests hold it against
protobuf's own library. Regenerate the modules, from the root of the tree, with

::

    python -m grpc_tools.protoc --proto_path=tests/protobuf=proto/fluxmq/cluster/v1 \\
        --python_out=. --pyi_out=. tests/protobuf/cluster.proto
"""
