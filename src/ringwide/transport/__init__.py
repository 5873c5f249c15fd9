"""BYTES <-> PEERS: lanes (one connection each) and links (all lanes to one peer). Never sees a number."""
