"""Starting engines: one server, a fleet, and the guard at its door."""
