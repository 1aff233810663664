"""HTTP server of the control plane: authentication, limits, routes and error responses.

Nothing is decided here. A request passes checks of its token, rate, role, size and types before the control plane sees
it; every refusal is a ``ProblemDetails`` with the field, the value and the way out.
"""

from shoal.serve.app import make_app
from shoal.serve.control_plane_api import ControlPlaneAPI
from shoal.serve.limits import ServerLimits
from shoal.serve.server import Listening, serve
from shoal.serve.tokens import Tokens

__all__ = ["ControlPlaneAPI", "Listening", "ServerLimits", "Tokens", "make_app", "serve"]
