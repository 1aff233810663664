"""Messages between clients, agents and the control plane, and their HTTP client. Imports no heavy library."""
