"""Parts of a broker in a test, which `mqtt_broker.testing` puts together.

recorder      published messages, and waiting for them
clients       who is connected, broken and slow connections, a clock that is moved
connects      users with passwords, CONNECTs that are refused or delayed
certificates  a certificate of its own
"""
