"""Coordinators as state machines: a handler returns effects, and only replay changes the state."""
