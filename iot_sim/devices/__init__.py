"""The code that device models share: the contract, signals, commands, firmware updates."""
