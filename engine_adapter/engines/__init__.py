"""What the adapters of engines share: options that are checked, and which weights an engine runs."""
