"""What the ring did, pulled from below when somebody asks."""
