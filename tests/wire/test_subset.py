"""Our wire subset against envoy-data-plane's complete messages, an independent reading of the same protocol."""

from __future__ import annotations

import dataclasses
from typing import Any

import envoy_data_plane.envoy.config.core.v3 as core
import envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 as filters
import envoy_data_plane.envoy.service.ext_proc.v3 as service
import envoy_data_plane.envoy.type.v3 as envoy_type
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from eluvix_extproc.wire.pb import base_pb2, external_processor_pb2, http_status_pb2

TYPES = {
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_ENUM: "enum",
    FieldDescriptor.TYPE_INT32: "int32",
    FieldDescriptor.TYPE_MESSAGE: "message",
    FieldDescriptor.TYPE_STRING: "string",
}
# Enums travel as varints of their number, so reading one as int32 is the same wire format.
SAME_WIRE = {("HttpStatus", "code")}


def ours() -> list[tuple[Descriptor, Any]]:
    pairs = []
    for module, theirs in (
        (external_processor_pb2, service),
        (base_pb2, core),
        (http_status_pb2, envoy_type),
    ):
        for name, descriptor in module.DESCRIPTOR.message_types_by_name.items():
            pairs.append((descriptor, getattr(theirs, name)))
    return pairs


@pytest.mark.parametrize(("descriptor", "theirs"), ours(), ids=lambda value: getattr(value, "name", ""))
def test_names_numbers_and_types_are_upstreams(descriptor: Descriptor, theirs: Any) -> None:
    known = {field.name: field.metadata["betterproto"] for field in dataclasses.fields(theirs)}
    assert descriptor.fields
    for field in descriptor.fields:
        upstream = known[field.name]
        assert field.number == upstream.number
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if (descriptor.name, field.name) not in SAME_WIRE:
            assert ("map" if is_map else TYPES[field.type]) == upstream.proto_type
        assert (field.is_repeated and not is_map) == upstream.repeated
        oneof = field.containing_oneof.name if field.containing_oneof else None
        assert oneof == upstream.group


def test_body_modes_have_upstreams_numbers() -> None:
    theirs = filters.ProcessingModeBodySendMode
    for name, value in external_processor_pb2.BodySendMode.items():
        assert theirs[name].value == value
