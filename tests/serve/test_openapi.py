"""The API's own description is valid and true: callers made up from it get no 5xx and nothing it does not describe."""

import re
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import positive_data_acceptance
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.schemas import OpenApiSchema

from shoal.serve.route import Route
from shoal.serve.routes import ROUTES
from shoal.wire.fields import Role

if TYPE_CHECKING:
    from tests.serve.conftest import Harness

WHO = ("admin", "ana", "agent-n0")
ROLES: dict[str, Role] = {"admin": "admin", "ana": "user", "agent-n0": "agent"}

RULES = positive_data_acceptance
"""Left out: what a cluster has, and which role a token is of, are rules that no schema can express."""


@pytest.fixture(scope="module")
def described(crowd: "Harness") -> OpenApiSchema:
    headers = {"Authorization": f"Bearer {crowd.secrets['ana']}"}
    return schemathesis.openapi.from_asgi("/v1/openapi.json", crowd.app, headers=headers)


def call_by_name(case: "schemathesis.Case[Any]") -> None:
    """Have it be about a job and a node there are; a made-up name would never be one of theirs."""
    if "job" in case.path_parameters:
        case.path_parameters["job"] = "hers-aaaa"
    if "app" in case.path_parameters:
        case.path_parameters["app"] = "sweep"
    if isinstance(case.body, dict) and "node" in case.body and "protocol" in case.body:
        case.body["node"] = "n0"


def try_out(crowd: "Harness", schema: OpenApiSchema, route: Route, mode: GenerationMode, data: st.DataObject) -> None:
    """One made-up request, of somebody who may make it more often than not."""
    who = data.draw(st.sampled_from([who for who in WHO if ROLES[who] in route.roles] + list(WHO)))
    case = data.draw(schema[route.path][route.method].as_strategy(generation_mode=mode))
    if mode is GenerationMode.POSITIVE and data.draw(st.booleans()):
        call_by_name(case)
    case.call_and_validate(headers={"Authorization": f"Bearer {crowd.secrets[who]}"}, excluded_checks=[RULES])


some = settings(max_examples=30, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
@some
@given(data=st.data())
def test_requests_that_follow_the_description_get_what_it_says(
    crowd: "Harness", described: OpenApiSchema, route: Route, data: st.DataObject
) -> None:
    try_out(crowd, described, route, GenerationMode.POSITIVE, data)


@pytest.mark.parametrize(
    "route",
    [route for route in ROUTES if route.body or route.query or "{" in route.path],
    ids=lambda route: f"{route.method} {route.path}",
)
@some
@given(data=st.data())
def test_requests_that_break_the_description_are_refused_as_it_says(
    crowd: "Harness", described: OpenApiSchema, route: Route, data: st.DataObject
) -> None:
    try_out(crowd, described, route, GenerationMode.NEGATIVE, data)


def test_the_description_is_openapi_and_says_who_may_call_and_every_answer(harness: "Harness") -> None:
    document: dict[str, Any] = harness.call("GET", "/v1/openapi.json", "bo").json()
    schemathesis.openapi.from_dict(document).validate()
    assert document["info"]["version"] == "1.2"
    assert document["components"]["securitySchemes"] == {"token": {"type": "http", "scheme": "bearer"}}
    for route in ROUTES:
        operation = document["paths"][route.path][route.method.lower()]
        assert set(operation["responses"]) == {str(route.status), *map(str, route.codes)}
        assert bool(operation.get("security")) == bool(route.roles)
        for code in route.codes:
            content = operation["responses"][str(code)]["content"]["application/json"]
            assert content == {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}
    said = msgspec.json.encode(document).decode()
    assert set(re.findall(r"#/components/schemas/(\w+)", said)) <= set(document["components"]["schemas"])
    assert "\\\\Z" not in said
