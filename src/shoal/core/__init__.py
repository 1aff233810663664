"""The nouns of the ring and its one state machine; nothing here knows of a policy, a clock or a file."""
