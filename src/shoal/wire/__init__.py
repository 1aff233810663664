"""What is said over sockets: versioned messages, and the one client that says them. Imports nothing heavy."""
