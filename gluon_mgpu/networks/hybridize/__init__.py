"""Run a network as one operator: tracing, static memory, and what a graph would leave out."""
