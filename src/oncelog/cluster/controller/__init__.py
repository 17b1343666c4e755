"""The controller, which elects leaders. `reconcile` decides, and `placement` assigns new replicas to brokers.

`isr_log` describes elections and changes of the ISR for the log.
"""
