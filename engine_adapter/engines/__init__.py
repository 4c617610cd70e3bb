"""What the adapters of engines share: options, faults, which weights and whose KV, and what a start says of the daemon."""
