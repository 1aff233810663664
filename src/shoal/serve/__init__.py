"""The control plane's HTTP door: who may ask, how much at once, and in which words it is answered.

Nothing is decided here. A request passes the token, its rate, its role, its size and its type before the cluster hears
of it, and every refusal is a ``Problem`` that names the field, the value and the way out.
"""

from shoal.serve.app import make_app
from shoal.serve.control_plane_api import ControlPlaneAPI, MetricsView
from shoal.serve.limits import ServerLimits
from shoal.serve.server import Listening, serve
from shoal.serve.tokens import Tokens

__all__ = ["ControlPlaneAPI", "Listening", "MetricsView", "ServerLimits", "Tokens", "make_app", "serve"]
