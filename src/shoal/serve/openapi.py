"""The OpenAPI 3.1 description, generated from the route table and the message types alone."""

import re
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import msgspec

from shoal.serve.route import Route
from shoal.wire.fields import Digest, JobName, Name, Natural
from shoal.wire.messages import ProblemDetails

_REFS = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)\}")
_PATH_TYPES: dict[str, Any] = {"job": JobName, "digest": Digest, "decision": Natural}
_PATH_TYPES |= dict.fromkeys(("token", "session", "app", "node"), Name)
_TAGS = {"jobs": "jobs", "apps": "apps", "code": "jobs", "agent": "agents", "tokens": "tokens", "sessions": "sessions"}
_TAGS["login"] = "tokens"


def describe(routes: Sequence[Route], version: str) -> dict[str, Any]:
    """Return the OpenAPI document."""
    types = {
        kind for route in routes for kind in (route.body, route.answer, route.query, route.events) if kind is not None
    }
    ordered = sorted([*types, ProblemDetails, JobName, Name, Natural, Digest], key=repr)
    schemas, components = msgspec.json.schema_components(ordered, ref_template=_REFS)
    by_type = dict(zip(ordered, schemas, strict=True))
    for route in routes:
        if route.query is not None:
            by_type[route.query] = components.pop(route.query.__name__, by_type[route.query])
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_type)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Shoal", "version": version, "description": "The control plane of a Shoal cluster."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }
    return {str(key): value for key, value in _portable(document).items()}


def _operation(route: Route, by_type: dict[Any, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": route.handler.__name__,
        "summary": route.summary,
        "tags": [_TAGS.get(route.path.split("/")[2], "cluster")],
        "responses": _responses(route, by_type),
    }
    if route.roles:
        operation["description"] = f"For tokens with the role {' or '.join(sorted(route.roles))}."
        operation["security"] = [{"token": []}, {}] if route.local else [{"token": []}]
    parameters = [_in_path(name, by_type) for name in _PARAMETER.findall(route.path)]
    if route.query is not None:
        properties = by_type[route.query]["properties"]
        parameters += [_in_query(name, schema) for name, schema in properties.items()]
    if parameters:
        operation["parameters"] = parameters
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _json(by_type[route.body])}
    return operation


def _responses(route: Route, by_type: dict[Any, Any]) -> dict[str, Any]:
    served: dict[str, Any] = {"description": HTTPStatus(route.status).phrase}
    if route.answer is not None:
        served["content"] = {route.media: {"schema": by_type[route.answer]}}
    if route.events is not None:  # OpenAPI 3.1 has no word for the data of events
        served["content"][route.media]["x-event-data"] = {"changed": by_type[route.events]}
    refused = {
        str(code): {"description": HTTPStatus(code).phrase, "content": _json(by_type[ProblemDetails])}
        for code in route.codes
    }
    return {str(route.status): served, **refused}


def _in_path(name: str, by_type: dict[Any, Any]) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": by_type[_PATH_TYPES[name]]}


def _in_query(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a query parameter; an optional one needs no null."""
    value = {key: value for key, value in schema.items() if key != "anyOf" and (key, value) != ("default", None)}
    for choice in schema.get("anyOf", ()):
        value |= choice if choice != {"type": "null"} else {}
    return {"name": name, "in": "query", "required": False, "schema": value}


def _json(schema: Any) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _portable(part: Any) -> Any:
    """Return the document with Python's end of text, ``\\Z``, spelled ``$`` as in other regular expressions."""
    if isinstance(part, dict):
        return {
            key: value.removesuffix(r"\Z") + "$"
            if key == "pattern" and isinstance(value, str) and value.endswith(r"\Z")
            else _portable(value)
            for key, value in part.items()
        }
    return [_portable(item) for item in part] if isinstance(part, list) else part
