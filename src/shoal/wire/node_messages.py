"""Messages about nodes that join a running cluster."""

from typing import Annotated

from msgspec import Meta, Struct

from shoal.wire.fields import Name

__all__ = ["NewNode", "NodeAdded", "NodeToken"]


class NewNode(Struct, forbid_unknown_fields=True, frozen=True):
    """A node to add to a running cluster: its name, and the kind and number of its GPUs."""

    name: Name
    kind: Name
    gpus: Annotated[int, Meta(ge=1, le=255)]
    rack: Name = "r0"


class NodeAdded(Struct, frozen=True):
    """A node was added; ``token_file`` is the file of its agent's token, None if the control plane starts the agent."""

    name: str
    token_file: str | None = None


class NodeToken(Struct, frozen=True):
    """The secret of the token of an agent that joined with a join token; only this answer holds it."""

    name: str
    secret: str
