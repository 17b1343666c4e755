"""The controller, which elects leaders. `reconcile` decides, and `placement` assigns new replicas to brokers."""
