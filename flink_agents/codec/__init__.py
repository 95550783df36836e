"""Values layer: the one way from Python values to persisted text and back; every stored or emitted value passes here.

Three kinds of text are told apart. *Plain JSON* (``loads``, ``dumps``) is what records are made of. *Value text*
(``encode``, ``decode``, ``to_json``) carries Python values: plain JSON stands for itself, everything richer is a tagged
object. *Canonical text* (``canonical``, ``digest``, ``key_text``) is equal for equal values and is only compared.
"""

from __future__ import annotations

from flink_agents.codec.canonical import canonical, digest, flat_digest, key_text
from flink_agents.codec.classes import import_path, imported
from flink_agents.codec.json_text import MAX_JSON_DEPTH, JsonSyntax, cut, depth_over, dumps, loads
from flink_agents.codec.tags import MAX_DEPTH
from flink_agents.codec.values import FORMAT_VERSION, decode, encode, encode_plain, has_tags, to_json

__all__ = [
    "FORMAT_VERSION",
    "MAX_DEPTH",
    "MAX_JSON_DEPTH",
    "JsonSyntax",
    "canonical",
    "cut",
    "decode",
    "depth_over",
    "digest",
    "dumps",
    "encode",
    "encode_plain",
    "flat_digest",
    "has_tags",
    "import_path",
    "imported",
    "key_text",
    "loads",
    "to_json",
]
