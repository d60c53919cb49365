"""What device models share: the contract, signals, commands, firmware updates."""
