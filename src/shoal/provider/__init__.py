"""Providers start node agents: `local` starts them as processes on this machine."""
