"""Moving bytes between peers: a lane is one connection, a link all lanes to one peer."""
