"""The code that device models share: the contract, signals, commands, firmware updates.

Pure: no socket and no clock. The models themselves are in `iot_sim.models`.
"""
