"""Training speeds: profiles of models, the built-in catalogue, and the speed models that policies see."""
