"""Coordinators as state machines: handlers return effects, replay is the only mutation."""
