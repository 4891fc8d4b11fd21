"""Model repositories of Triton: protobuf parses config.pbtxt with the published ModelConfig."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

from hwnas.deploy import Bundle, BundleFacts, BundleNetwork, OutputMeaning, write_bundle
from hwnas.deploy.bundles.model_repository import write_model_repository
from hwnas.errors import ConfigError, StorageError

STRING, INT32, INT64, UINT64, ENUM, MESSAGE = 9, 5, 3, 4, 14, 11
# Of triton-inference-server/common, protobuf/model_config.proto: name, number, type, repeated.
FIELDS = {
    "ModelInput": [
        ("name", 1, STRING, False),
        ("data_type", 2, ".inference.DataType", False),
        ("dims", 4, INT64, True),
    ],
    "ModelOutput": [
        ("name", 1, STRING, False),
        ("data_type", 2, ".inference.DataType", False),
        ("dims", 3, INT64, True),
        ("label_filename", 4, STRING, False),
    ],
    "ModelDynamicBatching": [
        ("preferred_batch_size", 1, INT32, True),
        ("max_queue_delay_microseconds", 2, UINT64, False),
    ],
    "ModelConfig": [
        ("name", 1, STRING, False),
        ("platform", 2, STRING, False),
        ("max_batch_size", 4, INT32, False),
        ("input", 5, ".inference.ModelInput", True),
        ("output", 6, ".inference.ModelOutput", True),
        ("dynamic_batching", 11, ".inference.ModelDynamicBatching", False),
    ],
}
TYPES = {"TYPE_INVALID": 0, "TYPE_UINT8": 2, "TYPE_FP32": 11, "TYPE_STRING": 13}


@pytest.fixture(scope="module")
def model_config() -> Any:
    """Message type ModelConfig, made without the packages of the server."""
    file = descriptor_pb2.FileDescriptorProto(
        name="model_config.proto", package="inference", syntax="proto3"
    )
    types = file.enum_type.add(name="DataType")
    for name, number in TYPES.items():
        types.value.add(name=name, number=number)
    for message, fields in FIELDS.items():
        made = file.message_type.add(name=message)
        for name, number, kind, repeated in fields:
            field = made.field.add(name=name, number=number, label=3 if repeated else 1)
            if isinstance(kind, int):
                field.type = kind
            else:
                field.type = ENUM if kind.endswith("DataType") else MESSAGE
                field.type_name = kind
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("inference.ModelConfig"))


def test_model_repository_has_the_layout_and_configuration_of_triton(
    packed: Bundle, tmp_path: Path, model_config: Any
) -> None:
    made = write_model_repository(
        packed, tmp_path / "models", name="digits", max_batch=16, max_wait_ms=1.5
    )
    files = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*"))
    assert files == [
        "models/digits/1/model.onnx",
        "models/digits/config.pbtxt",
        "models/digits/labels.txt",
    ]
    assert (made / "labels.txt").read_text().split() == list("0123456789")
    config = text_format.Parse((made / "config.pbtxt").read_text(), model_config())
    assert (config.name, config.platform) == ("digits", "onnxruntime_onnx")
    assert config.max_batch_size == 16
    assert config.dynamic_batching.max_queue_delay_microseconds == 1500
    (given,), (gives,) = config.input, config.output
    assert (given.data_type, list(given.dims)) == (TYPES["TYPE_FP32"], [1, 8, 8])
    assert (gives.data_type, list(gives.dims)) == (TYPES["TYPE_FP32"], [10])
    assert gives.label_filename == "labels.txt"


def test_model_repository_file_has_the_configured_shapes(
    packed: Bundle, tmp_path: Path, model_config: Any
) -> None:
    made = write_model_repository(packed, tmp_path)
    assert made.name == packed.description["id"]
    config = text_format.Parse((made / "config.pbtxt").read_text(), model_config())
    session = onnxruntime.InferenceSession(made / "1" / "model.onnx")
    images = np.zeros((config.max_batch_size, *config.input[0].dims), np.float32)
    (found,) = session.run([config.output[0].name], {config.input[0].name: images})
    assert found.shape == (config.max_batch_size, *config.output[0].dims)
    assert found.dtype == np.float32


def test_model_repository_writes_each_label_in_one_line(
    to_pack: BundleNetwork, facts: BundleFacts, tmp_path: Path
) -> None:
    names = tuple(f'"{i}"\n\\ {{' for i in range(10))
    odd = replace(to_pack, outputs=OutputMeaning("class_scores", names))
    bundle = write_bundle(tmp_path / "bundle", odd, facts)
    made = write_model_repository(bundle, tmp_path / "models")
    assert (made / "labels.txt").read_text().splitlines() == [f'"{i}" \\ {{' for i in range(10)]


def test_model_repository_has_no_labels_for_values(
    to_pack: BundleNetwork, facts: BundleFacts, tmp_path: Path, model_config: Any
) -> None:
    values = replace(to_pack, outputs=OutputMeaning("values"))
    bundle = write_bundle(tmp_path / "bundle", values, facts)
    made = write_model_repository(bundle, tmp_path / "models")
    config = text_format.Parse((made / "config.pbtxt").read_text(), model_config())
    assert not config.output[0].label_filename
    assert not (made / "labels.txt").exists()


def test_model_repository_refuses_invalid_names_numbers_and_paths(
    packed: Bundle, tmp_path: Path
) -> None:
    for name in ("", "../a", "a b", 'a"', "a" * 101, ".a"):
        with pytest.raises(ConfigError, match="cannot be a model's name"):
            write_model_repository(packed, tmp_path, name=name)
    with pytest.raises(ConfigError, match="at least 1 and 0"):
        write_model_repository(packed, tmp_path, max_batch=0)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match="cannot write"):
        write_model_repository(packed, tmp_path / "file")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
