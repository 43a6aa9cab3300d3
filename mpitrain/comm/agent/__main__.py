"""Run the agent of this node: `python -m mpitrain.comm.agent`, with its settings as JSON on standard input."""

from __future__ import annotations

from mpitrain.comm.agent.agent import main

main()
