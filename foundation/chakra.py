"""Chakra execution traces (MLCommons): the messages of et_def.proto, by their numbers.

A file is a stream of messages, the length before each as a varint: one GlobalMetadata, then a Node each.

References
----------
https://github.com/mlcommons/chakra: schema/protobuf/et_def.proto, src/third_party/utils/protolib.py.
"""

from __future__ import annotations

from enum import IntEnum

VERSION = "0.0.4"  # of GlobalMetadata, as chakra's converters and generators write it


class Global(IntEnum):
    """Fields of GlobalMetadata."""

    VERSION = 1
    ATTR = 2


class NodeField(IntEnum):
    """Fields of Node."""

    ID = 1
    NAME = 2
    TYPE = 3
    CTRL_DEPS = 4
    DATA_DEPS = 5
    START_MICROS = 6
    DURATION_MICROS = 7
    INPUTS = 8
    OUTPUTS = 9
    ATTR = 10


class IOInfo(IntEnum):
    """Fields of IOInfo, each a list as text."""

    VALUES = 1
    SHAPES = 2
    TYPES = 3


class NodeType(IntEnum):
    """What a node is."""

    INVALID_NODE = 0
    METADATA_NODE = 1
    MEM_LOAD_NODE = 2
    MEM_STORE_NODE = 3
    COMP_NODE = 4
    COMM_SEND_NODE = 5
    COMM_RECV_NODE = 6
    COMM_COLL_NODE = 7
    STORAGE_NODE = 8
    BATCH_NODE = 9
    CHECKPOINT_NODE = 10


class CollectiveCommType(IntEnum):
    """What a collective does: attribute comm_type."""

    ALL_REDUCE = 0
    REDUCE = 1
    ALL_GATHER = 2
    GATHER = 3
    SCATTER = 4
    BROADCAST = 5
    ALL_TO_ALL = 6
    REDUCE_SCATTER = 7
    REDUCE_SCATTER_BLOCK = 8
    BARRIER = 9


class Attr(IntEnum):
    """Fields of AttributeProto: its name, and the value, in the field of its type (`list_of`)."""

    NAME = 1
    DOUBLE = 3
    FLOAT = 5
    INT32 = 7
    INT64 = 9
    UINT32 = 11
    UINT64 = 13
    SINT32 = 15
    SINT64 = 17
    FIXED32 = 19
    FIXED64 = 21
    SFIXED32 = 23
    SFIXED64 = 25
    BOOL = 27
    STRING = 29
    BYTES = 31


def list_of(value: Attr) -> int:
    """The field of a list of such values."""
    return value + 1
