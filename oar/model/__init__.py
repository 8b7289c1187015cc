"""The policy: its folder, its adapter, its parameters."""
