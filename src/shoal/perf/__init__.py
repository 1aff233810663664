"""How fast it would go: profiles of models, the built-in catalogue, and what policies are told of both."""
