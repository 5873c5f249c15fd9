"""Runtime of a ring: its core, its engine, and the queue in which calls take their places."""
