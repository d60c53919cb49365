"""The code that device models share: their contract, signals, commands, firmware updates.

    device            the contract between a device and the fleet that runs it
    device_model      the base class of models with plain topics
    scheduled_device  its base: reports, timers, the message buffer, reboots
    model_info        the description of a model: options, documents, commands

Pure: no socket and no clock. The models themselves are in `iot_sim.models`.
"""
