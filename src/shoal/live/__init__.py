"""A cluster made of machines: the clock, gangs on their nodes, the live backend, and the plane that runs the loop."""
