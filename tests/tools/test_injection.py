"""Arguments that the job gives: hidden, never spoofable, never a default, and no secret in what is recorded."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, Field, SecretBytes, SecretStr

from flink_agents import ClassDeclaration, FunctionDeclaration, FunctionTool, SchemaDeclaration, SchemaTool, tool
from flink_agents.agent import Agent, InputEvent, OutputEvent
from flink_agents.errors import InjectionFailed, InvalidArguments, InvalidOption
from flink_agents.options import InjectFrom, Injection
from flink_agents.testing import Harness
from flink_agents.tools.base import Tool
from flink_agents.tools.injection import injected, resolve_config, secrets_in, unfit
from flink_agents.tools.registry import build_registry

TENANT = {"tenant": {"from": "config", "key": "customer.tenant"}}


def look_up(order: str, tenant: str = "nobody") -> list[str]:
    """Look an order up.

    Args:
        order: its number.
        tenant: whose.
    """
    return [order, tenant]


class Credentials(BaseModel):
    user: str
    password: SecretStr


def pay(cents: int, api_key: SecretStr) -> str:
    return f"{cents} by {api_key}"


def handler(name: str, arguments: dict[str, Any]) -> Any:
    return arguments


def no_memory(path: str) -> Any:
    raise KeyError(path)


def run(made: Tool, arguments: dict[str, Any], config: Any = None, memory: Callable[[str], Any] = no_memory) -> Any:
    """Do what the engine does between the reservation of the slot and the end of the body."""
    return made.prepare(injected(made.spec, arguments, config or {}, memory))()


@pytest.mark.rule(8)
def test_what_is_injected_is_hidden_and_overrides_what_a_model_sends() -> None:
    made = FunctionTool(look_up, inject=TENANT)
    assert "tenant" not in json.dumps(made.spec.parameters)
    assert made.spec.inject == {"tenant": Injection(InjectFrom.CONFIG, "customer.tenant")}
    config = {"customer": {"tenant": "acme"}}
    assert run(made, {"order": "A-1"}, config) == ["A-1", "acme"]
    assert run(made, {"order": "A-1", "tenant": "evil corp"}, config) == ["A-1", "acme"]
    assert run(made, {"order": "A-1", "tenant": ["of", "no", "type"]}, config) == ["A-1", "acme"]


@pytest.mark.rule(8)
@pytest.mark.parametrize("config", [{}, {"customer": "acme"}, {"customer": {"tenants": ["acme"]}}])
def test_a_missing_source_fails_the_call_and_no_default_stands_in(config: dict[str, Any]) -> None:
    made = FunctionTool(look_up, inject=TENANT)
    with pytest.raises(InjectionFailed) as failed:
        run(made, {"order": "A-1", "tenant": "evil corp"}, config)
    told = "tool 'look_up': no value for its injected parameter 'tenant': the job's config has no 'customer.tenant'"
    assert str(failed.value) == told
    assert failed.value.kind == "injection"


@pytest.mark.rule(8)
def test_from_the_memory_of_the_key() -> None:
    made = FunctionTool(look_up, inject={"tenant": {"from": "memory", "key": "profile.tenant"}})
    asked: list[str] = []

    def memory(path: str) -> Any:
        asked.append(path)
        return "remembered"

    assert run(made, {"order": "A-1", "tenant": "evil corp"}, {}, memory) == ["A-1", "remembered"]
    assert asked == ["profile.tenant"]
    with pytest.raises(InjectionFailed, match=r"the memory of this key has no 'profile\.tenant'"):
        run(made, {"order": "A-1"})


def test_arguments_are_left_alone_where_nothing_is_injected() -> None:
    arguments = {"order": "A-1"}
    assert injected(FunctionTool(look_up).spec, arguments, {}, no_memory) is arguments


def test_the_arguments_as_asked_are_not_changed_and_neither_is_the_configuration() -> None:
    def spoil(items: list[int]) -> None:
        items.append(5)

    config = {"items": [1]}
    arguments = {"items": [9]}
    made = FunctionTool(spoil, inject={"items": {"from": "config", "key": "items"}})
    run(made, arguments, config)
    assert (arguments, config) == ({"items": [9]}, {"items": [1]})


@pytest.mark.rule(4, 8)
def test_a_value_of_the_job_that_does_not_fit_is_no_mistake_of_the_model() -> None:
    made = FunctionTool(look_up, inject=TENANT)
    with pytest.raises(InjectionFailed) as failed:
        run(made, {"order": "A-1"}, {"customer": {"tenant": 12345}})
    assert str(failed.value) == (
        "tool 'look_up': the value for its injected parameter 'tenant': Input should be a valid string (got integer)"
    )
    # A mistake of the model's beside it does not show the hidden parameter.
    with pytest.raises(InvalidArguments) as refused:
        run(made, {"ordr": "A-1"}, {"customer": {"tenant": "acme"}})
    assert "tenant" not in str(refused.value)
    assert "tenant" not in json.dumps(refused.value.expected)


def test_types_that_only_a_hidden_parameter_has_are_hidden_too() -> None:
    def connect(host: str, credentials: Credentials) -> list[str]:
        return [host, credentials.user, credentials.password.get_secret_value()]

    made = FunctionTool(connect, inject={"credentials": {"from": "config", "key": "db"}})
    assert made.spec.parameters == {
        "type": "object",
        "properties": {"host": {"type": "string"}},
        "required": ["host"],
        "additionalProperties": False,
    }
    config = resolve_config({"db": {"user": "u", "password": {"env": "DB_PASSWORD"}}}, {"DB_PASSWORD": "hunter22"})
    assert run(made, {"host": "h"}, config) == ["h", "u", "hunter22"]


@pytest.mark.rule(8)
def test_tools_of_a_schema_file_get_it_among_the_arguments() -> None:
    schema = {
        "type": "object",
        "properties": {"order": {"type": "string"}, "tenant": {"type": "string"}},
        "required": ["order", "tenant"],
        "additionalProperties": False,
    }
    made = SchemaTool({"name": "declared", "parameters": schema}, handler, inject=TENANT)
    assert list(made.spec.parameters["properties"]) == ["order"]
    assert made.spec.parameters["required"] == ["order"]
    config = {"customer": {"tenant": SecretStr("acme")}}
    got = run(made, {"order": "A-1", "tenant": 5}, config)
    assert (got["order"], got["tenant"].get_secret_value()) == ("A-1", "acme")
    with pytest.raises(InvalidArguments):
        run(made, {"tenant": "x"}, config)


def test_the_reconciler_gets_it_as_the_tool_does() -> None:
    def find(order: str, tenant: str) -> list[str]:
        return ["found", order, tenant]

    made = FunctionTool(look_up, on_interrupt="reconcile", reconcile=find, inject=TENANT)
    body = made.reconciler(injected(made.spec, {"order": "A-1"}, {"customer": {"tenant": "acme"}}, no_memory))
    bound: Any = body
    assert bound.args[2] == {"order": "A-1", "tenant": "acme"}


@pytest.mark.rule(8)
def test_what_the_author_hides_stays_hidden_whatever_a_job_says() -> None:
    @tool(inject=TENANT)
    def hiding(order: str, tenant: str, region: str) -> list[str]:
        return [order, tenant, region]

    region = {"region": {"from": "config", "key": "region"}}
    for declared in (
        FunctionDeclaration(hiding, inject=region),
        FunctionDeclaration(FunctionTool(hiding), inject=region),
    ):
        (made,) = build_registry([declared]).tools()
        assert list(made.spec.parameters["properties"]) == ["order"]
        assert set(made.spec.inject) == {"tenant", "region"}
    elsewhere = FunctionDeclaration(hiding, inject={"tenant": {"from": "memory", "key": "t"}})
    (made,) = build_registry([elsewhere]).tools()
    assert made.spec.inject == {"tenant": Injection(InjectFrom.MEMORY, "t")}


def test_methods_and_pickled_tools() -> None:
    class Shop:
        def stock(self, item: str, tenant: str) -> list[str]:
            return [item, tenant]

    (method,) = build_registry([ClassDeclaration(Shop, inject=TENANT)]).tools()
    config = {"customer": {"tenant": "acme"}}
    assert run(method, {"item": "kettle"}, config) == ["kettle", "acme"]
    travelled = pickle.loads(pickle.dumps(FunctionTool(look_up, inject=TENANT)))
    assert run(travelled, {"order": "A-1", "tenant": "x"}, config) == ["A-1", "acme"]


@pytest.mark.parametrize(
    ("inject", "about", "message"),
    [
        ("tenant", "inject", "must be a mapping of parameters to their sources, not str"),
        ({"tenant": "config"}, "inject.tenant", "must be {'from': 'config' or 'memory', 'key': a dotted path}"),
        ({"tenant": {"from": "config"}}, "inject.tenant", "not {'from': 'config'}"),
        ({"tenant": {"from": "env", "key": "T"}}, "inject.tenant", "from must be config or memory, not 'env'"),
        ({"tenant": {"from": "config", "key": "a..b"}}, "inject.tenant", "key must be a dotted path"),
        ({"tenant": {"from": "config", "key": 5}}, "inject.tenant", "key must be a dotted path"),
        ({"tenat": {"from": "config", "key": "t"}}, "inject.tenat", "has no parameter 'tenat'; did you mean 'tenant'?"),
    ],
)
def test_what_is_refused_where_it_is_declared(inject: Any, about: str, message: str) -> None:
    with pytest.raises(InvalidOption) as refused:
        FunctionTool(look_up, inject=inject)
    assert refused.value.options == (about,)
    assert message in str(refused.value)


def test_a_parameter_with_an_alias_cannot_be_injected() -> None:
    def aliased(tenant: Annotated[str, Field(alias="t")]) -> str:
        return tenant

    with pytest.raises(InvalidOption, match="a parameter with an alias cannot be injected"):
        FunctionTool(aliased, inject={"tenant": {"from": "config", "key": "t"}})


def test_the_environment_is_read_where_the_tools_run_and_gives_secrets() -> None:
    config: dict[str, Any] = {"tenant": "acme", "keys": [{"env": "FIRST"}, {"name": {"env": "SECOND"}}], "env": "prod"}
    resolved = resolve_config(config, {"FIRST": "first-secret", "SECOND": "second-secret"})
    assert resolved["tenant"] == "acme"
    assert resolved["keys"][0] == SecretStr("first-secret")
    assert "secret" not in repr(resolved).replace("SecretStr", "")
    assert sorted(secrets_in(resolved)) == ["first-secret", "second-secret"]
    assert list(secrets_in({"a": SecretBytes(b"bytes")})) == ["bytes"]
    made = FunctionTool(pay, inject={"api_key": {"from": "config", "key": "api_key"}})
    config = {"api_key": {"env": "API_KEY"}}
    assert run(made, {"cents": 5, "api_key": "stolen"}, resolve_config(config, {"API_KEY": "s3cret"})) == (
        "5 by **********"
    )


@pytest.mark.rule(4, 8)
def test_a_variable_that_is_not_set_fails_the_calls_that_need_it() -> None:
    made = FunctionTool(pay, inject={"api_key": {"from": "config", "key": "api_key"}})
    resolved = resolve_config({"api_key": {"env": "API_KEY"}, "tenant": "acme"}, {})
    with pytest.raises(InjectionFailed, match="environment variable API_KEY, which the TaskManager does not have"):
        run(made, {"cents": 5}, resolved)
    whole = FunctionTool(look_up, inject={"tenant": {"from": "config", "key": "tenant"}})
    assert run(whole, {"order": "A-1"}, resolved) == ["A-1", "acme"]


def test_a_secret_needs_the_type() -> None:
    made = FunctionTool(look_up, inject={"tenant": {"from": "config", "key": "t"}})
    with pytest.raises(InjectionFailed, match=r"\(got SecretStr\); a secret needs the type pydantic.SecretStr$"):
        run(made, {"order": "A-1"}, resolve_config({"t": {"env": "T"}}, {"T": "hunter22"}))


def test_what_can_be_said_before_the_job_starts() -> None:
    made = FunctionTool(look_up, inject=TENANT)
    assert list(unfit(made, {"customer": {"tenant": "acme"}})) == []
    ((name, told),) = unfit(made, {"customer": {"tenat": "acme"}})
    assert name == "tenant"
    assert told.endswith("config has no 'customer.tenant'; did you mean 'customer.tenat'?")
    ((_, told),) = unfit(made, {"customer": {"tenant": 12345}})
    assert told.endswith("Input should be a valid string (got integer)")
    ((_, told),) = unfit(made, {"customer": {"tenant": {"env": "T"}}})
    assert told.endswith("a secret needs the type pydantic.SecretStr")
    assert list(unfit(FunctionTool(look_up, inject={"tenant": {"from": "memory", "key": "t"}}), {})) == []


def test_a_secret_s_bounds_are_not_guessed_at() -> None:
    def bounded(api_key: Annotated[SecretStr, Field(min_length=20, max_length=30)]) -> None: ...

    made = FunctionTool(bounded, inject={"api_key": {"from": "config", "key": "api_key"}})
    assert list(unfit(made, {"api_key": {"env": "API_KEY"}})) == []
    with pytest.raises(InjectionFailed) as failed:
        run(made, {}, resolve_config({"api_key": {"env": "API_KEY"}}, {"API_KEY": "hunter22"}))
    assert "hunter22" not in str(failed.value)
    assert "needs the type" not in str(failed.value)


def test_what_a_registry_hides_in_failures() -> None:
    inject = {"api_key": {"from": "config", "key": "literal"}}
    entries = SchemaDeclaration(({"name": "a"},), handler, inject=TENANT)
    registry = build_registry([FunctionDeclaration(pay, inject=inject), entries])
    config = resolve_config(
        {"literal": "taken-as-a-secret", "customer": {"tenant": "acme corp"}, "key": {"env": "KEY"}},
        {"KEY": "from-outside"},
    )
    told = "taken-as-a-secret acme corp from-outside"
    assert registry.redaction(config).text(told) == "[secret] acme corp [secret]"
    assert not build_registry([pay]).redaction({"plain": "text"})


@pytest.mark.rule(8)
def test_an_action_s_calls_are_given_what_the_key_remembers() -> None:
    agent = Agent()
    seen: list[Any] = []

    @agent.action(InputEvent)
    async def ask(event: InputEvent, ctx: Any) -> None:
        try:
            seen.append(await ctx.call_tool("look_up", {"order": "A-1", "tenant": "evil corp"}))
        except InjectionFailed as failed:
            seen.append(failed.kind)
        ctx.memory.set("customer.tenant", f"of {ctx.key}")
        ctx.send_event(OutputEvent({"done": True}))

    made = FunctionTool(look_up, inject={"tenant": {"from": "memory", "key": "customer.tenant"}})
    with Harness([made], agent=agent) as harness:
        for key in ("a", "b", "a"):
            harness.send({"key": key})
            harness.run()
    assert seen == ["injection", "injection", ["A-1", "of a"]]
