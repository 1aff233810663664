"""Placers: granted GPU counts to seats on nodes."""
