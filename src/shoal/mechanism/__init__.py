"""How to get from the seats held to the seats given."""
