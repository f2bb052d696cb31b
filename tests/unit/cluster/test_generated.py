"""What stands in the tree is what protoc makes of the protocol today."""

import re
import subprocess
import sys
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

from tests.protobuf import cluster_pb2

ROOT = Path(__file__).parents[3]
FOLDER = Path("tests/protobuf")
SOURCE = ROOT / "proto/fluxmq/cluster/v1"
VERSION = re.compile(r"Protobuf Python Version: (\S+)")


def test_generated_modules_are_fresh(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={FOLDER}={SOURCE}"]
    outputs = [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    described = tmp_path / "described"
    outputs.append(f"--descriptor_set_out={described}")
    subprocess.run([*command, *outputs, f"{FOLDER}/cluster.proto"], check=True, timeout=60)
    (made,) = FileDescriptorSet.FromString(described.read_bytes()).file
    for message in made.message_type:
        for field in message.field:
            field.ClearField("json_name")
    assert FileDescriptorProto.FromString(cluster_pb2.DESCRIPTOR.serialized_pb) == made
    module = (ROOT / FOLDER / "cluster_pb2.py").read_text()
    fresh = (tmp_path / FOLDER / "cluster_pb2.py").read_text()
    if VERSION.findall(module) == VERSION.findall(fresh):  # another protoc words it differently
        assert module == fresh
        name = FOLDER / "cluster_pb2.pyi"
        assert (ROOT / name).read_text() == (tmp_path / name).read_text()
