"""Value text: what goes in comes out equal and of the same type, or is refused at once by name."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import json
import pathlib
import threading
import uuid
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque
from decimal import Decimal
from typing import Any, NamedTuple

import orjson
import pydantic
import pytest

from flink_agents import codec
from flink_agents.errors import StateFormat, TooLarge, Unserializable


class Colour(str, enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


class Planet(enum.Enum):
    EARTH = (5.97, 6378)
    LOCKED = threading.Lock()


class Permission(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: int = 0


@dataclasses.dataclass(frozen=True)
class Order:
    order_id: str
    placed: dt.date
    lines: list[Point] = dataclasses.field(default_factory=list)
    total: Decimal = Decimal(0)

    def __post_init__(self) -> None:
        if not self.order_id:
            raise ValueError("no id")


@dataclasses.dataclass
class Slotted:
    __slots__ = ("name",)
    name: str


class Customer(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str
    born: dt.date | None = None
    orders: list[Order] = []
    password: str = pydantic.Field(default="", exclude=True)
    _visits: int = pydantic.PrivateAttr(default=0)


class Frozen(pydantic.BaseModel, frozen=True):
    tags: frozenset[str]


class Names(pydantic.RootModel[list[str]]):
    pass


class Secretive(pydantic.BaseModel):
    token: pydantic.SecretStr


@dataclasses.dataclass
class Listing(list[int]):
    name: str = ""


class TextSubclass(str):
    pass


def customer() -> Customer:
    made = Customer.model_validate({"name": "Ada", "born": "1815-12-10", "password": "secret", "note": {1: "one"}})
    made._visits = 7
    return made


JSON_VALUES: list[Any] = [
    None,
    "",
    0,
    False,
    [],
    {},
    True,
    1,
    -1,
    0.5,
    -0.0,
    1e300,
    2**63,
    2**64,
    2**70,
    -(2**70),
    [2**70, {"a": -(2**80)}],
    "é\n\u2028\x00\U0001f600",
    {"a": {"b": [1, "two", None, {"c": 3.25}]}, "": 1},
    ["$type"],
]

RICH_VALUES: list[Any] = [
    b"",
    b"\x00\xff",
    bytearray(b"abc"),
    float("inf"),
    [float("-inf"), 1.5],
    dt.datetime(2024, 2, 29, 12, 30, 0, 5),  # noqa: DTZ001 - naive times are values too
    dt.datetime(2024, 10, 27, 2, 30, fold=1),  # noqa: DTZ001
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=30))),
    dt.date(2024, 1, 1),
    dt.time(23, 59, 59, 999999),
    dt.time(1, 2, tzinfo=dt.timezone.utc),
    dt.timedelta(days=-3, seconds=5, microseconds=7),
    Decimal("1.10"),
    Decimal("Infinity"),
    Decimal("-1E+50"),
    uuid.UUID(int=5),
    pathlib.PurePosixPath("/a/b"),
    pathlib.Path("x.txt"),
    (),
    (1, "two", (3,)),
    {1: "int", 1.5: "float", None: "none", False: "false"},
    {(1, 2): {"a": (3,)}},
    {(1, 2), (3, 4)},
    frozenset({"a", "b"}),
    set(),
    deque([1, 2], maxlen=5),
    OrderedDict([("b", 1), ("a", 2)]),
    Counter("abca"),
    defaultdict(list, {"a": [1]}),
    defaultdict(None, {"a": 1}),
    {"$type": "bytes", "base64": "YQ=="},
    [{"$type": {"$type": 1}}],
    Colour.RED,
    Level.HIGH,
    Planet.EARTH,
    Permission.READ,
    Permission.READ | Permission.WRITE,
    Point(1, 2),
    Order("A-1", dt.date(2024, 1, 1), [Point(1)], Decimal("9.90")),
    Slotted("s"),
    customer(),
    Frozen(tags=frozenset({"x", "y"})),
    Names(["a"]),
    {"orders": [Order("A-2", dt.date(2024, 1, 2))], "by": Colour.RED},
]


def exactly_equal(left: Any, right: Any) -> bool:
    return type(left) is type(right) and left == right and repr(left) == repr(right)


def shown(value: Any) -> Any:
    return json.loads(orjson.dumps(codec.to_json(codec.encode(value))))


@pytest.mark.rule(20)
@pytest.mark.parametrize("value", JSON_VALUES, ids=repr)
def test_json_values_encode_to_themselves(value: Any) -> None:
    text = codec.encode(value)
    assert json.loads(text) == value
    assert not codec.has_tags(text) or value == ["$type"]
    assert exactly_equal(codec.decode(text), value)
    assert exactly_equal(json.loads(orjson.dumps(codec.to_json(text))), value)


@pytest.mark.rule(20)
@pytest.mark.parametrize("value", RICH_VALUES, ids=lambda value: f"{type(value).__name__}-{value!r}"[:60])
def test_case_23_rich_values_come_back_equal_and_of_the_same_type(value: Any) -> None:
    text = codec.encode(value)
    assert codec.has_tags(text)
    assert "\n" not in text
    decoded = codec.decode(text)
    if isinstance(value, (set, frozenset)):
        assert type(decoded) is type(value)
        assert decoded == value
    else:
        assert exactly_equal(decoded, value)
    assert codec.encode(decoded) == text
    assert codec.dumps(codec.loads(text)) == text, "a slot reads and writes it as plain JSON"


@pytest.mark.rule(20)
def test_nan_comes_back() -> None:
    (decoded,) = codec.decode(codec.encode([float("nan")]))
    assert decoded != decoded


@pytest.mark.rule(19)
@pytest.mark.parametrize("value", [None, "", 0, False, [], {}])
def test_case_22_empty_values_are_values(value: Any) -> None:
    text = codec.encode(value)
    assert text
    assert exactly_equal(codec.decode(text), value)


def test_zone_and_fold_come_back() -> None:
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    late = dt.datetime(2024, 10, 27, 2, 30, tzinfo=zone, fold=1)
    decoded = codec.decode(codec.encode(late))
    assert decoded.tzinfo is zone
    assert decoded.fold == 1
    assert shown(late) == "2024-10-27T02:30:00+01:00"


def test_decoded_values_share_nothing() -> None:
    inner = [1]
    text = codec.encode({"a": inner, "b": inner})
    first, second = codec.decode(text), codec.decode(text)
    first["a"].append(2)
    assert first["b"] == [1]
    assert second == {"a": [1], "b": [1]}


def test_private_attributes_and_extra_fields_of_models_come_back() -> None:
    decoded = codec.decode(codec.encode(customer()))
    assert decoded._visits == 7
    assert decoded.note == {1: "one"}
    assert decoded.model_fields_set == {"name", "born", "password", "note"}
    assert Frozen(tags=frozenset()) == codec.decode(codec.encode(Frozen(tags=frozenset())))


class Ring:
    def __init__(self) -> None:
        self.lock = threading.Lock()


def cyclic() -> list[Any]:
    ring: list[Any] = []
    ring.append({"ring": ring})
    return ring


def nested(levels: int, wrap: Any = list) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = wrap([value])
    return value


REFUSED: list[tuple[Any, str, str]] = [
    ((item for item in [1]), "generator", "$"),
    ({"lock": threading.Lock()}, "_thread.lock", "$.lock"),
    ([Ring()], "Ring", "$[0]"),
    (cyclic(), "list", "contains itself"),
    (nested(101), "list", "deeper than 100 levels"),
    (nested(101, tuple), "tuple", "deeper than 100 levels"),
    ({"a": [1, {2: object()}]}, "object", "$.a[1].value[0]"),
    ({object(): 1}, "object", "$.key[0]"),
    (TextSubclass("x"), "TextSubclass", "$"),
    (Listing("x"), "Listing", "$"),
    (defaultdict(lambda: 1), "defaultdict", "factory"),
    (Secretive(token=pydantic.SecretStr("hush")), "SecretStr", "$.token"),
    (ValueError("x"), "ValueError", "$"),
    (len, "builtin_function_or_method", "$"),
    (int, "type", "$"),
    (1j, "complex", "$"),
    ("\ud800", "str", "surrogate"),
    ([2**70, "\udfff"], "str", "$[1]"),
    ({"\ud800": 2**70}, "str", "surrogate"),
    (10**5000, "int", "4300"),
    (Order.__new__(Order), "Order", "never set"),
    (Customer.model_construct(), "Customer", "never set"),
    (dt.datetime(2024, 1, 1, tzinfo=type("Zone", (dt.tzinfo,), {})()), "Zone", "ZoneInfo"),
]


@pytest.mark.rule(20)
@pytest.mark.parametrize(("value", "kind", "place"), REFUSED, ids=lambda item: item if isinstance(item, str) else "-")
def test_case_23_what_cannot_be_carried_is_refused_by_name(value: Any, kind: str, place: str) -> None:
    with pytest.raises(Unserializable) as caught:
        codec.encode(value)
    assert kind in str(caught.value)
    assert place in str(caught.value)
    assert len(str(caught.value)) < 1000
    assert "hush" not in str(caught.value)


@pytest.mark.rule(20)
def test_case_23_open_file_and_local_class(tmp_path: pathlib.Path) -> None:
    @dataclasses.dataclass
    class Local:
        name: str

    with (tmp_path / "open").open("w") as file, pytest.raises(Unserializable, match=r"TextIOWrapper at \$\.file"):
        codec.encode({"file": file})
    with pytest.raises(Unserializable, match=r"Local.*cannot be imported"):
        codec.encode(Local("x"))


class Unreadable(Point):
    @property
    def _fields(self) -> Any:  # type: ignore[override]
        raise RuntimeError("changed while it was read")


@pytest.mark.rule(20)
def test_value_that_raises_while_it_is_read_is_refused_by_name() -> None:
    with pytest.raises(Unserializable, match="Unreadable: reading it raises RuntimeError"):
        codec.encode(Unreadable(1))


@pytest.mark.parametrize("wrap", [list, tuple, lambda item: {1: item[0]}])
def test_hundred_levels_are_carried(wrap: Any) -> None:
    value = nested(100, wrap)
    assert codec.decode(codec.encode(value)) == value
    orjson.dumps([codec.to_json(codec.encode(value))])


def test_case_25_limit_is_in_bytes() -> None:
    assert codec.encode("é", 4) == '"é"'
    with pytest.raises(TooLarge, match="the value is 4 bytes, over the limit of 3 bytes"):
        codec.encode("é", 3)
    with pytest.raises(TooLarge, match="over the limit of 1048576 bytes"):
        codec.encode("x" * 40_000_000, 1024 * 1024)
    with pytest.raises(TooLarge):
        codec.encode(b"x" * 40_000_000, 1024 * 1024)
    with pytest.raises(TooLarge):
        codec.encode_plain({"a": "x" * 100}, 50)


def test_shared_parts_cannot_explode() -> None:
    value: Any = ["x" * 1000]
    for _ in range(60):
        value = [value, value]
    for shape in (value, (value,)):
        with pytest.raises(TooLarge):
            codec.encode(shape, 10_000)
    with pytest.raises(TooLarge, match="elements"):
        codec.encode(value)


TO_JSON: list[tuple[Any, Any]] = [
    (b"text", "text"),
    (b"\xff", {"base64": "/w=="}),
    (dt.datetime(2024, 1, 1, tzinfo=dt.timezone.utc), "2024-01-01T00:00:00+00:00"),
    (dt.date(2024, 1, 1), "2024-01-01"),
    (dt.time(1, 2), "01:02:00"),
    (dt.timedelta(days=1, seconds=2, microseconds=500000), "P1DT2.5S"),
    (dt.timedelta(seconds=-1), "-P0DT1S"),
    (Decimal("1.10"), "1.10"),
    (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (float("nan"), "NaN"),
    (float("-inf"), "-Infinity"),
    ((1, (2,)), [1, [2]]),
    ({1, 2}, [1, 2]),
    ({1: "a", None: "b", False: "c", 2.5: "d"}, {"1": "a", "null": "b", "false": "c", "2.5": "d"}),
    ({1: "a", "1": "b"}, [[1, "a"], ["1", "b"]]),
    ({(1, 2): 3}, [[[1, 2], 3]]),
    ({dt.date(2024, 1, 1): 3}, {"2024-01-01": 3}),
    ({"$type": "bytes"}, {"$type": "bytes"}),
    (Colour.RED, "red"),
    (Level.HIGH, 3),
    (Planet.EARTH, [5.97, 6378]),
    (Permission.READ | Permission.WRITE, 3),
    (Point(1, 2), {"x": 1, "y": 2}),
    (Order("A", dt.date(2024, 1, 1)), {"order_id": "A", "placed": "2024-01-01", "lines": [], "total": "0"}),
    (Names(["a"]), ["a"]),
    (customer(), {"name": "Ada", "born": "1815-12-10", "orders": [], "note": {"1": "one"}}),
    ({"big": (2**70,)}, {"big": [2**70]}),
]


@pytest.mark.parametrize(("value", "expected"), TO_JSON, ids=lambda item: repr(item)[:40])
def test_what_a_model_reads(value: Any, expected: Any) -> None:
    assert shown(value) == expected


def test_enum_whose_value_cannot_be_carried_goes_by_name() -> None:
    assert codec.decode(codec.encode(Planet.LOCKED)) is Planet.LOCKED
    assert shown(Planet.LOCKED) == "LOCKED"


def replaced(value: Any, old: str, new: str) -> str:
    text = codec.encode(value)
    assert old in text
    return text.replace(old, new)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (replaced(Point(1), "Point", "Gone"), "Gone cannot be imported"),
        (replaced(Order("A", dt.date.min), "Order", "Customer"), "another kind of class"),
        (replaced(Order("A", dt.date.min), '"total"', '"sum"'), "has no sum any more"),
        (replaced(Slotted("x"), '"name":"x"', ""), "name was not recorded"),
        (replaced(Frozen(tags=frozenset()), '"tags"', '"tag"'), "has no tag any more"),
        (replaced(Colour.RED, "RED", "BLUE").replace('"red"', '"blue"'), "has no member BLUE"),
        ('{"$type":"bytes","base64":"?"}', "cannot be rebuilt"),
        ('{"$type":"set","items":[[]]}', "cannot be rebuilt"),
        ('{"$type":"tuple"}', "cannot be rebuilt"),
        ('{"$type":"datetime","iso":"2024-01-01T00:00:00","zone":"Nowhere/At_All"}', "no time zone Nowhere/At_All"),
    ],
)
def test_recorded_value_that_does_not_fit_any_more(text: str, message: str) -> None:
    with pytest.raises(Unserializable, match=message):
        codec.decode(text)


def test_fields_added_since_take_their_default() -> None:
    assert codec.decode(replaced(Point(1, 5), ',"y":5', "")) == Point(1)
    added = replaced(Order("A", dt.date.min), ',"lines":[]', "")
    assert codec.decode(added).lines == []
    assert codec.decode(replaced(Customer(name="A"), ',"orders":[]', "")).orders == []


@pytest.mark.parametrize("text", ['{"$type":"later"}', '{"$type":[]}', '{"a":{"$type":null}}', "{", '{"$type"'])
def test_text_of_another_version(text: str) -> None:
    with pytest.raises(StateFormat):
        codec.decode(text)
    if "{" in text[1:] or text.endswith("}"):
        with pytest.raises(StateFormat):
            codec.to_json(text)


@pytest.mark.parametrize("value", [{"$type": 1}, {"a": [{"$type": "x", "b": 2**70}]}, [1, "é"], {"a": nested(90)}])
def test_encode_plain_writes_json_without_tags(value: Any) -> None:
    assert codec.loads(codec.encode_plain(value)) == value


@pytest.mark.parametrize("value", [b"x", (1,), {"a": {1: 2}}, [Colour.RED], float("nan"), {"a": Point(1)}, {1}])
def test_encode_plain_refuses_what_is_no_json(value: Any) -> None:
    with pytest.raises(Unserializable, match="which is no JSON"):
        codec.encode_plain(value)


def test_import_paths() -> None:
    assert codec.import_path(Order) == f"{__name__}:Order"
    assert codec.imported(f"{__name__}:Order") is Order
    for path in ("nowhere_at_all:X", f"{__name__}:Nothing", f"{__name__}:customer"):
        with pytest.raises(LookupError):
            codec.imported(path)
